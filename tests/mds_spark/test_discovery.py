"""Spark finds `format("mds")` by itself where the package is installed, and only light modules are imported for it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.mds_spark.rows import assert_nothing_left_over, run_python

FOUND = """
import json, sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.sql.warehouse.dir", sys.argv[1] + "-warehouse").getOrCreate()
)
try:
    path, result = sys.argv[1], {}
    spark.range(0, 5, 1, 2).write.format("mds").mode("append").save(path)
    spark.range(5, 7, 1, 2).write.format("mds").mode("append").save(path)
    result["append"] = [row.id for row in spark.read.format("mds").load(path).collect()]
    spark.range(3).write.format("mds").mode("overwrite").save(path)
    result["overwrite"] = sorted(row.id for row in spark.read.format("mds").load(path).collect())
    try:
        spark.range(3).write.format("mds").save(path)
    except Exception as error:
        result["default"] = str(error)
    result["imported here"] = [name for name in sys.modules if name.startswith(("mds_", "pyspark_mds"))]
finally:
    spark.stop()
print(json.dumps(result))
"""


def test_the_format_is_found_without_register(java: None, tmp_path: Path) -> None:
    result = json.loads(run_python(FOUND, str(tmp_path / "data")).splitlines()[-1])
    assert result["append"] == [0, 1, 2, 3, 4, 5, 6]
    assert result["overwrite"] == [0, 1, 2]
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in result["default"], "this mode needs register()"
    assert result["imported here"] == []
    assert_nothing_left_over(tmp_path / "data")


def test_the_module_that_spark_imports_is_light() -> None:
    heavy = {"torch", "PIL", "pandas", "lz4", "zstandard", "mds_torch"}
    modules = run_python("import sys, pyspark_mds; print(*sys.modules)").split()
    assert heavy.intersection(modules) == set()


def test_the_module_offers_the_data_source() -> None:
    import pyspark_mds
    from mds_spark import MDSDataSource

    assert pyspark_mds.DefaultSource is MDSDataSource
    assert MDSDataSource.name() == "mds"
