"""The type table, both ways: Spark gives back what it wrote, every type's edge values included."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
import tempfile
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.mds_spark.rows import plain, rows

HAS_TIME = hasattr(T, "TimeType")
EPOCH = dt.datetime(1970, 1, 1)


def integers(bits: int) -> st.SearchStrategy[int]:
    edges = [-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]
    return st.sampled_from(edges) | st.integers(edges[0], edges[-1])


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**precision - 1
    unscaled = st.sampled_from([-largest, -1, 0, 1, 10**scale % (largest + 1), largest]) | st.integers(
        -largest, largest
    )
    return unscaled.map(lambda value: Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale)))


FLOATS = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, 0.1])
DOUBLES = FLOATS | st.floats()
SINGLES = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 2.0**-149, 3.4028234663852886e38])
SINGLES |= st.floats(width=32)
TEXT = st.sampled_from(["", "\0", 'a"b\\', "🙂𝄞", "e\u0301", "\u2028\ufeff", " \t\n", "null", "x" * 300])
TEXT |= st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BINARY = st.sampled_from([b"", b"\0", b"\xff\xfe", bytes(range(256))]) | st.binary(max_size=20)
DATES = st.sampled_from([dt.date.min, dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(1582, 10, 15), dt.date.max])
DATES |= st.dates()
TIMESTAMPS = st.sampled_from([dt.datetime(1, 1, 3), EPOCH - dt.timedelta(microseconds=1), dt.datetime(9999, 12, 29)])
TIMESTAMPS |= st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29))
INTERVALS = st.sampled_from([dt.timedelta(0), dt.timedelta(microseconds=-1), dt.timedelta(days=-106_751_991)])
INTERVALS |= st.timedeltas(dt.timedelta(days=-106_751_990), dt.timedelta(days=106_751_990))
TIMES = st.sampled_from([dt.time.min, dt.time.max, dt.time(12)]) | st.times()
BOOLEANS = st.booleans()
VECTORS = st.lists(DOUBLES, max_size=4).map(Vectors.dense) | st.tuples(
    st.dictionaries(st.integers(0, 6), DOUBLES, max_size=4), st.integers(7, 9)
).map(lambda drawn: Vectors.sparse(drawn[1], drawn[0]))
VARIANTS = st.recursive(
    st.none() | BOOLEANS | integers(64) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
).map(json.dumps)
# JSON has one null: a variant that holds null comes back as no variant.
VARIANTS = VARIANTS.filter(lambda text: text != "null")


def lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=4)


def optional(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | items


# Column name: Spark's type, and its values. A variant is drawn as JSON text.
SIMPLE: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "byte": ("byte", integers(8)),
    "short": ("short", integers(16)),
    "int": ("int", integers(32)),
    "long": ("long", integers(64)),
    "float": ("float", SINGLES),
    "double": ("double", DOUBLES),
    "boolean": ("boolean", BOOLEANS),
    "string": ("string", TEXT),
    "binary": ("binary", BINARY),
    "decimal_1_0": ("decimal(1,0)", decimals(1, 0)),
    "decimal_10_2": ("decimal(10,2)", decimals(10, 2)),
    "decimal_38_0": ("decimal(38,0)", decimals(38, 0)),
    "decimal_38_38": ("decimal(38,38)", decimals(38, 38)),
    "decimal_38_18": ("decimal(38,18)", decimals(38, 18)),
    "date": ("date", DATES),
    "timestamp": ("timestamp", TIMESTAMPS),
    "timestamp_ntz": ("timestamp_ntz", TIMESTAMPS),
    "day_time": ("interval day to second", INTERVALS),
}
ARRAYS = {
    f"array_{name}": (f"array<{name}>", lists(SIMPLE[name][1]))
    for name in ("byte", "short", "int", "long", "float", "double", "boolean")
}
NESTED: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    **{
        f"array_{name}": (f"array<{SIMPLE[name][0]}>", optional(lists(optional(SIMPLE[name][1]))))
        for name in ("string", "binary", "decimal_38_18", "date", "timestamp", "timestamp_ntz", "day_time")
    },
    "array_array_double": ("array<array<double>>", optional(lists(optional(lists(optional(DOUBLES)))))),
    "struct": (
        "struct<a: long, b: binary, `c d`: date, f: float, n: void, bool: boolean>",
        optional(st.tuples(*map(optional, [integers(64), BINARY, DATES, SINGLES, st.none(), BOOLEANS]))),
    ),
    "array_struct": (
        "array<struct<m: map<string, decimal(38,38)>, t: timestamp>>",
        lists(optional(st.tuples(st.dictionaries(TEXT, optional(decimals(38, 38)), max_size=2), optional(TIMESTAMPS)))),
    ),
    "map_string_array_struct": (
        "map<string, array<struct<x: short, s: string, v: day-time-interval>>>".replace(
            "day-time-interval", "interval day to second"
        ),
        optional(
            st.dictionaries(TEXT, optional(lists(optional(st.tuples(integers(16), TEXT, INTERVALS)))), max_size=3)
        ),
    ),
    "map_long_string": ("map<long, string>", st.dictionaries(integers(64), optional(TEXT), max_size=3)),
    "map_date_binary": ("map<date, binary>", st.dictionaries(DATES, optional(BINARY), max_size=3)),
    "map_binary_double": ("map<binary, double>", st.dictionaries(BINARY, DOUBLES, max_size=3)),
    "map_struct_int": (
        "map<struct<a: int, b: date>, int>",
        st.dictionaries(st.tuples(integers(32), DATES), optional(integers(32)), max_size=3),
    ),
}
if HAS_TIME:
    SIMPLE["time"] = ("time(6)", TIMES)
    NESTED["array_time"] = ("array<time(6)>", lists(optional(TIMES)))
LEAVES = ["decimal_10_2", "decimal_38_38", "date", "timestamp", "day_time", "binary", "string", "long", "boolean"]


def tables(columns: dict[str, tuple[str, st.SearchStrategy[Any]]]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(st.tuples(*(values for _, values in columns.values())), min_size=1, max_size=40)


def nested(depth: int) -> st.SearchStrategy[tuple[str, st.SearchStrategy[Any]]]:
    """Types of at most some depth, each with its values: nulls wherever Spark has them."""
    leaves = st.sampled_from([SIMPLE[name] for name in LEAVES])
    if depth == 0:
        return leaves
    inner = leaves | nested(depth - 1)
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda fields: (
            f"struct<{', '.join(f'f{i}: {kind}' for i, (kind, _) in enumerate(fields))}>",
            st.tuples(*(optional(values) for _, values in fields)),
        )
    )
    arrays = inner.map(lambda drawn: (f"array<{drawn[0]}>", st.lists(optional(drawn[1]), max_size=3)))
    maps = st.tuples(st.sampled_from([SIMPLE["string"], SIMPLE["date"], SIMPLE["decimal_10_2"]]), inner).map(
        lambda drawn: (
            f"map<{drawn[0][0]}, {drawn[1][0]}>",
            st.dictionaries(drawn[0][1], optional(drawn[1][1]), max_size=2),
        )
    )
    return structs | arrays | maps


def schema_of(columns: dict[str, tuple[str, Any]]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, (kind, _) in columns.items())


def there_and_back(df: DataFrame, **options: str) -> DataFrame:
    """Write a DataFrame and read it; the caller collects before the folder is gone."""
    folder = tempfile.mkdtemp()
    df.write.format("mds").mode("overwrite").options(**options).save(folder)
    return df.sparkSession.read.format("mds").load(folder)


def assert_same_back(df: DataFrame) -> None:
    back = there_and_back(df)
    assert back.schema == df.schema
    for found, expected in itertools.zip_longest(rows(back), rows(df)):
        for name, a, b in zip(df.columns, found, expected, strict=True):
            assert a == b, name


# Each example is a Spark job; shrinking a failure would take minutes.
FEW = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@given(table=tables({**SIMPLE, **ARRAYS}))
@FEW
def test_simple_types_and_arrays_of_numbers_come_back(spark: SparkSession, table: list[Any]) -> None:
    assert_same_back(spark.createDataFrame(table, schema_of({**SIMPLE, **ARRAYS})))


@given(table=tables(NESTED))
@FEW
def test_nested_types_come_back_with_their_nulls(spark: SparkSession, table: list[Any]) -> None:
    assert_same_back(spark.createDataFrame(table, schema_of(NESTED)))


@given(data=st.data())
@FEW
def test_random_nested_types_come_back_with_nulls_at_any_depth(spark: SparkSession, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(nested(3), min_size=6, max_size=6))
    columns = {
        f"c{i}": (f"struct<x: {kind}>", optional(st.tuples(optional(values)))) for i, (kind, values) in enumerate(drawn)
    }
    assert_same_back(spark.createDataFrame(data.draw(tables(columns)), schema_of(columns)))


def test_null_structs_of_any_field_come_back(spark: SparkSession) -> None:
    every = ", ".join(f"`{name}`: {kind}" for name, (kind, _) in {**SIMPLE, **NESTED}.items())
    schema = f"s struct<{every}>, a array<struct<{every}>>, m map<int, struct<{every}>>, n struct<x: struct<{every}>>"
    assert_same_back(spark.createDataFrame([(None, [None], {1: None}, (None,)), (None, None, None, None)], schema))


@given(table=st.lists(st.tuples(VECTORS, VECTORS, VARIANTS, st.none() | VARIANTS), min_size=1, max_size=40))
@FEW
def test_vectors_and_variants_come_back(spark: SparkSession, table: list[Any]) -> None:
    schema = T.StructType(
        [
            T.StructField("vector", VectorUDT()),
            T.StructField("vector2", VectorUDT()),
            T.StructField("variant", T.StringType()),
            T.StructField("variant_or_null", T.StringType()),
        ]
    )
    df = spark.createDataFrame(table, schema)
    for name in ("variant", "variant_or_null"):
        df = df.withColumn(name, F.parse_json(name))
    assert_same_back(df.withColumn("nested", F.array(F.struct("variant", "variant_or_null"))))


def test_a_variant_that_holds_null_comes_back_as_null_where_nulls_may_be(spark: SparkSession) -> None:
    df = spark.sql(
        "SELECT parse_json('null') sure, parse_json('[null]') w, parse_json(j) open FROM VALUES ('null') t(j)"
    )
    assert not df.schema["sure"].nullable
    ((sure, inside, may_be),) = rows(there_and_back(df))
    assert sure == ("variant", None)
    assert inside == ("variant", [None])
    assert may_be in (None, ("variant", None))


def test_variants_keep_all_digits_of_decimals_at_any_depth(spark: SparkSession) -> None:
    texts = [f"{'1234567890' * 4:.{n}}" for n in range(1, 39)] + [f"-0.{'1234567890' * 4:.{n}}" for n in range(1, 39)]
    texts += ["1234567890123456789.12", "99999999999999999999.999999999999999999", "0.1", "5e-324", "1.7e308"]
    df = spark.createDataFrame([(text,) for text in texts], "t string").select(
        F.parse_json("t").alias("a"),
        F.parse_json(F.format_string('{"x": [%s]}', "t")).alias("b"),
        F.array(F.struct(F.map_from_arrays(F.array(F.lit("k")), F.array(F.parse_json("t"))))).alias("c"),
        F.struct(F.lit(0.1).alias("d"), F.parse_json(F.format_string('[{"y": %s}]', "t"))).alias("e"),
    )
    for found, expected in zip(there_and_back(df).collect(), df.collect(), strict=True):
        with decimal.localcontext(decimal.Context(prec=38)):
            assert plain(found) == plain(expected)


def test_variants_keep_what_is_no_number(spark: SparkSession) -> None:
    df = spark.sql(
        "SELECT CAST(double('NaN') AS variant) b, to_variant_object(array(double('inf'), double('-inf'))) c, "
        "array(CAST(double('NaN') AS variant)) d"
    )
    (row,) = there_and_back(df).collect()
    assert [variant.toJson() for variant in (row.b, row.c, row.d[0])] == ["nan", "[inf,-inf]", "nan"]


def test_char_and_varchar_come_back_as_text(spark: SparkSession) -> None:
    assert_same_back(spark.sql("SELECT CAST('ab' AS CHAR(3)) c, CAST('ab' AS VARCHAR(3)) v"))


def test_schemas_keep_comments_and_where_nulls_may_be(spark: SparkSession) -> None:
    kind = T.ArrayType(T.StructType([T.StructField("x", T.DateType(), False)]), False)
    fields = [T.StructField("a", T.LongType(), True, {"comment": "of a"}), T.StructField("b", kind)]
    assert there_and_back(spark.createDataFrame([(1, [])], T.StructType(fields))).schema == T.StructType(fields)
