"""Whatever goes wrong in a write, it leaves the right rows or none, and no file that the index does not name."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mds_core import merge_index
from tests.mds_spark.rows import assert_nothing_left_over, contents, files, named, run_python
from tests.mds_spark.standalone import SPECULATE, standalone_cluster


def numbered(spark: SparkSession, rows: int, size: int, partitions: int) -> DataFrame:
    """Rows with a number, in order, and a text of `size` characters that belongs to it."""
    text = F.concat(F.col("id").cast("string"), F.lit(":"), F.repeat(F.lit("x"), size))
    return spark.range(0, rows, 1, partitions).select("id", text.alias("text"))


def assert_numbered(spark: SparkSession, path: Path, rows: int) -> None:
    found = spark.read.format("mds").load(str(path)).select("id", F.substring_index("text", ":", 1)).collect()
    assert [tuple(row) for row in found] == [(i, str(i)) for i in range(rows)]


def eventually(check: Callable[[], None], seconds: float = 10) -> None:
    """Tasks that were told to end may take a moment."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def python_workers() -> list[int]:
    """The Python processes that this one started, through Java, too."""
    parents, names = {}, {}
    for stat_file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = stat_file.read_text().partition(" (")
            names[int(pid)], _, rest = rest.rpartition(") ")
            parents[int(pid)] = int(rest.split()[1])
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return [pid for pid in mine - {os.getpid()} if "python" in names[pid]]


def memory_of(pid: int) -> int:
    """A process's resident bytes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def open_files(pid: int) -> Iterator[tuple[str, str]]:
    """The files that a process has open: descriptor, and path."""
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield descriptor, os.readlink(f"/proc/{pid}/fd/{descriptor}")


@contextlib.contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work(ended)` in a thread while the body runs, then set `ended`; raise what it raised."""
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, ended)
        try:
            yield
        finally:
            ended.set()
        future.result()


def test_a_worker_killed_while_it_stores_a_shard_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    killed = []

    def kill_once(ended: threading.Event) -> None:
        while not ended.is_set():
            stored = Counter(file.name.split(".")[2] for file in path.glob("shard.*"))
            if len(stored) < 2 or min(stored.values()) < 2:  # each task has stored some
                time.sleep(0.01)
                continue
            for pid in python_workers() * 50:  # a shard is being stored for a moment only
                if any(name.startswith(str(path)) for _, name in open_files(pid)):
                    killed.append(sorted(path.glob("shard.*")))
                    os.kill(pid, signal.SIGKILL)
                    return

    with in_background(kill_once):
        numbered(spark, 4_000, 50_000, 2).write.format("mds").option("size_limit", "2mb").save(str(path))
    assert killed, "no worker was caught storing a shard"
    assert set(map(str, killed[0])) - {str(path / name) for name in named(path)}, "the dead attempt had stored shards"
    assert_nothing_left_over(path)
    assert_numbered(spark, path, 4_000)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("mode", ["errorifexists", "append", "overwrite"])
def test_a_job_that_fails_after_shards_were_stored_changes_nothing(
    spark: SparkSession, tmp_path: Path, mode: str, compression: str
) -> None:
    path = tmp_path / "data"
    if mode != "errorifexists":
        numbered(spark, 100, 1000, 2).write.format("mds").option("size_limit", "20kb").save(str(path))
    before = contents(path)
    folder = str(path)

    def fail_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = False
        for batch in batches:
            last = last or batch.column(0)[-1].as_py() == 3_999
            yield batch
        if last:
            deadline = time.monotonic() + 20
            while len([name for name in os.listdir(folder) if name.startswith("shard.")]) <= len(before):
                assert time.monotonic() < deadline, "no shard was stored"
                time.sleep(0.01)
            raise ValueError("a planned failure")

    df = numbered(spark, 4_000, 20_000, 2)
    failing = df.mapInArrow(fail_late, df.schema)
    writer = failing.write.format("mds").mode(mode).option("compression", compression).option("size_limit", "1mb")
    with pytest.raises(Exception, match="a planned failure"):
        writer.save(folder)

    def unchanged() -> None:
        assert contents(path) == before
        assert files(path) == set(before), "no folder, too"

    eventually(unchanged)
    time.sleep(0.3)
    unchanged()


