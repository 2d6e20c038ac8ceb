"""Tables of a catalog, which Spark does not let a Python data source have, and temporary views, which it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.mds_spark.rows import files

ADVICE = "CREATE TEMPORARY VIEW name USING mds"

MAKE: dict[str, Callable[[SparkSession, Path], Any]] = {
    "saveAsTable": lambda s, p: s.range(3).write.format("mds").option("path", str(p)).saveAsTable("t"),
    "saveAsTable, mode": lambda s, p: s.range(3).write.format("MDS").mode("append").saveAsTable("t", path=str(p)),
    "saveAsTable, format": lambda s, p: s.range(3).write.saveAsTable("t", "mds", path=str(p)),
    "writeTo": lambda s, p: s.range(3).writeTo("t").using("mds").option("path", str(p)).create(),
    "as select": lambda s, p: s.sql(f"CREATE TABLE t USING mds LOCATION '{p}' AS SELECT 1 a"),
    "options": lambda s, p: s.sql(f"CREATE TABLE t USING mds OPTIONS (path '{p}')"),
    "location": lambda s, p: s.sql(f"CREATE TABLE t USING mds LOCATION '{p}'"),
    "createTable": lambda s, p: s.catalog.createTable("t", str(p), "mds"),
}


@pytest.mark.parametrize("way", MAKE)
def test_a_table_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path, way: str) -> None:
    with pytest.raises(Exception, match="MDS") as caught:
        MAKE[way](spark, tmp_path / "data")
    assert ADVICE in str(caught.value)
    assert files(tmp_path) == set()
    assert not spark.catalog.tableExists("t")


def test_a_table_that_spark_made_unasked_says_what_to_do_instead(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE asked_nobody (id long) USING mds LOCATION '{tmp_path}'")
    try:
        for sql in ("SELECT * FROM asked_nobody", "INSERT INTO asked_nobody VALUES (1)"):
            with pytest.raises(Exception, match=f"the path is missing.*{ADVICE}"):
                spark.sql(sql).collect()
    finally:
        spark.sql("DROP TABLE asked_nobody")


def test_a_temporary_view_reads_and_appends(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(2).write.format("mds").save(str(tmp_path / "data"))
    spark.sql(f"CREATE TEMPORARY VIEW mds_view USING mds OPTIONS (path '{tmp_path / 'data'}')")
    spark.sql("INSERT INTO mds_view VALUES (7)")
    assert [row.id for row in spark.sql("SELECT * FROM mds_view").collect()] == [0, 1, 7]


def test_other_formats_keep_their_tables(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(2).write.format("parquet").option("path", str(tmp_path / "a")).saveAsTable("table_a")
    spark.range(2).writeTo("table_b").using("parquet").create()
    try:
        assert spark.table("table_a").count() == spark.table("table_b").count() == 2
    finally:
        spark.sql("DROP TABLE table_a")
        spark.sql("DROP TABLE table_b")
