"""DataFrames written to an object store, and read from it."""

import json

from mds_core.storage import open_storage
from tests.mds_core.storage.servers import environment_of, s3_server
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


def test_a_dataframe_goes_to_s3_and_back(java: None) -> None:
    path = "s3://a-bucket/reviews"
    with s3_server("a-bucket") as environment, environment_of(environment):
        result = json.loads(run_python(WRITE_AND_READ, path, **environment).splitlines()[-1])
        files = open_storage(path).list()
    assert result["first"] == list(range(50))
    assert result["append"] == list(range(60))
    assert f"{path}: there is an MDS data set already" in result["again"]
    assert (result["ignore"], result["failed"], result["after"]) == (60, True, 60)
    assert result["overwrite"] == list(range(7))
    assert sum(name.endswith(".mds.zstd") for name in files) == len(files) - 1 == 2
