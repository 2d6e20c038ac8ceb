"""The save modes of `df.write`, on classic Spark and on Spark Connect, and other formats' writers left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

import mds_spark
from tests.mds_spark.rows import assert_nothing_left_over, contents, run_python

MESSAGE = "there is an MDS data set already; choose another path or the mode append, overwrite or ignore"


def frame(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "a long")


def values(spark: SparkSession, path: Path | str) -> list[int]:
    return [row.a for row in spark.read.format("mds").load(str(path)).collect()]


@pytest.fixture
def one(spark: SparkSession, tmp_path: Path) -> Path:
    """A data set that holds the row 1."""
    frame(spark, 1).write.format("mds").save(str(tmp_path / "one"))
    return tmp_path / "one"


def test_the_default_mode_writes_a_new_path(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "folders" / "not there yet"
    frame(spark, 3, 1, 2).write.format("mds").save(str(path))
    assert values(spark, path) == [3, 1, 2]
    assert_nothing_left_over(path)


@pytest.mark.parametrize("mode", [None, "error", "errorifexists", "default", "ErrorIfExists"])
def test_errorifexists_refuses_a_data_set_that_is_there_and_leaves_it(
    spark: SparkSession, one: Path, mode: str | None
) -> None:
    before = contents(one)
    writer = frame(spark, 2).write.format("mds")
    with pytest.raises(AnalysisException, match="MDS") as caught:
        (writer.mode(mode) if mode else writer).save(str(one))
    assert str(caught.value).removesuffix(" SQLSTATE: 38000").rstrip().endswith(f"{one}: {MESSAGE}")
    assert contents(one) == before
    assert_nothing_left_over(one)


def test_ignore_writes_a_new_path_and_leaves_one_that_is_there(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    frame(spark, 1).write.format("mds").mode("ignore").save(str(path))
    before = contents(path)
    frame(spark, 2).write.format("mds").mode("ignore").save(str(path))
    frame(spark, 2).write.format("mds").mode("ignore").option("path", str(path)).save()
    assert contents(path) == before
    assert values(spark, path) == [1]


def test_append_keeps_what_is_there_and_comes_after_it(spark: SparkSession, one: Path) -> None:
    before = contents(one)
    frame(spark, 3, 2).write.format("mds").mode("append").save(str(one))
    assert values(spark, one) == [1, 3, 2]
    assert before.items() - contents(one).items() == {("index.json", before["index.json"])}
    assert_nothing_left_over(one)


def test_append_makes_a_new_data_set(spark: SparkSession, tmp_path: Path) -> None:
    frame(spark, 1).write.format("mds").mode("append").save(str(tmp_path / "new"))
    assert values(spark, tmp_path / "new") == [1]


def test_overwrite_replaces_rows_and_columns(spark: SparkSession, one: Path) -> None:
    spark.createDataFrame([("x",)], "b string").write.format("mds").mode("overwrite").save(str(one))
    back = spark.read.format("mds").load(str(one))
    assert back.columns == ["b"]
    assert back.collect() == [("x",)]
    assert_nothing_left_over(one)


def test_overwrite_makes_a_new_data_set(spark: SparkSession, tmp_path: Path) -> None:
    frame(spark, 1).write.format("mds").mode("overwrite").save(str(tmp_path / "new"))
    assert values(spark, tmp_path / "new") == [1]


@pytest.mark.parametrize(
    ("mode", "expected"), [("append", [1, 2]), ("overwrite", [2]), ("ignore", [1]), ("errorifexists", None)]
)
@pytest.mark.parametrize("way", ["mode before format", "keywords", "positions", "upper case", "path as an option"])
def test_every_way_to_name_the_mode(
    spark: SparkSession, one: Path, way: str, mode: str, expected: list[int] | None
) -> None:
    def save() -> None:
        writer = frame(spark, 2).write
        if way == "mode before format":
            writer.mode(mode).format("mds").save(str(one))
        elif way == "keywords":
            writer.save(str(one), format="mds", mode=mode)
        elif way == "positions":
            writer.save(str(one), "mds", mode)
        elif way == "upper case":
            writer.format("MDS").mode(mode.upper()).save(str(one))
        else:
            writer.format("mds").mode(mode).option("path", str(one)).save()

    if expected is None:
        with pytest.raises(AnalysisException, match=MESSAGE):
            save()
    else:
        save()
    assert values(spark, one) == (expected or [1])


def test_the_mode_in_save_wins_over_an_earlier_one(spark: SparkSession, one: Path) -> None:
    frame(spark, 2).write.format("mds").mode("ignore").save(str(one), mode="append")
    assert values(spark, one) == [1, 2]
    with pytest.raises(AnalysisException, match=MESSAGE):
        frame(spark, 2).write.format("mds").mode("append").save(str(one), mode="error")


@pytest.mark.parametrize("mode", [None, "append", "overwrite", "ignore"])
def test_a_writer_is_used_for_two_paths(spark: SparkSession, tmp_path: Path, mode: str | None) -> None:
    writer = frame(spark, 1).write.format("mds")
    if mode:
        writer = writer.mode(mode)
    writer.save(str(tmp_path / "a"))
    writer.save(str(tmp_path / "b"))
    assert values(spark, tmp_path / "a") == values(spark, tmp_path / "b") == [1]
    if mode is None:
        with pytest.raises(AnalysisException, match=MESSAGE):
            writer.save(str(tmp_path / "a"))
        writer.mode("append").save(str(tmp_path / "a"))
        assert values(spark, tmp_path / "a") == [1, 1]


def test_a_writer_is_used_for_mds_and_then_for_parquet(spark: SparkSession, tmp_path: Path) -> None:
    writer = frame(spark, 1).write.format("mds")
    writer.save(str(tmp_path / "mds"))
    for _ in range(2):
        writer.format("parquet").mode("overwrite").save(str(tmp_path / "parquet"))
    assert spark.read.parquet(str(tmp_path / "parquet")).collect() == [(1,)]
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        writer.format("parquet").mode("error").save(str(tmp_path / "parquet"))


def test_a_mode_that_does_not_exist_is_sparks_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="replace") as caught:
        frame(spark, 1).write.format("mds").mode("replace").save(str(tmp_path / "a"))
    assert "mds_save_mode" not in str(caught.value)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["parquet", "json"])
def test_other_formats_keep_their_modes(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "other")

    def found() -> list[int]:
        return sorted(row.a for row in spark.read.format(name).load(path).collect())

    frame(spark, 1).write.format(name).save(path)
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        frame(spark, 2).write.format(name).save(path)
    frame(spark, 2).write.mode("ignore").format(name).save(path)
    assert found() == [1]
    frame(spark, 2).write.save(path, name, "append")
    assert found() == [1, 2]
    frame(spark, 3).write.save(path, format=name, mode="overwrite")
    assert found() == [3]
    getattr(frame(spark, 4).write, name)(path, mode="append")
    assert found() == [3, 4]


def test_sparks_default_format_and_noop_are_untouched(spark: SparkSession, tmp_path: Path) -> None:
    frame(spark, 1).write.save(str(tmp_path / "default"))
    assert spark.read.parquet(str(tmp_path / "default")).collect() == [(1,)]
    frame(spark, 1).write.format("noop").mode("overwrite").save()
    with pytest.raises(AnalysisException, match="noop"):  # it has no errorifexists, as before
        frame(spark, 1).write.format("noop").save()


def test_registering_twice_does_no_harm(spark: SparkSession, one: Path) -> None:
    wrapped = DataFrameWriter.save
    mds_spark.register(spark)
    mds_spark.register(spark)
    assert DataFrameWriter.save is wrapped
    frame(spark, 2).write.format("mds").mode("append").save(str(one))
    assert values(spark, one) == [1, 2]


def test_a_second_session_has_the_modes(spark: SparkSession, one: Path) -> None:
    other = spark.newSession()
    mds_spark.register(other)
    frame(other, 2).write.format("mds").mode("ignore").save(str(one))
    assert values(other, one) == [1]


CONNECT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import mds_spark

root = Path(sys.argv[1])
spark = (
    SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.sql.warehouse.dir", str(root / "warehouse")).getOrCreate()
)
result = {"module": type(spark).__module__}
try:
    mds_spark.register(spark)
    mds_spark.register(spark)

    def frame(*values):
        return spark.createDataFrame([(value,) for value in values], "a long")

    def values(path, **options):
        return [row.a for row in spark.read.format("mds").load(path).collect()]

    def message(call):
        try:
            call()
        except Exception as error:
            return str(error)

    path = str(root / "data")
    writer = frame(1).write.format("mds")
    writer.save(path)
    result["default, new"] = values(path)
    result["default, existing"] = message(lambda: writer.save(path))
    result["error, existing"] = message(lambda: frame(2).write.mode("error").format("mds").save(path))
    frame(2).write.format("mds").mode("ignore").save(path)
    frame(2).write.format("mds").option("path", path).mode("ignore").save()
    result["ignore"] = values(path)
    frame(3, 2).write.save(path, "mds", "append")
    result["append"] = values(path)
    frame(5, 4).write.save(path, format="mds", mode="overwrite")
    result["overwrite"] = values(path)
    other = str(root / "parquet")
    frame(1).write.format("parquet").save(other)
    result["parquet, existing"] = message(lambda: frame(2).write.format("parquet").save(other))
    frame(2).write.mode("append").parquet(other)
    result["parquet"] = sorted(row.a for row in spark.read.parquet(other).collect())
    result["many columns"] = [
        tuple(map(str, row)) for row in
        (lambda p: (spark.sql("SELECT 1Y b, DATE '2020-01-02' d, array(1, 2) n, map('k', x'00') m, 1.50 e")
            .write.format("mds").option("compression", "zstd").save(p), spark.read.format("mds").load(p))[1])
        (str(root / "types")).collect()
    ]
    result["option"] = message(lambda: frame(1).write.format("mds").option("nulls", "keep").save(str(root / "no")))
finally:
    spark.stop()
print(json.dumps(result))
"""


def test_spark_connect_has_the_modes_too(java: None, tmp_path: Path) -> None:
    environment = {"SPARK_CONNECT_MODE_ENABLED": ""} if "SPARK_CONNECT_MODE_ENABLED" in os.environ else {}
    result: dict[str, Any] = json.loads(run_python(CONNECT, str(tmp_path), **environment).splitlines()[-1])
    assert result["module"].startswith("pyspark.sql.connect")
    assert result["default, new"] == [1]
    assert MESSAGE in result["default, existing"]
    assert MESSAGE in result["error, existing"]
    assert result["ignore"] == [1]
    assert result["append"] == [1, 3, 2]
    assert result["overwrite"] == [5, 4]
    assert "PATH_ALREADY_EXISTS" in result["parquet, existing"]
    assert result["parquet"] == [1, 2]
    assert result["many columns"] == [["1", "2020-01-02", "[1, 2]", "{'k': b'\\x00'}", "1.50"]]
    assert "expected fail or drop, found 'keep'" in result["option"]
    assert_nothing_left_over(tmp_path / "data")
    assert not (tmp_path / "no").exists()
