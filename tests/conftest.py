"""What tests share: Spark, started once when the first test needs it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
# This folder's mds_core and mds_spark hold tests and are no packages: the real ones must be found first. Spark's
# Python workers look where PYTHONPATH says.
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# What a shell runs in the background ignores Ctrl-C, and so would all processes that tests start, and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # xdist looks at the marks in a hook of this name, too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With pytest -n, keep in one process what must not run beside itself.

    Spark starves on two cores, and the reference library's shared memory has fixed names.
    """
    for item in items:
        module = getattr(item, "module", None)
        uses = {*getattr(item, "fixturenames", ()), *vars(module)}
        if uses & {"spark", "java", "run_python", "run_reference", "reference_python"}:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def java() -> None:
    """See to it that Spark finds a Java."""
    sys.path.insert(0, str(ROOT / "notebooks"))
    from local_spark import find_java

    find_java()


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two cores that tries each task up to four times, with `format("mds")` registered."""
    from pyspark.sql import SparkSession

    import mds_spark

    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    mds_spark.register(session)
    yield session
    session.stop()
