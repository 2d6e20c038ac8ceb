"""DataFrames written to a volume of Databricks, and read from it."""

import json
from pathlib import Path

from mds_core import MDSWriter
from mds_core.storage import remote
from tests.mds_core.storage.databricks_server import VOLUME, environment, workspace
from tests.mds_core.storage.servers import environment_of
from tests.mds_spark.rows import run_python
from tests.mds_spark.stores import write_and_read


def test_a_dataframe_goes_to_a_volume_and_back(java: None) -> None:
    path = f"dbfs:{VOLUME}/reviews"
    remote._clients.clear()  # they are of another server
    with workspace() as server, environment_of(environment(server)):
        files = write_and_read(path, timeout=280)
    remote._clients.clear()
    assert sum(name.endswith(".mds.zstd") for name in files) == len(files) - 1 == 2


DISTRIBUTE = """
import json, os, sys
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .getOrCreate()
)


def train(path, host, token, out):
    import os
    import torch.distributed as dist
    from mds_torch import StreamingDataLoader, StreamingDataset

    os.environ["DATABRICKS_HOST"] = host or ""
    os.environ["DATABRICKS_TOKEN"] = token or ""
    dist.init_process_group("gloo")
    try:
        dataset = StreamingDataset(remote=path, local=f"{out}/cache", batch_size=4, shuffle=True)
    except PermissionError as error:
        return str(error)
    mine = [i for batch in StreamingDataLoader(dataset, batch_size=4) for i in batch["id"].tolist()]
    both = [None, None]
    dist.all_gather_object(both, mine)
    dist.destroy_process_group()
    return both


path, host, token, out = sys.argv[1:]
distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
try:
    found = [distributor.run(train, path, host, token, out), distributor.run(train, path, None, None, out)]
finally:
    spark.stop()
print(json.dumps(found))
"""


def test_credentials_are_set_inside_of_what_torch_distributor_runs(java: None, tmp_path: Path) -> None:
    path = f"dbfs:{VOLUME}/numbers"
    remote._clients.clear()  # they are of another server
    with workspace() as server:
        with (
            environment_of(environment(server)),
            MDSWriter(out=path, columns={"id": "int64"}, size_limit=200) as writer,
        ):
            for number in range(50):
                writer.write({"id": number})
        variables = environment(server)
        arguments = (path, variables["DATABRICKS_HOST"], variables["DATABRICKS_TOKEN"], str(tmp_path))
        out = run_python(DISTRIBUTE, *arguments, timeout=280)
    remote._clients.clear()
    found, error = json.loads(out.splitlines()[-1])
    assert sorted(found[0] + found[1]) == list(range(50))
    assert "set DATABRICKS_HOST and DATABRICKS_TOKEN" in error
    assert "inside" in error
    assert "TorchDistributor" in error
