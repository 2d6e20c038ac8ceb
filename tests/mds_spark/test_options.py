"""The options of a write, columns of every name and number, and all that is refused before a row moves."""

from __future__ import annotations

import datetime
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import AnalysisException
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mds_core import MDSReader, MDSWriter, merge_index
from tests.mds_spark.rows import assert_nothing_left_over, contents, files, index, named, rows


def save(df: DataFrame, path: Path | str, mode: str = "errorifexists", **options: Any) -> None:
    df.write.format("mds").mode(mode).options(**options).save(str(path))


def load(spark: SparkSession, path: Path | str) -> DataFrame:
    return spark.read.format("mds").load(str(path))


def refused(df: DataFrame, path: Path, mode: str = "errorifexists", **options: Any) -> str:
    """Save, which must fail before a row moves and leave the path as it is; give the message."""
    before = contents(path)
    with pytest.raises(AnalysisException) as caught:
        save(df, path, mode, **options)
    assert contents(path) == before
    assert path.exists() == bool(before)
    return str(caught.value)


def test_all_mistakes_come_in_one_error(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("SELECT 1 a, null nothing, INTERVAL '1' YEAR years, 'x' text, struct(INTERVAL '1' MONTH m) deep")
    message = refused(
        df,
        tmp_path / "data",
        compresion="zstd",
        compression="zip:3",
        hashes="sha1,crc9",
        size_limit="many",
        nulls="keep",
        columns='{"b": "int64", "text": "int32", "a": "int1"}',
    )
    assert "can't write MDS; 11 mistakes:" in message
    assert "expected a dict" not in message
    for part in [
        "unknown option 'compresion'; expected path, compression, hashes, size_limit, columns, nulls",
        "zip",
        "crc9",
        "many",
        "option nulls: expected fail or drop, found 'keep'",
        "no column 'b' in the DataFrame",
        "column 'text', string: encoding int32 holds no string; its usual encoding is str",
        "column 'a', int: ",
        "column 'nothing', void: ",
        "column 'years', interval year: Spark hands no year-month intervals to Python; write months",
        "column 'deep', struct<m:interval month>: inside it, interval month",
    ]:
        assert part in message, part
    assert "__mds" not in message


def test_a_path_is_needed(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"the path is missing; expected save\(path\)"):
        spark.range(1).write.format("mds").save()
    with pytest.raises(AnalysisException, match=r"the path is missing; expected save\(path\), load\(path\)"):
        spark.read.format("mds").load()


@pytest.mark.parametrize("path", ["ftp://bucket/data", "xyz://bucket/data", "dbfs:/data"])
def test_a_store_without_a_backend_is_named(spark: SparkSession, path: str) -> None:
    with pytest.raises(AnalysisException, match=f"no storage backend for '{path}'"):
        spark.range(1).write.format("mds").save(path)
    with pytest.raises(AnalysisException, match=f"no storage backend for '{path}'"):
        spark.read.format("mds").load(path)


def test_relative_and_file_paths(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relative = os.path.relpath(tmp_path / "relative")  # to the driver's folder, which is the tests', too
    save(spark.range(3), relative)
    assert load(spark, relative).count() == load(spark, tmp_path / "relative").count() == 3
    for i, scheme in enumerate(["file://", "file:"]):
        save(spark.range(3), f"{scheme}{tmp_path}/file {i}")
        assert_nothing_left_over(tmp_path / f"file {i}")
        assert load(spark, f"{scheme}{tmp_path}/file {i}").count() == 3


@pytest.mark.parametrize(
    ("limit", "expected"), [("64kb", 64 << 10), ("100000", 100_000), ("1mb", 1 << 20), ("none", None), (None, 1 << 26)]
)
def test_size_limit(spark: SparkSession, tmp_path: Path, limit: str | None, expected: int | None) -> None:
    df = spark.range(0, 300, 1, 1).select("id", F.repeat(F.lit("x"), 1000).alias("text"))
    save(df, tmp_path / "data", **({} if limit is None else {"size_limit": limit}))
    shards = index(tmp_path / "data")["shards"]
    sizes = [shard["raw_data"]["bytes"] for shard in shards]
    assert {shard["size_limit"] for shard in shards} == {expected}
    if expected is not None and expected < 1 << 20:
        assert len(sizes) > 2
        assert max(sizes) <= expected
        assert min(sizes[:-1]) > expected - 2000, "shards are full"
    else:
        assert len(sizes) == 1
    assert load(spark, tmp_path / "data").count() == 300


@pytest.mark.parametrize(
    ("hashes", "compression"), [("sha1,xxh64", "zstd:3"), ('["xxh64", "sha1"]', "none"), (" xxh64 , sha1 ", "lz4")]
)
def test_hashes_and_compression(spark: SparkSession, tmp_path: Path, hashes: str, compression: str) -> None:
    save(spark.range(100), tmp_path / "data", hashes=hashes, compression=compression)
    (shard, *_) = index(tmp_path / "data")["shards"]
    assert shard["hashes"] == ["sha1", "xxh64"]
    assert shard["compression"] == (None if compression == "none" else compression)
    assert (shard["zip_data"] is None) == (compression == "none")
    back = spark.read.format("mds").option("validate_hash", "sha1").load(str(tmp_path / "data"))
    assert sorted(row.id for row in back.collect()) == list(range(100))
    assert_nothing_left_over(tmp_path / "data")


def image(kind: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(buffer, kind)
    return buffer.getvalue()


def test_columns_get_other_encodings(spark: SparkSession, tmp_path: Path) -> None:
    png, jpeg = image("png"), image("jpeg")
    nested = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    flat = [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]
    df = spark.createDataFrame(
        [(png, jpeg, nested, flat, [7, 8], 9, 2.5, Vectors.sparse(3, {1: 4.0}), {"k": 1}, 1)],
        _schema(),
    )
    chosen = {
        "png": "png",
        "jpeg": "jpeg",
        "nested": "ndarray:float32:3,2",
        "flat": "ndarray:float32:3,2",
        "ints": "ndarray",
        "int": "int64",
        "double": "str_float",
        "vector": "ndarray:float32:3",
        "map": "json",
        "short": "str_int",
    }
    save(df, tmp_path / "data", columns=json.dumps(chosen))
    (shard,) = index(tmp_path / "data")["shards"]
    assert dict(zip(shard["column_names"], shard["column_encodings"], strict=True)) == chosen
    (sample,) = list(MDSReader(str(tmp_path / "data")))
    assert sample["png"].size == sample["jpeg"].size == (4, 4)
    np.testing.assert_array_equal(sample["nested"], np.array(nested, np.float32))
    np.testing.assert_array_equal(sample["flat"], np.array(flat, np.float32).reshape(3, 2))
    np.testing.assert_array_equal(sample["ints"], np.array([7, 8], np.int64))
    np.testing.assert_array_equal(sample["vector"], np.array([0, 4, 0], np.float32))
    assert sample["ints"].dtype == np.int64
    assert sample["vector"].dtype == sample["flat"].dtype == np.float32
    assert (sample["int"], sample["double"], sample["map"], sample["short"]) == (9, 2.5, {"k": 1}, 1)
    back = load(spark, tmp_path / "data")
    assert back.schema == df.schema
    (row,) = back.collect()
    assert bytes(row.png) == png
    assert rows(back.drop("vector")) == rows(df.drop("vector"))


def _schema() -> T.StructType:
    return T.StructType(
        [
            T.StructField("png", T.BinaryType()),
            T.StructField("jpeg", T.BinaryType()),
            T.StructField("nested", T.ArrayType(T.ArrayType(T.DoubleType()))),
            T.StructField("flat", T.ArrayType(T.FloatType())),
            T.StructField("ints", T.ArrayType(T.LongType())),
            T.StructField("int", T.IntegerType()),
            T.StructField("double", T.DoubleType()),
            T.StructField("vector", VectorUDT()),
            T.StructField("map", T.MapType(T.StringType(), T.IntegerType())),
            T.StructField("short", T.ShortType()),
        ]
    )


NUMBERS = ["int", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))]
FLOATS = ["float16", "float32", "float64"]
FITTING = {
    "CAST(5 AS BYTE)": [*NUMBERS, *FLOATS, "str_int", "json"],
    "5": [*NUMBERS, *FLOATS, "str_int", "json"],
    "1.5F": [*FLOATS, "str_float", "json"],
    "1.5D": [*FLOATS, "str_float", "json"],
    "true": [*NUMBERS, *FLOATS, "str_int", "json"],
    "'null'": ["str", "json"],
    "CAST(5 AS DECIMAL(3, 0))": [*NUMBERS, *FLOATS, "str_decimal", "json"],
    "1.50": [*FLOATS, "str_decimal", "json"],
    "DATE '1970-01-06'": [*NUMBERS, *FLOATS, "str_int", "json"],
    "TIMESTAMP '1970-01-01 00:00:00.000005'": [*NUMBERS, *FLOATS, "str_int", "json"],
    "TIMESTAMP_NTZ '1970-01-01 00:00:00.000005'": [*NUMBERS, *FLOATS, "str_int", "json"],
    "INTERVAL '0 00:00:00.000005' DAY TO SECOND": [*NUMBERS, *FLOATS, "str_int", "json"],
    "x'ff00'": ["bytes", "str_int", "jpeg", "ndarray:int32"],
    "array(1, 2, 3, 4, 5, 6)": ["json", *(f"ndarray{x}" for x in ("", ":uint8", ":float32:6", ":int8:3,2"))],
    "array(true, false)": ["json", "ndarray", "ndarray:int64", "ndarray:float16:1,2"],
    "array(array(1D, 2D), array(3D, 4D))": ["json", "ndarray", "ndarray:float32", "ndarray:uint8:2,2"],
    "named_struct('a', 1)": ["json"],
}


def test_every_encoding_that_fits_a_type_comes_back_as_that_type(spark: SparkSession, tmp_path: Path) -> None:
    pairs = [(sql, encoding) for sql, encodings in FITTING.items() for encoding in encodings]
    df = spark.range(1).select(*[F.expr(sql).alias(f"{i} {encoding}") for i, (sql, encoding) in enumerate(pairs)])
    columns = {f"{i} {encoding}": encoding for i, (_, encoding) in enumerate(pairs)}
    save(df, tmp_path / "data", columns=json.dumps(columns))
    back = load(spark, tmp_path / "data")
    assert back.schema.simpleString() == df.schema.simpleString()  # the optimizer makes a column less nullable
    (found,), (expected,) = rows(back), rows(df)
    for pair, a, b in zip(pairs, found, expected, strict=True):
        assert a == b, pair


@pytest.mark.parametrize(
    ("sql", "encoding", "part"),
    [
        ("'x'", "int64", "encoding int64 holds no string; its usual encoding is str"),
        ("'x'", "bytes", "encoding bytes holds no string"),
        ("1", "str", "encoding str holds no int"),
        ("1", "ndarray:int32:1", "encoding ndarray:int32:1 holds no int"),
        ("array('x')", "ndarray:int32", "encoding ndarray:int32 holds no array<string>"),
        ("map('k', 1)", "ndarray:int32", "holds no map<string,int>"),
        ("x'00'", "json", "json holds no binary"),
        ("array(1)", "ndarray:int33", "int33"),
        ("array(1)", "int64", "encoding int64 holds no array<int>"),
        ("1", "pickle", "pickle"),
    ],
)
def test_an_encoding_that_does_not_fit_is_refused_early(
    spark: SparkSession, tmp_path: Path, sql: str, encoding: str, part: str
) -> None:
    message = refused(spark.sql(f"SELECT {sql} a"), tmp_path / "data", columns=json.dumps({"a": encoding}))
    assert "column 'a'" in message
    assert part in message


def test_columns_as_a_dict_are_told_to_be_json(spark: SparkSession, tmp_path: Path) -> None:
    message = refused(spark.sql("SELECT 1 a"), tmp_path / "data", columns={"a": "int64"})
    assert 'expected JSON text, as of json.dumps({"image": "jpeg"}), found "{\'a\': \'int64\'}"' in message


@pytest.mark.parametrize("columns", ["{", "[]", '{"a": 1}', '"int64"'])
def test_columns_that_are_no_json_object_of_texts_are_refused(
    spark: SparkSession, tmp_path: Path, columns: str
) -> None:
    message = refused(spark.sql("SELECT 1 a"), tmp_path / "data", columns=columns)
    assert "option columns: expected" in message
    assert columns in message


@pytest.mark.parametrize(
    ("fits", "wrong", "encoding", "part"),
    [
        ("1", "300", "int8", "300"),
        ("1", "-5", "uint16", "-5"),
        ("1D", "1e300D", "float32", "1e+300"),
        ("array(1, 2)", "array(1, 2, 3)", "ndarray:int32:2", "column 'a'"),
        ("array(array(1))", "array(array(1), array(2, 3))", "ndarray:int32", "column 'a'"),
        ("array(1)", "array(70000)", "ndarray:int16", "70000"),
    ],
)
def test_a_value_that_its_encoding_cannot_hold_fails_the_write(
    spark: SparkSession, tmp_path: Path, fits: str, wrong: str, encoding: str, part: str
) -> None:
    df = spark.range(0, 2, 1, 1).selectExpr(f"IF(id = 1, {wrong}, {fits}) a")
    with pytest.raises(Exception, match="row 1 of partition 0") as caught:
        save(df, tmp_path / "data", columns=json.dumps({"a": encoding}))
    assert part in str(caught.value)
    assert files(tmp_path / "data") == set()


NULLS = """
SELECT * FROM VALUES
    (0, 'a', array(1), named_struct('x', 1)),
    (1, null, array(2), named_struct('x', null)),
    (2, 'b', array(3, null), null),
    (3, 'c', null, null),
    (4, 'd', array(), named_struct('x', 4)) AS t(i, s, n, j)
"""


def test_nulls_fail_by_default_and_the_columns_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="a null has no place in MDS") as caught:
        save(spark.sql(NULLS).coalesce(1), tmp_path / "data")
    message = str(caught.value)
    assert "column 'n' holds 2" in message
    assert "column 's' holds 1" in message
    assert "column 'j'" not in message
    assert "write with option nulls=drop" in message
    assert files(tmp_path / "data") == set()


