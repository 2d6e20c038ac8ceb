"""Servers that fail, disks that fill, and processes that are killed: nothing is lost, nothing hangs, nothing stays."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mds_core import FormatError, MDSReader
from mds_torch import StreamingDataLoader, StreamingDataset
from tests.mds_torch.remote import Remote, bytes_below, files_below, remote_data

SAMPLES = 300


@pytest.fixture
def remote() -> Iterator[Remote]:
    with remote_data() as remote:
        remote.write(SAMPLES, hashes=["xxh64"])
        yield remote


def read(remote: Remote, local: Path, workers: int = 0, **options: Any) -> list[int]:
    dataset = StreamingDataset(remote=remote.path, local=str(local), **options)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=workers)
    return [n for batch in loader for n in batch["n"].tolist()]


# Each, and some with workers.
FAULTS = [(fault, 0) for fault in ("close", "reset", "truncate", "flip", "500", "503", "429", "stall")]
FAULTS += [("reset", 2), ("503", 2), ("stall", 2)]


@pytest.mark.parametrize(("fault", "workers"), FAULTS)
def test_what_fails_for_a_while_is_fetched_at_last(fault: str, workers: int, remote: Remote, tmp_path: Path) -> None:
    """The first try of each second shard fails."""

    def chosen(method: str, path: str, n: int) -> str:
        number = path.removesuffix(".mds")[-5:]
        if method != "GET" or not number.isdecimal() or int(number) % (10 if fault == "stall" else 2):
            return ""
        return fault if n == 0 else ""

    remote.proxy.fault = chosen
    began = time.monotonic()
    options = {"validate_hash": "xxh64", "download_timeout": 6 if fault == "stall" else 60}
    had: list[int] = []
    for _ in range(3 if fault == "stall" else 1):  # a try that stalls takes all the time there is
        with contextlib.suppress(OSError):
            had = read(remote, tmp_path / "local", workers, **options)
    assert had == list(range(SAMPLES))
    assert time.monotonic() - began < 90
    assert not files_below(tmp_path, lambda name: name.endswith(".tmp"))
    # It is whole: nothing is fetched any more.
    remote.proxy.clear()
    remote.proxy.fault = lambda method, path, n: ""
    assert read(remote, tmp_path / "local", validate_hash="xxh64") == list(range(SAMPLES))
    assert remote.proxy.fetched() == {}


@pytest.mark.parametrize(("fault", "workers"), FAULTS)
def test_what_keeps_failing_is_an_error_that_names_it(fault: str, workers: int, remote: Remote, tmp_path: Path) -> None:
    name = MDSReader(remote.path).shards[4].raw_data.basename
    remote.proxy.fault = lambda method, path, n: fault if path.endswith(name) else ""
    began = time.monotonic()
    with pytest.raises((OSError, FormatError)) as found:
        read(remote, tmp_path / "local", workers, validate_hash="xxh64", download_retry=1, download_timeout=3)
    assert time.monotonic() - began < 60
    for part in (f"{remote.path}/{name}", "could not be fetched in"):
        assert part in str(found.value)
    remote.proxy.fault = lambda method, path, n: ""
    assert read(remote, tmp_path / "local", validate_hash="xxh64") == list(range(SAMPLES))
    assert not files_below(tmp_path, lambda name: name.endswith(".tmp"))


@pytest.mark.parametrize("fault", ["404", "403"])
def test_what_cannot_pass_is_asked_for_once_a_reader(fault: str, remote: Remote, tmp_path: Path) -> None:
    name = MDSReader(remote.path).shards[0].raw_data.basename
    remote.proxy.fault = lambda method, path, n: fault if path.endswith(name) else ""
    remote.proxy.clear()
    with pytest.raises(FileNotFoundError if fault == "404" else PermissionError, match=name):
        read(remote, tmp_path / "local")
    assert remote.proxy.fetched()[name] <= 2  # ahead, and then in earnest


FILL = """
import json, os, subprocess, sys
from mds_torch import StreamingDataset

path, local, limit = sys.argv[1:]
os.makedirs(local)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", local], check=True)
try:
    dataset = StreamingDataset(remote=path, local=local, cache_limit=int(limit) or None)
    print(json.dumps([int(sample["n"]) for sample in dataset]))
finally:
    subprocess.run(["umount", "-l", local], check=True)
