"""DataFrames written to an object store, and read from it."""

from tests.mds_core.storage.servers import environment_of, s3_server
from tests.mds_spark.stores import write_and_read


def test_a_dataframe_goes_to_s3_and_back(java: None) -> None:
    path = "s3://a-bucket/reviews"
    with s3_server("a-bucket") as environment, environment_of(environment):
        files = write_and_read(path, **environment)
    assert sum(name.endswith(".mds.zstd") for name in files) == len(files) - 1 == 2
