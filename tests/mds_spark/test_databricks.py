"""DataFrames written to a volume of Databricks, and read from it."""

import json

from mds_core.storage import open_storage, remote
from tests.mds_core.storage.databricks_server import VOLUME, environment, workspace
from tests.mds_core.storage.servers import environment_of
from tests.mds_spark.rows import run_python
from tests.mds_spark.test_s3 import WRITE_AND_READ


def test_a_dataframe_goes_to_a_volume_and_back(java: None) -> None:
    path = f"dbfs:{VOLUME}/reviews"
    remote._clients.clear()  # they are of another server
    with workspace() as server, environment_of(environment(server)):
        result = json.loads(run_python(WRITE_AND_READ, path, timeout=280).splitlines()[-1])
        files = open_storage(path).list()
    remote._clients.clear()
    assert result["first"] == list(range(50))
    assert result["append"] == list(range(60))
    assert f"{path}: there is an MDS data set already" in result["again"]
    assert (result["ignore"], result["failed"], result["after"]) == (60, True, 60)
    assert result["overwrite"] == list(range(7))
    assert sum(name.endswith(".mds.zstd") for name in files) == len(files) - 1 == 2
