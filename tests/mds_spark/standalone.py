"""A small standalone Spark cluster of several hosts: Spark runs no speculative copy on a task's own host.

`local[n]` and `local-cluster` never do it: the first ignores spark.speculation, the second has one host. Here each
worker is another address of the loopback network.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

HOSTS = ["127.0.0.2", "127.0.0.3"]


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


@contextlib.contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Start a master and a worker of one core on each host; give the master's URL; end them."""
    import pyspark

    home = str(Path(pyspark.__file__).parent)
    processes: list[subprocess.Popen[bytes]] = []

    def start(host: str, log: str, *command: str) -> None:
        environment = {
            **os.environ,
            "SPARK_HOME": home,
            "SPARK_LOCAL_IP": host,
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with open(folder / log, "wb") as output:
            processes.append(
                subprocess.Popen(
                    [f"{home}/bin/spark-class", *command],
                    stdout=output,
                    stderr=output,
                    env=environment,
                )
            )

    port = _free_port()
    master = f"spark://127.0.0.1:{port}"
    try:
        start("127.0.0.1", "master.log", "org.apache.spark.deploy.master.Master",
              "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(_free_port()))  # fmt: skip
        _wait_for(port)
        for host in HOSTS:
            start(host, f"{host}.log", "org.apache.spark.deploy.worker.Worker",
                  "--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", master)  # fmt: skip
        yield master
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError("the master of the cluster did not start within 40 s; see master.log in the test's folder")


# Partition 0's first attempt stores shards and then sleeps, so that a copy wins. Each attempt leaves a
# marker beside the data set.
SPECULATE = """
import sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
import mds_spark

master, path = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false").config("spark.log.level", "OFF").config("spark.executor.memory", "512m")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.speculation", "true").config("spark.speculation.quantile", "0.5")
    .config("spark.speculation.multiplier", "1.1").config("spark.speculation.interval", "100ms")
    .config("spark.speculation.minTaskRuntime", "100ms").config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .config("spark.cores.max", "2").getOrCreate()
)
try:
    mds_spark.register(spark)

    def slow(batches):
        context = TaskContext.get()
        me = f"attempt-{context.partitionId()}-{context.attemptNumber()}"
        Path(path).parent.joinpath(me).touch()
        for batch in batches:
            yield batch
        if me == "attempt-0-0":
            time.sleep(20)

    df = spark.range(0, 40_000, 1, 4).selectExpr("id", "repeat('x', 1000) text")
    df.mapInArrow(slow, df.schema).write.format("mds").option("size_limit", "1mb").save(path)
    found = [row.id for row in spark.read.format("mds").load(path).select("id").collect()]
    print("the right rows" if found == list(range(40_000)) else f"{len(found)} rows")
finally:
    spark.stop()
"""