@pytest.mark.parametrize("partitions", [1, 3])
def test_nulls_drop_leaves_such_rows_out(spark: SparkSession, tmp_path: Path, partitions: int) -> None:
    save(spark.sql(NULLS).repartition(partitions), tmp_path / "data", nulls="drop")
    found = sorted((row.i, row.s, row.n, row.j) for row in load(spark, tmp_path / "data").collect())
    assert found == [(0, "a", [1], (1,)), (4, "d", [], (4,))]


def test_nulls_drop_may_leave_no_row(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("SELECT CAST(null AS STRING) s, 1 a FROM range(10)")
    save(df, tmp_path / "data", nulls="drop")
    back = load(spark, tmp_path / "data")
    assert back.collect() == []
    assert back.schema == df.schema
    assert files(tmp_path / "data") == {"index.json"}


@pytest.mark.parametrize("nulls", ["fail", "drop"])
def test_a_null_vector_is_a_null(spark: SparkSession, tmp_path: Path, nulls: str) -> None:
    schema = T.StructType([T.StructField("i", T.IntegerType()), T.StructField("v", VectorUDT())])
    df = spark.createDataFrame([(0, Vectors.dense(1.0)), (1, None), (2, Vectors.sparse(2, {0: 1.0}))], schema)
    if nulls == "fail":
        with pytest.raises(Exception, match="column 'v' holds 1"):
            save(df, tmp_path / "data")
    else:
        save(df, tmp_path / "data", nulls="drop")
        found = {row.i: row.v.toArray().tolist() for row in load(spark, tmp_path / "data").collect()}
        assert found == {0: [1.0], 2: [1.0, 0.0]}


def test_columns_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a.b", "with space", "it's", 'a "quote"', "back`tick", "ünï 🙂", "back\\slash", "0", "ID", "id", "Z", "_"]
    df = spark.createDataFrame([tuple(range(len(names))), tuple(range(50, 50 + len(names)))], names).coalesce(1)
    save(df, tmp_path / "data", columns=json.dumps({"a.b": "int32", "ID": "str_int"}))
    back = load(spark, tmp_path / "data")
    assert back.columns == names
    assert rows(back) == rows(df)
    save(df, tmp_path / "data", "append", columns=json.dumps({"a.b": "int32", "ID": "str_int"}))
    assert rows(back.sparkSession.read.format("mds").load(str(tmp_path / "data"))) == rows(df) * 2


def test_columns_of_one_name_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException):
        save(spark.sql("SELECT 1 a, 2 a"), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_frame_without_columns_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="column"):
        save(spark.range(3).select(), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_three_hundred_columns(spark: SparkSession, tmp_path: Path) -> None:
    kinds = ["CAST(id AS INT)", "CAST(id AS STRING)", "array(id, id + {i})", "id / 7"]
    df = spark.range(0, 50, 1, 2).selectExpr(*[f"{kinds[i % 4].format(i=i)} AS c{i}" for i in range(300)])
    save(df, tmp_path / "data")
    back = load(spark, tmp_path / "data")
    assert back.columns == df.columns
    assert rows(back) == rows(df)


def test_large_arrow_types_are_written_and_read(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("SELECT id, 'text' s, x'0001' b, array('x', null) a, map('k', x'02') m FROM range(10)")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        save(df, tmp_path / "data")
        assert sorted(rows(load(spark, tmp_path / "data"))) == sorted(rows(df))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert sorted(rows(load(spark, tmp_path / "data"))) == sorted(rows(df))


def test_a_temporary_view_selects_and_inserts(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.range(3), tmp_path / "data")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW mds_view USING mds OPTIONS (path '{tmp_path / 'data'}')")
    spark.sql("INSERT INTO mds_view SELECT 10L")
    assert sorted(row.id for row in load(spark, tmp_path / "data").collect()) == [0, 1, 2, 10]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW mds_view USING mds OPTIONS (path '{tmp_path / 'data'}')")
    assert spark.sql("SELECT sum(id) s FROM mds_view WHERE id > 1").first() == (12,)
    spark.catalog.dropTempView("mds_view")


def test_partition_by_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="partition"):
        spark.range(3).withColumn("k", F.lit(1)).write.format("mds").partitionBy("k").save(str(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_append_refuses_other_columns_and_names_each_difference(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.sql("SELECT 1 a, 'x' b, 2L c, DATE '2020-01-01' d"), tmp_path / "data")
    message = refused(spark.sql("SELECT 1L a, 'x' b, 3L e, 4 d"), tmp_path / "data", "append")
    assert "column 'c' is missing in the DataFrame" in message
    assert "column 'e' is not in the data set" in message
    assert "column 'a' is int32 in the data set and int64 in the DataFrame" in message
    assert "column 'b'" not in message


def test_arrays_and_maps_of_nothing_are_refused_and_those_of_nulls_are_not(spark: SparkSession, tmp_path: Path) -> None:
    nothing = ["array()", "map()", "array(array())", "struct(array() AS x)", "map('k', array())", "array(map())"]
    message = refused(spark.range(1).selectExpr(*[f"{sql} AS c{i}" for i, sql in enumerate(nothing)]), tmp_path / "no")
    assert f"{len(nothing)} mistakes" in message
    assert "column 'c0', array<void>: array<void> holds nothing; say what it could hold: CAST(array() AS" in message
    nulls = "SELECT array(null) a, map('k', null) m, array(struct(null AS n)) s, CAST(array() AS ARRAY<INT>) e"
    save(spark.sql(nulls), tmp_path / "data")
    assert load(spark, tmp_path / "data").collect() == [([None], {"k": None}, [(None,)], [])]


def test_append_refuses_another_spark_type_of_the_same_encoding(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.sql("SELECT 1 a, struct(1 AS x) s, 1.5 d, 'x' b"), tmp_path / "data")
    df = spark.sql("SELECT DATE '2020-01-01' a, struct('x' AS x) s, CAST(1 AS DECIMAL(9,3)) d, 'x' b")
    message = refused(df, tmp_path / "data", "append")
    assert "column 'a' is of Spark's type integer in the data set and date in the DataFrame" in message
    assert "column 's' is of Spark's type" in message
    assert "column 'd' is of Spark's type decimal(2,1) in the data set and decimal(9,3) in the DataFrame" in message
    assert "column 'b'" not in message


def test_append_takes_columns_in_another_order_and_other_nullability(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.sql("SELECT 1 a, 'x' b"), tmp_path / "data")
    save(spark.createDataFrame([("y", 2)], "b string, a int"), tmp_path / "data", "append")
    back = load(spark, tmp_path / "data")
    assert back.columns == ["a", "b"]
    assert back.collect() == [(1, "x"), (2, "y")]


def test_nulls_appended_to_a_column_that_had_none_come_back(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.sql("SELECT named_struct('x', 1, 'y', array('a')) s, 1 i"), tmp_path / "data")
    assert not load(spark, tmp_path / "data").schema["s"].nullable
    nulls = "(2, named_struct('x', null, 'y', array(null))), (3, null)"
    df = spark.sql(f"SELECT CAST(s AS STRUCT<x: INT, y: ARRAY<STRING>>) s, i FROM VALUES {nulls} t(i, s)").coalesce(1)
    save(df, tmp_path / "data", "append")
    back = load(spark, tmp_path / "data")
    assert back.schema["s"].nullable
    assert back.collect() == [((1, ["a"]), 1), ((None, [None]), 2), (None, 3)]


NEEDS_SCHEMA = {
    "DATE '2020-01-01'": "int32",
    "TIMESTAMP '2020-01-01 00:00:00'": "int64",
    "TIMESTAMP_NTZ '2020-01-01 00:00:00'": "int64",
    "INTERVAL '1' DAY": "int64",
    "true": "uint8",
    "array(true)": "ndarray:uint8",
    "array(DATE '2020-01-01')": "json",
    "struct(1.5 AS d)": "json",
    "map('k', x'00')": "json",
}


def test_append_without_sparks_types_refuses_what_only_they_would_tell(spark: SparkSession, tmp_path: Path) -> None:
    for i, (sql, encoding) in enumerate(NEEDS_SCHEMA.items()):
        MDSWriter(out=str(tmp_path / str(i)), columns={"x": encoding}).finish()
        message = refused(spark.sql(f"SELECT {sql} x"), tmp_path / str(i), "append")
        assert "it has none of Spark's types, so column 'x'" in message
        assert f"would be read as its encoding says, {encoding}; cast it" in message


def test_append_without_sparks_types_takes_what_encodings_tell(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("SELECT 1 i, 1.5D f, 'x' s, x'00' b, array(1, 2) a, 2.50 d, struct(1 AS x, 'y' AS y, true AS t) j")
    columns = {"i": "int32", "f": "float64", "s": "str", "b": "bytes", "a": "ndarray:int32", "d": "str_decimal"}
    MDSWriter(out=str(tmp_path / "data"), columns={**columns, "j": "json"}).finish()
    save(df, tmp_path / "data", "append")
    (row,) = load(spark, tmp_path / "data").select(*df.columns).collect()
    assert row == (1, 1.5, "x", b"\0", [1, 2], "2.50", '{"x": 1, "y": "y", "t": true}')


def test_merged_data_sets_read_as_appended_ones(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.sql("SELECT array(struct(1 AS x)) a, DATE '2020-01-01' d"), tmp_path / "m" / "0")
    nulls = "SELECT DATE '2020-01-02' d, CAST(array(null, struct(null)) AS ARRAY<STRUCT<x: INT>>) a"
    save(spark.sql(nulls), tmp_path / "m" / "1")
    merge_index(str(tmp_path / "m"))
    back = load(spark, tmp_path / "m")
    days = [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)]
    assert back.collect() == [([(1,)], days[0]), ([None, (None,)], days[1])]
    save(spark.sql("SELECT array(struct('1' AS x)) a, 7 d"), tmp_path / "m" / "2")
    with pytest.raises(ValueError, match=r"m/2: its Spark types are .*'integer'.*, those of .*m/ are .*'date'"):
        merge_index(str(tmp_path / "m"))


def test_append_with_another_compression_and_limit(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.range(0, 100, 1, 1), tmp_path / "data", compression="zstd", hashes="sha1")
    save(spark.range(100, 200, 1, 1), tmp_path / "data", "append", size_limit="1kb")
    assert [row.id for row in load(spark, tmp_path / "data").collect()] == list(range(200))


def test_an_empty_frame_makes_an_empty_data_set_with_its_schema(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([], "a int, b array<string>, c decimal(9,2)")
    for path, mode in [("a", "errorifexists"), ("b", "append"), ("c", "overwrite"), ("a", "overwrite")]:
        save(df, tmp_path / path, mode)
        back = load(spark, tmp_path / path)
        assert back.schema == df.schema
        assert back.collect() == []
        assert back.count() == 0
        assert files(tmp_path / path) == {"index.json"}


def test_append_to_an_empty_data_set(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.createDataFrame([], "a int, b string"), tmp_path / "data")
    message = refused(spark.sql("SELECT 1L a, 'x' b"), tmp_path / "data", "append")
    assert "column 'a' is int32 in the data set and int64 in the DataFrame" in message
    save(spark.sql("SELECT 1 a, 'x' b"), tmp_path / "data", "append")
    save(spark.createDataFrame([], "a int, b string"), tmp_path / "data", "append")
    assert load(spark, tmp_path / "data").collect() == [(1, "x")]


def test_overwrite_with_an_empty_frame_empties(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.range(10), tmp_path / "data")
    save(spark.range(0), tmp_path / "data", "overwrite")
    assert files(tmp_path / "data") == {"index.json"}
    assert load(spark, tmp_path / "data").count() == 0


def test_empty_partitions_make_no_shards(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.range(0, 100, 1, 8).where("id = 7 OR id = 93"), tmp_path / "data")
    assert len(named(tmp_path / "data")) == 2
    assert [row.id for row in load(spark, tmp_path / "data").collect()] == [7, 93]
    assert_nothing_left_over(tmp_path / "data")


def test_a_broken_index_is_not_written_over_by_append(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "index.json").write_text("{")
    assert "index.json: not JSON" in refused(spark.range(1), tmp_path / "data", "append")


def test_append_to_a_data_set_whose_schema_is_broken(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.range(1), tmp_path / "data")
    document = index(tmp_path / "data")
    for broken in [{"type": "struct"}, {"type": "struct", "fields": []}, 1]:
        document["mds_spark"]["schema"] = broken
        (tmp_path / "data" / "index.json").write_text(json.dumps(document))
        assert f"{tmp_path}/data: the schema in the index" in refused(spark.range(1), tmp_path / "data", "append")
