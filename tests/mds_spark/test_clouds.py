"""DataFrames written to Google's and Azure's stores, and read from them."""

import pytest

from mds_core.storage import remote
from tests.mds_core.storage.servers import STORES
from tests.mds_spark.stores import write_and_read


@pytest.mark.parametrize("store", ["gs", "azure"])
def test_a_dataframe_goes_to_a_store_and_back(store: str, java: None) -> None:
    remote._clients.clear()
    with STORES[store]() as base:
        files = write_and_read(f"{base}/reviews")
    remote._clients.clear()
    # Nothing is left of the write that failed, nor of the data set that was replaced.
    assert [file for file in files if file != "index.json" and not file.endswith(".mds.zstd")] == []