def test_a_value_that_cannot_be_stored_fails_the_job_and_names_column_and_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    df = spark.range(0, 3_000, 1, 1).selectExpr("IF(id = 2500, CAST(NULL AS STRING), repeat('x', 1000)) text")
    with pytest.raises(Exception, match="column 'text' holds 1") as caught:
        df.write.format("mds").option("size_limit", "100kb").save(str(path))
    assert "nulls=drop" in str(caught.value)
    eventually(lambda: _assert_no_files(path))


def _assert_no_files(path: Path) -> None:
    assert files(path) == set()


def test_a_cancelled_job_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    spark.sparkContext.setJobGroup("to be cancelled", "", True)

    def cancel(ended: threading.Event) -> None:
        while not ended.is_set() and not list(path.glob("shard.*")):
            time.sleep(0.005)
        spark.sparkContext.cancelJobGroup("to be cancelled")

    try:
        with in_background(cancel), pytest.raises(Exception, match="cancel"):
            numbered(spark, 10_000, 50_000, 2).write.format("mds").option("size_limit", "1mb").save(str(path))
    finally:
        spark.sparkContext._jsc.clearJobGroup()
    eventually(lambda: _assert_no_files(path))
    time.sleep(0.5)
    _assert_no_files(path)


def test_speculative_attempts_leave_the_right_rows_and_no_file(java: None, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with standalone_cluster(tmp_path) as master:
        out = run_python(SPECULATE, master, str(path), SPARK_LOCAL_IP="127.0.0.1").splitlines()
    attempts = sorted(p.name for p in tmp_path.glob("attempt-*"))
    assert "attempt-0-0" in attempts
    assert "attempt-0-1" in attempts, "no speculative copy of partition 0 ran"
    assert out[-1] == "the right rows"
    assert_nothing_left_over(path)


def test_appends_at_once_from_threads_all_land(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    spark.range(0).write.format("mds").save(str(path))

    def append(first: int) -> None:
        spark.range(first, first + 100, 1, 2).write.format("mds").mode("append").save(str(path))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(0, 800, 100)))
    found = [row.id for row in spark.read.format("mds").load(str(path)).collect()]
    blocks = [found[first : first + 100] for first in range(0, 800, 100)]
    assert sorted(blocks) == [list(range(first, first + 100)) for first in range(0, 800, 100)]
    assert_nothing_left_over(path)


