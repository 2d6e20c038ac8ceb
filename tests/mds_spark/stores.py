"""What the tests of all stores do with Spark."""

import json

from mds_core.storage import open_storage
from tests.mds_spark.rows import run_python

WRITE_AND_READ = """
import json, sys
from pyspark.sql import SparkSession
import mds_spark

spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .getOrCreate()
)
mds_spark.register(spark)
try:
    path, result = sys.argv[1], {}
    read = lambda: [row.id for row in spark.read.format("mds").load(path).collect()]
    spark.range(0, 50, 1, 3).write.format("mds").option("size_limit", "300").save(path)
    result["first"] = read()
    spark.range(50, 60, 1, 2).write.format("mds").mode("append").option("size_limit", "300").save(path)
    result["append"] = read()
    try:
        spark.range(1).write.format("mds").save(path)
    except Exception as error:
        result["again"] = str(error)
    spark.range(1).write.format("mds").mode("ignore").save(path)
    result["ignore"] = len(read())
    try:
        failing = spark.range(0, 100, 1, 4).selectExpr("if(id = 99, raise_error('no'), id) id")
        failing.write.format("mds").mode("append").save(path)
    except Exception as error:
        result["failed"] = "no" in str(error)
    result["after"] = len(read())
    spark.range(7).write.format("mds").mode("overwrite").option("compression", "zstd").save(path)
    result["overwrite"] = sorted(read())
finally:
    spark.stop()
print(json.dumps(result))
"""


def write_and_read(path: str, timeout: float = 150, **environment: str) -> list[str]:
    """Write to a path in all modes, once with an error, and check what is read each time; give the files at the end."""
    result = json.loads(run_python(WRITE_AND_READ, path, timeout=timeout, **environment).splitlines()[-1])
    assert result["first"] == list(range(50))
    assert result["append"] == list(range(60))
    assert f"{path}: there is an MDS data set already" in result["again"]
    assert (result["ignore"], result["failed"], result["after"]) == (60, True, 60)
    assert result["overwrite"] == list(range(7))
    return open_storage(path).list()
