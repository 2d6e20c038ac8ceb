"""Spark type <-> encoding, and Arrow columns between Spark's types and what the format stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from mds_core.encodings import Encoding, Json, get_encoding
from mds_core.errors import FormatError
from mds_core.index import Index
from mds_spark.json_columns import TIMES, from_json, to_json

_SIMPLE: dict[type[T.DataType], str] = {
    T.ByteType: "int8",
    T.ShortType: "int16",
    T.IntegerType: "int32",
    T.LongType: "int64",
    T.FloatType: "float32",
    T.DoubleType: "float64",
    T.BooleanType: "uint8",
    T.StringType: "str",
    T.CharType: "str",
    T.VarcharType: "str",
    T.BinaryType: "bytes",
    T.DecimalType: "str_decimal",
    T.DateType: "int32",
    T.TimestampType: "int64",
    T.TimestampNTZType: "int64",
    T.DayTimeIntervalType: "int64",
}
if hasattr(T, "TimeType"):  # since Spark 4.1: nanoseconds of the day
    _SIMPLE[T.TimeType] = "int64"

_NESTED = (T.StructType, T.MapType, T.ArrayType, T.VariantType)
_ELEMENTS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.BooleanType)
_TEXTS = (T.StringType, T.CharType, T.VarcharType)
_VECTORS = ("pyspark.ml.linalg", "pyspark.mllib.linalg")

# Spark has no unsigned numbers: the next larger type holds them.
_SPARK_OF_NUMBER: dict[str, T.DataType] = {
    "int": T.LongType(),
    "int8": T.ByteType(),
    "int16": T.ShortType(),
    "int32": T.IntegerType(),
    "int64": T.LongType(),
    "uint8": T.ShortType(),
    "uint16": T.IntegerType(),
    "uint32": T.LongType(),
    "uint64": T.DecimalType(20, 0),
    "float16": T.FloatType(),
    "float32": T.FloatType(),
    "float64": T.DoubleType(),
    "str_float": T.DoubleType(),
}
_AS_TEXT = ("str", "json", "str_int", "str_decimal")


def is_vector(kind: T.DataType) -> bool:
    """Tell whether a type is Spark ML's Vector."""
    return isinstance(kind, T.UserDefinedType) and type(kind).__name__ == "VectorUDT" and kind.module() in _VECTORS


def default_encoding(kind: T.DataType) -> str:
    """Give the encoding of a Spark type.

    Raises:
        ValueError: no encoding holds it; the message says what to do.
    """
    if is_vector(kind):
        return "ndarray:float64"
    if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, _ELEMENTS):
        return f"ndarray:{_SIMPLE[type(kind.elementType)]}"
    if isinstance(kind, _NESTED):
        _check_nested(kind)
        return "json"
    for simple, encoding in _SIMPLE.items():
        if isinstance(kind, simple):
            return encoding
    raise ValueError(_advice(kind))


def _advice(kind: T.DataType) -> str:
    if isinstance(kind, T.YearMonthIntervalType):
        return "Spark hands no year-month intervals to Python; write months: CAST(CAST(c AS INTERVAL MONTH) AS INT)"
    if isinstance(kind, T.NullType):
        return "a column of nothing but nulls; leave it out, or cast it to a type and fill it"
    return "no encoding holds it; cast it to a supported type, or leave it out"


def _check_nested(kind: T.DataType) -> None:
    """Refuse what JSON or Spark's Arrow channel can't carry inside a nested type."""
    if isinstance(kind, T.StructType):
        if len(set(kind.names)) < len(kind.names):
            raise ValueError(f"fields of one name inside a struct, {kind.names}; rename them")
        for field in kind.fields:
            _check_nested(field.dataType)
    elif isinstance(kind, T.ArrayType):
        _check_filled(kind, kind.elementType, kind.containsNull)
        _check_nested(kind.elementType)
    elif isinstance(kind, T.MapType):
        _check_filled(kind, kind.keyType, False)
        _check_nested(kind.keyType)
        _check_nested(kind.valueType)
    elif not isinstance(kind, (*_SIMPLE, T.VariantType, T.NullType)):
        raise ValueError(f"inside it, {kind.simpleString()}: {_advice(kind)}")


def _check_filled(kind: T.DataType, inner: T.DataType, nullable: bool) -> None:
    """Refuse the type of `array()` and `map()`: nothing may be in it, and Spark could not read it back."""
    if isinstance(inner, T.NullType) and not nullable:
        raise ValueError(f"{kind.simpleString()} holds nothing; say what it could hold: CAST(array() AS ARRAY<INT>)")


