"""Nested Spark columns as JSON text, and back.

Inside JSON, values are as in columns of their own: dates are days, timestamps and intervals microseconds, decimals
text; binary is base64 text; maps are objects where keys are text, else lists of [key, value]; a null is null.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

Fix = Callable[[Any], Any]


def to_json(column: pa.Array, kind: T.DataType) -> pa.Array:
    """Give a column's values as JSON text, a binary array without nulls."""
    fix = _to_plain(kind)
    values = column.cast(_plain_type(column.type)).to_pylist()
    if fix is not None:
        values = [None if value is None else fix(value) for value in values]
    return pa.array([json.dumps(value).encode() for value in values], pa.large_binary())


def from_json(column: pa.Array, kind: T.DataType, target: pa.DataType) -> pa.Array:
    """Give the values of a column of JSON text as an array of the Arrow type of a Spark type."""
    fix = _from_plain(kind)
    values = [json.loads(text) for text in column.to_pylist()]
    if fix is not None:
        values = [None if value is None else fix(value) for value in values]
    return pa.array(values, _plain_type(target)).cast(target)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Give an Arrow type with what JSON has no value for replaced by numbers and text."""
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.int64()
    if pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _has_text_keys(kind: T.MapType) -> bool:
    return isinstance(kind.keyType, T.StringType)


def _to_plain(kind: T.DataType) -> Fix | None:
    """Make the function that turns a value into one that JSON has; None where it is one."""
    if isinstance(kind, T.BinaryType):
        return lambda value: base64.b64encode(value).decode()
    if isinstance(kind, T.VariantType):
        return lambda value: json.loads(T.VariantVal(value["value"], value["metadata"]).toJson())
    if isinstance(kind, T.MapType) and _has_text_keys(kind):
        return _each_item(_to_plain(kind.valueType))
    return _inside(kind, _to_plain)


def _from_plain(kind: T.DataType) -> Fix | None:
    """Make the function that undoes what `_to_plain` does."""
    if isinstance(kind, T.BinaryType):
        return base64.b64decode
    if isinstance(kind, T.VariantType):
        return _variant
    if isinstance(kind, T.MapType) and _has_text_keys(kind):
        items = _each_item(_from_plain(kind.valueType))
        return lambda value: list(items(value).items())
    return _inside(kind, _from_plain)


def _variant(value: Any) -> dict[str, bytes]:
    variant = T.VariantVal.parseJson(json.dumps(value))
    return {"value": bytes(variant.value), "metadata": bytes(variant.metadata)}


def _each_item(fix: Fix | None) -> Fix:
    if fix is None:
        return dict
    return lambda value: {k: None if v is None else fix(v) for k, v in dict(value).items()}


def _inside(kind: T.DataType, make: Callable[[T.DataType], Fix | None]) -> Fix | None:
    """Make the function that fixes what is inside a struct, an array, or a map that is a list of pairs."""
    if isinstance(kind, T.StructType):
        fixes = {field.name: fix for field in kind.fields if (fix := make(field.dataType)) is not None}
        if not fixes:
            return None
        return lambda value: {k: fixes[k](v) if k in fixes and v is not None else v for k, v in value.items()}
    if isinstance(kind, T.ArrayType):
        fix = make(kind.elementType)
        return None if fix is None else lambda value: [None if v is None else fix(v) for v in value]
    if isinstance(kind, T.MapType):
        of_key, of_value = make(kind.keyType) or _same, make(kind.valueType) or _same
        return lambda value: [(of_key(k), None if v is None else of_value(v)) for k, v in value]
    return None


def _same(value: Any) -> Any:
    return value