def test_of_two_ignoring_writes_at_once_one_lands_and_one_is_ignored(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    go = str(tmp_path / "go")

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        deadline = time.monotonic() + 60
        while not os.path.exists(go):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield from batches

    def write(_: int) -> None:
        df = numbered(spark, 1000, 1000, 1)
        df.mapInArrow(wait, df.schema).write.format("mds").mode("ignore").save(str(path))

    with ThreadPoolExecutor(2) as pool:
        writes = pool.map(write, range(2))
        eventually(lambda: _assert_staging(path, 2), 60)  # neither saw a data set when it began
        Path(go).touch()
        list(writes)
    assert_numbered(spark, path, 1000)
    assert_nothing_left_over(path)


def _assert_staging(path: Path, count: int) -> None:
    assert len(list(path.glob(".mds-*"))) == count


def test_of_two_first_writes_at_once_one_lands(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"

    def write(_: int) -> str | None:
        try:
            numbered(spark, 1000, 1000, 2).write.format("mds").save(str(path))
        except Exception as error:
            return str(error)
        return None

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(write, range(2))
    assert (first is None) != (second is None), (first, second)
    assert "there is an MDS data set already" in (first or second or "")
    assert_numbered(spark, path, 1000)
    assert_nothing_left_over(path)


def test_overwrite_deletes_the_old_shards_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    numbered(spark, 100, 1000, 2).write.format("mds").option("size_limit", "20kb").save(str(path))
    old = set(named(path))
    assert len(old) > 4
    (path / "README.md").write_text("not of the data set")
    numbered(spark, 10, 1000, 2).write.format("mds").mode("overwrite").save(str(path))
    assert files(path) == {"index.json", "README.md", *named(path)}
    assert not old & set(named(path))
    assert_numbered(spark, path, 10)


def test_overwrite_of_merged_data_sets_leaves_no_index_of_deleted_shards(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    for name in ("a/1", "a/2", "b"):
        numbered(spark, 10, 10, 1).write.format("mds").save(str(path / name))
    merge_index(str(path / "a"))
    merge_index(str(path))
    for name in ("not merged", "a/not merged"):
        numbered(spark, 10, 10, 1).write.format("mds").save(str(path / name))
    numbered(spark, 10, 10, 1).write.format("mds").mode("append").save(str(path / "b"))
    kept = {"not merged", "a", "a/not merged", "b"} | {f"b/{named(path / 'b')[1]}"}
    kept |= {
        f"{name}/{file}" for name in ("not merged", "a/not merged") for file in ("index.json", *named(path / name))
    }
    numbered(spark, 5, 10, 1).write.format("mds").mode("overwrite").save(str(path))
    found = files(path) - {"a/1", "a/2"}  # empty folders
    assert found == {"index.json", *named(path), "b/index.json", *kept}
    assert_numbered(spark, path, 5)


def test_merged_data_sets_can_be_overwritten_and_merged_again(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    for name in "ab":
        numbered(spark, 10, 10, 1).write.format("mds").save(str(path / name))
    merge_index(str(path))
    numbered(spark, 5, 10, 1).write.format("mds").mode("overwrite").save(str(path))
    merge_index(str(path))
    assert_numbered(spark, path, 5)


def test_overwrite_of_a_data_set_with_itself(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    numbered(spark, 100, 100, 2).write.format("mds").save(str(path))
    back = spark.read.format("mds").load(str(path))
    back.where("id < 50").write.format("mds").mode("overwrite").save(str(path))
    assert_numbered(spark, path, 50)
    assert_nothing_left_over(path)


def test_a_tasks_memory_and_disk_stay_near_two_shards(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shard, rows, size = 16 << 20, 8_000, 100_000
    seen: dict[str, Any] = {"growth": 0, "staged": 0, "elsewhere": set()}

    def watch(ended: threading.Event) -> None:
        first: dict[int, int] = {}
        while not ended.is_set():
            for pid in python_workers():
                seen["growth"] = max(seen["growth"], memory_of(pid) - first.setdefault(pid, memory_of(pid)))
                seen["elsewhere"] |= set(_written_outside(pid, path))
            with contextlib.suppress(OSError):
                staged = sum(file.stat().st_size for file in path.glob(".mds-*/*"))
                seen["staged"] = max(seen["staged"], staged)
            time.sleep(0.02)

    numbered(spark, 10, 100, 2).write.format("mds").save(
        str(tmp_path / "first")
    )  # workers have imported what they need
    batch = "spark.sql.execution.arrow.maxRecordsPerBatch"  # Spark's own batches would hide what the task holds
    spark.conf.set(batch, 100)
    try:
        with in_background(watch):
            numbered(spark, rows, size, 1).write.format("mds").option("size_limit", shard).save(str(path))
    finally:
        spark.conf.unset(batch)
    assert len(named(path)) > 40
    assert seen["growth"] < 2 * shard + 100e6  # and some batches of 10 MB
    assert seen["staged"] <= 2 * shard
    assert seen["elsewhere"] == set()


def _standard_streams(pid: int) -> set[str]:
    """Where a process and those that started it print: a file of pytest's, of which they may hold copies."""
    family = [pid, *(parent.pid for parent in psutil.Process(pid).parents())]
    return {name for one in family for descriptor, name in open_files(one) if int(descriptor) <= 2}


def _written_outside(pid: int, path: Path) -> Iterator[str]:
    """The files outside of a folder that a process has open for writing."""
    for descriptor, name in open_files(pid):
        with contextlib.suppress(OSError, psutil.Error):
            if name in _standard_streams(pid):
                continue
            if not stat.S_ISREG(os.stat(f"/proc/{pid}/fd/{descriptor}").st_mode):
                continue
            flags = next(
                line for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines() if "flags" in line
            )
            if int(flags.split()[1], 8) & os.O_ACCMODE and not name.startswith(str(path)):
                yield name
