"""Arrow columns of any type -> JSON text, whole columns at a time.

Structs are objects, lists lists, maps objects where their keys are text and else lists of [key, value], nulls null.
What JSON has no value for is stored as in a column of its own: dates are days, timestamps and durations microseconds,
times nanoseconds, decimals text; and binary is base64 text.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mds_core.errors import EncodeError

# From an array to its JSON texts, or None for a type that needs nothing special.
Special = Callable[[pa.Array], Any]


def json_texts(column: pa.Array, special: Special = lambda column: None) -> pa.Array:
    """Give each value's JSON text, as `json.dumps` writes it.

    Args:
        column: values of any type named above.
        special: asked first, for columns at any depth: their texts, or None.

    Returns:
        A large_string array without nulls.

    Raises:
        EncodeError: a type that has no JSON.
    """
    texts = special(column)
    if texts is None:
        texts = _texts(column, special)
    return pc.fill_null(texts.cast(pa.large_string()), "null")


def _texts(column: pa.Array, special: Special) -> pa.Array:
    kind = column.type
    if pa.types.is_struct(kind):
        return _if_valid(column, _struct(column, special))
    if pa.types.is_map(kind):
        return _if_valid(column, _map(column, special))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _if_valid(column, _joined("[", _lists(column, json_texts(column.flatten(), special)), "]"))
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_decimal(kind):
        return _joined('"', column.cast(pa.string()), '"')
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _each(column, encode_basestring_ascii)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _each(column, lambda value: f'"{base64.b64encode(value).decode()}"')
    whole = column.cast(plain_type(kind))
    if not pa.types.is_integer(whole.type):
        raise EncodeError(f"expected values that JSON has, found the Arrow type {kind}")
    return whole.cast(pa.string())


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Give an Arrow type with dates, times, decimals and binary, at any depth, replaced by what stands for them."""
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
    return field.with_type(plain_type(field.type))


def _joined(*parts: Any) -> pa.Array:
    texts = [
        pa.scalar(part, pa.large_string()) if isinstance(part, str) else part.cast(pa.large_string()) for part in parts
    ]
    return pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()))


def _if_valid(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts


def _each(column: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else text(value) for value in column.to_pylist()], pa.large_string())


def _floats(column: pa.Array) -> pa.Array:
    texts = _each(column.cast(pa.float64()), float.__repr__)  # Arrow spells some floats in another way
    return pc.replace_substring(pc.replace_substring(texts, "inf", "Infinity"), "nan", "NaN")


def _struct(column: pa.Array, special: Special) -> pa.Array:
    if not column.type.num_fields:
        return pa.array(["{}"] * len(column), pa.large_string())
    parts: list[Any] = []
    for i, field in enumerate(column.type):
        parts += [f"{', ' if i else '{'}{encode_basestring_ascii(field.name)}: ", json_texts(column.field(i), special)]
    return _joined(*parts, "}")


def _map(column: pa.Array, special: Special) -> pa.Array:
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    keys, items = (json_texts(part[first:last], special) for part in (column.keys, column.items))
    if pa.types.is_string(column.type.key_type) or pa.types.is_large_string(column.type.key_type):
        entries, opening, closing = _joined(keys, ": ", items), "{", "}"
    else:
        entries, opening, closing = _joined("[", keys, ", ", items, "]"), "[", "]"
    return _joined(opening, _comma_separated(pc.subtract(offsets, first), entries), closing)


def _lists(column: pa.Array, texts: pa.Array) -> pa.Array:
    counts = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
    ends = pc.cumulative_sum(counts)
    return _comma_separated(pa.concat_arrays([pa.array([0], pa.int64()), ends]), texts)


def _comma_separated(offsets: pa.Array, texts: pa.Array) -> pa.Array:
    lists = pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), texts)
    return pc.binary_join(lists, pa.scalar(", ", pa.large_string()))
