"""Spark writes to a store whose server fails, and jobs that are killed while they write to one."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from mds_core import MDSReader
from mds_core.storage import open_storage
from tests.mds_core.storage.proxy import Proxy
from tests.mds_core.storage.servers import s3_behind_proxy

ROWS = 4000
WRITE = """
import sys
from pyspark.sql import SparkSession
import mds_spark

path, mode = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .getOrCreate()
)
mds_spark.register(spark)
print("ready", flush=True)
spark.range(0, 4000, 1, 4).write.format("mds").mode(mode).option("size_limit", "2kb").save(path)
print("written", spark.read.format("mds").load(path).count(), flush=True)
"""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with s3_behind_proxy() as (proxy, _):
        yield proxy


def start(path: str, mode: str) -> subprocess.Popen[str]:
    """Start a write in a process group of its own, and wait until it begins."""
    job = subprocess.Popen(
        [sys.executable, "-c", WRITE, path, mode], text=True, stdout=subprocess.PIPE, start_new_session=True
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    return job


def ids(path: str) -> list[int]:
    return [int(sample["id"]) for sample in MDSReader(path)]


@pytest.mark.usefixtures("java")
def test_a_write_through_a_failing_server_loses_nothing(proxy: Proxy) -> None:
    """Each first request of its kind fails, each in its own way."""
    path = "s3://a-bucket/failing"
    faults = ["close", "500", "503", "429", "lost"]
    proxy.fault = lambda method, path, n: faults[sum(path.encode()) % len(faults)] if n == 0 else ""
    job = start(path, "errorifexists")
    assert job.communicate(timeout=200)[0] == f"written {ROWS}\n"
    assert ids(path) == list(range(ROWS))
    named = {shard.stored.basename for shard in MDSReader(path).shards}
    assert set(open_storage(path).list()) == {*named, "index.json"}


@pytest.mark.usefixtures("java")
@pytest.mark.timeout(500)
def test_a_job_that_is_killed_and_started_again_loses_nothing(proxy: Proxy) -> None:
    """Killed with all of its processes; what stands is always one whole data set, and one more row set at the end."""
    path = "s3://a-bucket/killed"
    proxy.latency = 0.05  # so that it takes a while
    drawn = random.Random(3)
    written = 0
    for _ in range(4):
        job = start(path, "append")
        time.sleep(drawn.uniform(0.3, 4))
        os.killpg(job.pid, signal.SIGKILL)
        out = job.communicate()[0]
        storage = open_storage(path)
        if storage.read("index.json") is not None:
            found = len(MDSReader(path))
            assert found in (written, written + ROWS), out
            written = found
            assert sorted(ids(path)) == sorted([*range(ROWS)] * (written // ROWS))
    proxy.latency = 0.0
    job = start(path, "append")
    assert job.communicate(timeout=200)[0] == f"written {written + ROWS}\n"
    assert sorted(ids(path)) == sorted([*range(ROWS)] * (written // ROWS + 1))
    # What killed jobs have left is told apart by the ids of their writes, which no index names.
    left = set(open_storage(path).list()) - {shard.stored.basename for shard in MDSReader(path).shards} - {"index.json"}
    assert all(re.match(r"shard\.[0-9a-f]{16}\.|\.mds-[0-9a-f]{16}$", name) for name in left), left