def check_encoding(kind: T.DataType, name: str) -> None:
    """Check that a column of a Spark type can have the encoding that the option `columns` gives it.

    Raises:
        ValueError: it can't; the message says what would do.
    """
    get_encoding(name)
    usual = default_encoding(kind)
    if isinstance(kind, T.BinaryType):
        if name == "json":
            raise ValueError("json holds no binary; choose bytes, or the encoding whose bytes the column holds")
        return  # bytes are stored as they are
    if name in ("json", usual):
        return
    if isinstance(kind, _TEXTS):
        fits = False
    elif isinstance(kind, T.ArrayType) or is_vector(kind):
        fits = name.startswith("ndarray") and isinstance(_innermost(kind), _ELEMENTS)
    elif isinstance(kind, _NESTED):
        fits = False
    else:
        number = get_encoding(name).size is not None and not name.startswith("ndarray")
        decimal = isinstance(kind, T.DecimalType)
        fits = number or name == ("str_decimal" if decimal else "str_float" if _is_float(kind) else "str_int")
    if not fits:
        raise ValueError(f"encoding {name} holds no {kind.simpleString()}; its usual encoding is {usual}")


def _is_float(kind: T.DataType) -> bool:
    return isinstance(kind, T.FloatType | T.DoubleType)


def _innermost(kind: T.DataType) -> T.DataType:
    while isinstance(kind, T.ArrayType):
        kind = kind.elementType
    return T.DoubleType() if is_vector(kind) else kind


def spark_type(encoding: str, arrays: pa.DataType | None) -> T.DataType:
    """Give the Spark type of a column that Spark did not write.

    Args:
        encoding: its name.
        arrays: for an ndarray, the Arrow type of its values; None if they have none in common.
    """
    if encoding in _SPARK_OF_NUMBER:
        return _SPARK_OF_NUMBER[encoding]
    if encoding in _AS_TEXT:
        return T.StringType()
    depth = 0
    while arrays is not None and _is_list(arrays):
        arrays, depth = arrays.value_type, depth + 1
    if arrays is None or not depth:
        return T.BinaryType()
    kind = _SPARK_OF_NUMBER[np.dtype(arrays.to_pandas_dtype()).name]
    for _ in range(depth):
        kind = T.ArrayType(kind, False)
    return kind


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Give the Arrow schema in which Spark takes rows of a Spark schema."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # before Spark 4.2
        return to_arrow_schema(schema)


def stored_column(column: pa.Array, kind: T.DataType, encoding: Encoding) -> pa.Array:
    """Turn a column that came from Spark into one that `columnar.encode_batch` encodes; binary is so already."""
    if isinstance(encoding, Json) and not isinstance(kind, T.BinaryType):
        return to_json(column)
    if is_vector(kind):
        return _dense(column)
    if isinstance(kind, TIMES):
        return column.cast(_number_of_time(kind))
    return column.cast(pa.uint8()) if isinstance(kind, T.BooleanType) else column


def spark_column(
    column: pa.Array,
    kind: T.DataType,
    encoding: Encoding,
    target: pa.DataType,
    nullable: bool = True,
    was_text: bool = False,
) -> pa.Array:
    """Turn a column that `columnar.decode_columns` gave into one of a Spark type.

    Args:
        column: the decoded column.
        kind: the Spark type.
        encoding: the column's encoding.
        target: the Arrow type of `kind`.
        nullable: nulls may be in the column.
        was_text: the column held text when Spark wrote it: its JSON is that of texts, not the text itself.
    """
    if isinstance(encoding, Json) and (was_text or not isinstance(kind, _TEXTS)):
        return from_json(column, kind, target, nullable)
    if is_vector(kind):
        return _vectors(_flattened(column, 1), target)
    if isinstance(kind, T.ArrayType):
        column = _flattened(column, _depth(target))
    # What Arrow casts only in two steps.
    if _has_float16(column.type):
        column = column.cast(_with_float32(column.type))
    if isinstance(kind, TIMES):
        column = column.cast(_number_of_time(kind))
    if isinstance(kind, T.DecimalType) and pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    return column.cast(target)


def _number_of_time(kind: T.DataType) -> pa.DataType:
    return pa.int32() if isinstance(kind, T.DateType) else pa.int64()


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _has_float16(kind: pa.DataType) -> bool:
    return _has_float16(kind.value_type) if _is_list(kind) else bool(pa.types.is_float16(kind))


def _with_float32(kind: pa.DataType) -> pa.DataType:
    return pa.list_(_with_float32(kind.value_type)) if _is_list(kind) else pa.float32()


