"""DataFrames written to a volume of Databricks, and read from it."""

from mds_core.storage import remote
from tests.mds_core.storage.databricks_server import VOLUME, environment, workspace
from tests.mds_core.storage.servers import environment_of
from tests.mds_spark.stores import write_and_read


def test_a_dataframe_goes_to_a_volume_and_back(java: None) -> None:
    path = f"dbfs:{VOLUME}/reviews"
    remote._clients.clear()  # they are of another server
    with workspace() as server, environment_of(environment(server)):
        files = write_and_read(path, timeout=280)
    remote._clients.clear()
    assert sum(name.endswith(".mds.zstd") for name in files) == len(files) - 1 == 2
