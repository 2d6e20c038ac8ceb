"""Nested Spark columns as JSON text, and back.

`mds_core.json_text` says what stands for what; Spark adds variants, which are the JSON that they hold;
a variant that holds null comes back as null, where nulls may be.
"""

from __future__ import annotations

import base64
import decimal
import functools
import json
import operator
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from mds_core.json_text import json_texts

Fix = Callable[[Any], Any]

# Kept as numbers.
TIMES: tuple[type[T.DataType], ...] = (T.DateType, T.TimestampType, T.TimestampNTZType, T.DayTimeIntervalType)
if hasattr(T, "TimeType"):  # since Spark 4.1
    TIMES += (T.TimeType,)

_TEXT_OR_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|nan|inf')


def to_json(column: pa.Array) -> pa.Array:
    """Give a column's values as JSON text, a binary array without nulls."""
    return json_texts(column, _variant_texts).cast(pa.large_binary())


def _variant_texts(column: pa.Array) -> pa.Array | None:
    """Give the JSON texts of a column of variants; None for other columns."""
    if not pa.types.is_struct(column.type) or [field.name for field in column.type] != ["value", "metadata"]:
        return None
    if (column.type.field("metadata").metadata or {}).get(b"variant") != b"true":
        return None
    values = [None if v is None else _variant_text(v) for v in column.to_pylist()]
    return pa.array(values, pa.large_string())


def _variant_text(value: dict[str, bytes]) -> str:
    with decimal.localcontext(decimal.Context(prec=38)):  # PySpark multiplies, which else rounds to 28 digits
        text = T.VariantVal(value["value"], value["metadata"]).toJson()
    # PySpark writes a double that is no number as `nan` and `inf`, which no reader of JSON takes.
    return _TEXT_OR_WORD.sub(lambda found: {"nan": "NaN", "inf": "Infinity"}.get(found[0], found[0]), text)


def from_json(column: pa.Array, kind: T.DataType, target: pa.DataType, nullable: bool = True) -> pa.Array:
    """Give the values of a column of JSON text as an array of the Arrow type of a Spark type."""
    if isinstance(kind, T.VariantType):  # from its text itself: as a Python float, a decimal would lose digits
        texts = column.to_pylist()
        return pa.array([None if nullable and text == "null" else _variant(text) for text in texts], target)
    fix = _fix(kind, nullable)
    parse_float = _Float if "variant" in kind.simpleString() else None
    values = [json.loads(text, parse_float=parse_float) for text in column.to_pylist()]
    if fix is not None:
        values = [fix(value) for value in values]
    # Built as what it is at once: a cast would also parse the slots under null structs, which hold "".
    return pa.array(values, target)


def _fix(kind: T.DataType, nullable: bool) -> Fix | None:
    """Make the function from what JSON gives to what Arrow takes for a type; None where they are the same."""
    fix = _fix_value(kind)
    # JSON has one null: where Spark has none, it is that of a variant.
    if fix is None or (isinstance(kind, T.VariantType) and not nullable):
        return fix
    return lambda value: None if value is None else fix(value)


def _fix_value(kind: T.DataType) -> Fix | None:
    if isinstance(kind, T.BinaryType):
        return functools.partial(base64.b64decode, validate=True)
    if isinstance(kind, T.DecimalType):
        return decimal.Decimal
    if isinstance(kind, TIMES):
        return operator.index  # a fraction is no date: Arrow would cut it off
    if isinstance(kind, T.VariantType):
        return lambda value: _variant(_dumps(value))
    if isinstance(kind, T.StructType):
        fixes = {field.name: fix for field in kind.fields if (fix := _fix(field.dataType, field.nullable)) is not None}
        if not fixes:
            return None
        return lambda value: {k: fixes[k](v) if k in fixes else v for k, v in value.items()}
    if isinstance(kind, T.ArrayType):
        fix = _fix(kind.elementType, kind.containsNull)
        return None if fix is None else lambda value: [fix(v) for v in value]
    if isinstance(kind, T.MapType):
        of_key = _fix(kind.keyType, False) or _same
        of_value = _fix(kind.valueType, kind.valueContainsNull) or _same
        has_text_keys = isinstance(kind.keyType, T.StringType | T.CharType | T.VarcharType)
        return lambda value: [(of_key(k), of_value(v)) for k, v in (value.items() if has_text_keys else value)]
    return None


def _variant(text: str) -> dict[str, bytes]:
    variant = T.VariantVal.parseJson(text)
    return {"value": bytes(variant.value), "metadata": bytes(variant.metadata)}


class _Float(float):
    """A number that knows its text: as a variant's decimal, it has more digits than a float."""

    def __init__(self, text: str):
        self.text = text


def _dumps(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)}: {_dumps(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_dumps, value))}]"
    return value.text if isinstance(value, _Float) else json.dumps(value)


def _same(value: Any) -> Any:
    return value
