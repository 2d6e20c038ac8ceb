"""DataFrames written to Google's and Azure's stores, and read from them."""

import json

import pytest

from mds_core.storage import open_storage, remote
from tests.mds_core.storage.servers import STORES
from tests.mds_spark.rows import run_python
from tests.mds_spark.test_s3 import WRITE_AND_READ


@pytest.mark.parametrize("store", ["gs", "azure"])
def test_a_dataframe_goes_to_a_store_and_back(store: str, java: None) -> None:
    remote._clients.clear()
    with STORES[store]() as base:
        path = f"{base}/reviews"
        result = json.loads(run_python(WRITE_AND_READ, path).splitlines()[-1])
        files = open_storage(path).list()
    remote._clients.clear()
    assert result["first"] == list(range(50))
    assert result["append"] == list(range(60))
    assert f"{path}: there is an MDS data set already" in result["again"]
    assert (result["ignore"], result["failed"], result["after"]) == (60, True, 60)
    assert result["overwrite"] == list(range(7))
    # Nothing is left of the write that failed, nor of the data set that was replaced.
    assert [file for file in files if file != "index.json" and not file.endswith(".mds.zstd")] == []