def _depth(kind: pa.DataType) -> int:
    return 1 + _depth(kind.value_type) if _is_list(kind) else 0


def _flattened(column: pa.Array, depth: int) -> pa.Array:
    """Give lists as deep as Spark had them: a flat array may have been written with a shape of several dimensions."""
    while _depth(column.type) > depth:
        inner = column.values
        column = type(column).from_arrays(inner.offsets.take(column.offsets), inner.values)
    return column


def _dense(column: pa.Array) -> pa.Array:
    """Turn ML vectors, struct<type, size, indices, values>, sparse (type 0) or dense (1), into lists of all values."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    sparse = pc.equal(pc.struct_field(column, "type"), 0)
    values = pc.struct_field(column, "values")
    if not pc.any(sparse).as_py():
        return pc.if_else(column.is_valid(), values, None) if column.null_count else values
    lengths = pc.if_else(sparse, pc.struct_field(column, "size"), pc.list_value_length(values))
    lengths = pc.if_else(column.is_valid(), lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    flat = np.zeros(int(ends[-1]), np.float64)
    is_sparse = pc.fill_null(sparse, False).to_numpy(zero_copy_only=False)
    counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    # Where each stored value goes: its vector's start, plus its index, or for dense vectors its place.
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    place[np.repeat(is_sparse, counts)] = pc.struct_field(column, "indices").filter(sparse).flatten().to_numpy()
    flat[np.repeat(ends - lengths, counts) + place] = values.flatten().to_numpy()
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(offsets, pa.array(flat), mask=mask)


def _vectors(column: pa.Array, target: pa.DataType) -> pa.Array:
    rows = len(column)
    fields = {
        "type": pa.array([1] * rows, pa.int8()),
        "size": pa.nulls(rows, pa.int32()),
        "indices": pa.nulls(rows, pa.list_(pa.int32())),
        "values": column,
    }
    return pa.StructArray.from_arrays(
        [fields[target.field(i).name].cast(target.field(i).type) for i in range(target.num_fields)],
        fields=[target.field(i) for i in range(target.num_fields)],
    )


def _check_trusted(schema: Any) -> None:
    """Refuse a schema in JSON, from an untrusted index, that would import code: user-defined types but ML's Vector.

    Raises:
        ValueError: it names another class.
    """
    todo = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if value.get("type") == "udt" and value.get("pyClass") not in [f"{m}.VectorUDT" for m in _VECTORS]:
                raise ValueError(f"the schema in the index names a class to be imported, {value.get('pyClass')!r}")
            todo += value.values()
        elif isinstance(value, list):
            todo += value


def kept_schema(index: Index, path: str) -> T.StructType | None:
    """Give the schema that Spark left in an index; None if there is none.

    Raises:
        FormatError: it is broken, names a class to be imported, or is not that of the columns.
    """
    if "schema" not in index.own:
        return None
    try:
        _check_trusted(index.own["schema"])
        schema = T.StructType.fromJson(index.own["schema"])
    except Exception as error:
        raise FormatError(f"{path}: the schema in the index is broken: {error}") from None
    if sorted(schema.names) != sorted(index.columns):
        raise FormatError(f"{path}: the schema in the index has the columns {schema.names}, not {list(index.columns)}")
    return schema


def means_the_same(kept: T.DataType, wanted: T.DataType) -> bool:
    """Tell whether values that Spark wrote as one type can be read as another: a number's, a text's, or a part's."""
    if isinstance(kept, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return means_the_same(kept.elementType, wanted.elementType)
    if isinstance(kept, T.MapType) and isinstance(wanted, T.MapType):
        return means_the_same(kept.keyType, wanted.keyType) and means_the_same(kept.valueType, wanted.valueType)
    if isinstance(kept, T.StructType) and isinstance(wanted, T.StructType):
        return all(f.name in kept.names and means_the_same(kept[f.name].dataType, f.dataType) for f in wanted)
    return kept == wanted or any(
        isinstance(kept, group) and isinstance(wanted, group) for group in (T.NumericType, _TEXTS)
    )


def needs_schema(kind: T.DataType, encoding: str) -> bool:
    """Tell whether a type's values are stored as something else, so that only Spark's schema says what they are."""
    if isinstance(kind, T.StructType):
        return any(needs_schema(field.dataType, encoding) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return needs_schema(kind.elementType, encoding)
    if isinstance(kind, T.MapType):
        return needs_schema(kind.keyType, encoding) or needs_schema(kind.valueType, encoding)
    if encoding == "json":
        return isinstance(kind, (*TIMES, T.DecimalType, T.BinaryType))
    return isinstance(kind, (*TIMES, T.BooleanType))