"""


@pytest.mark.parametrize("limit", [0, 30_000])
def test_a_disk_that_fills_makes_room_of_what_was_read(limit: int, remote: Remote, tmp_path: Path) -> None:
    """A file system of 64 KB in a mount namespace of its own, for a data set of twice that."""
    remote.write(1200)
    unshare = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--user", "--map-root-user"]
    found = subprocess.run(
        [*unshare, sys.executable, "-c", FILL, remote.path, str(tmp_path / "local"), str(limit)],
        capture_output=True, text=True, check=False, timeout=100, env={**os.environ, **remote.environment},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == list(range(1200))


def test_a_disk_that_is_full_is_named(remote: Remote, tmp_path: Path) -> None:
    remote.write(300, size_limit=None)  # one shard, of 34 KB
    script = FILL.replace("64k", "20k")
    unshare = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--user", "--map-root-user"]
    found = subprocess.run(
        [*unshare, sys.executable, "-c", script, remote.path, str(tmp_path / "local"), "0"],
        capture_output=True, text=True, check=False, timeout=100, env={**os.environ, **remote.environment},
    )  # fmt: skip
    assert found.returncode == 1
    assert "no space left for" in found.stderr
    assert "give a cache_limit, or a local on a larger disk" in found.stderr


# A rank with two workers that reads epoch after epoch, and says so.
JOB = """
import os, sys
from mds_torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    path, local, rank, limit = sys.argv[1:]
    dataset = StreamingDataset(
        remote=path, local=local, rank=int(rank), world_size=2, local_world_size=2, shuffle=True, batch_size=4,
        shuffle_block_size=50, num_canonical_nodes=1, validate_hash="xxh64", cache_limit=int(limit) or None, pad=False,
    )
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2)
    while True:
        ids = [n for batch in loader for n in batch["n"].tolist()]
        assert len(set(ids)) == len(ids) == len(dataset), ids
        print("epoch", flush=True)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("limit", [0, 16_000])
def test_a_job_that_is_killed_25_times_goes_on_each_time(limit: int, remote: Remote, tmp_path: Path) -> None:
    """Both ranks with all workers, or one of them, or a worker, at random moments; 25 times for each limit."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    drawn = random.Random(seed)
    local = tmp_path / "local"
    shared_memory = set(os.listdir("/dev/shm"))

    def start() -> list[subprocess.Popen[str]]:
        return [
            subprocess.Popen(
                [sys.executable, "-c", JOB, remote.path, str(local), str(rank), str(limit)],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                env={**os.environ, **remote.environment},
            )
            for rank in range(2)
        ]  # fmt: skip

    def kill(process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    for turn in range(25):
        ranks = start()
        try:
            if turn % 5 == 4:  # all went well meanwhile
                for rank in ranks:
                    assert rank.stdout is not None
                    assert rank.stdout.readline() == "epoch\n"
                assert not files_below(local, lambda name: name.endswith(".tmp")) or limit
            else:
                time.sleep(drawn.uniform(1, 4))
            for rank in drawn.choice([ranks[:1], ranks[1:], ranks]):
                kill(rank)
        finally:
            for rank in ranks:
                kill(rank)
    assert sorted(read(remote, local, validate_hash="xxh64", cache_limit=limit or None)) == list(range(SAMPLES))
    assert not files_below(local, lambda name: name.endswith(".tmp"))
    assert not [name for name in set(os.listdir("/dev/shm")) - shared_memory if "mds" in name]
    if limit:
        assert bytes_below(local) <= limit


WRITE = """
import sys
from mds_core import MDSWriter

with MDSWriter(out=sys.argv[1], columns={"n": "int64"}, size_limit=500, exist_ok=True) as writer:
    for n in range(20_000):
        writer.write({"n": n})
print("written")
"""


def test_a_writer_that_is_killed_leaves_the_old_data_set_until_the_new_one_stands(remote: Remote) -> None:
    drawn = random.Random(7)
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE, remote.path], env={**os.environ, **remote.environment}, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        time.sleep(drawn.uniform(0.5, 2.5))
        writer.kill()
        assert writer.communicate()[0] == "", "it has ended before it was killed"
        assert [sample["n"] for sample in MDSReader(remote.path)] == list(range(SAMPLES))
    subprocess.run(
        [sys.executable, "-c", WRITE.replace("20_000", "1_000"), remote.path],
        check=True, env={**os.environ, **remote.environment},
    )  # fmt: skip
    assert [sample["n"] for sample in MDSReader(remote.path)] == list(range(1000))


def test_a_sample_that_is_read_by_itself_has_a_deadline(remote: Remote, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=remote.path, local=str(tmp_path / "local"), download_timeout=2)
    remote.proxy.fault = lambda method, path, n: "stall" if path.endswith(".mds") else ""
    began = time.monotonic()
    with pytest.raises(OSError, match=r"shard\.00000\.mds: could not read it"):
        dataset[0]
    assert time.monotonic() - began < 30
