"""What a loader and its workers use: memory, open files, named shared memory; and that they end."""

import itertools
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mds_torch import StreamingDataLoader, StreamingDataset

Make = Callable[..., Path]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture
def heavy(make: Make) -> str:
    """Four hundred samples of 20 kB each: an epoch is 8 MB."""
    rows = ({"b": bytes(20_000), "n": n} for n in range(400))
    return str(make({"b": "bytes", "n": "int64"}, rows, size_limit=1 << 20))


def memory_of_workers() -> int:
    """Bytes of the workers' own, in memory that no other process maps."""
    total = 0
    for worker in multiprocessing.active_children():
        (size,) = re.findall(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{worker.pid}/status").read_text())
        total += int(size) << 10
    return total


def as_is(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize("collate", [{}, {"collate_fn": as_is}], ids=["batches", "samples"])
def test_memory_of_workers_stays_flat_over_ten_epochs(collate: dict[str, Any], heavy: str) -> None:
    dataset = StreamingDataset(local=heavy, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=16, num_workers=2, persistent_workers=True, **collate)
    for _ in range(3):
        assert len(list(loader)) == 25
    before = memory_of_workers()
    assert before > 0
    for _ in range(10):
        assert len(list(loader)) == 25
    assert memory_of_workers() - before < 8 << 20


@WORKERS
def test_all_workers_end_with_the_loop(workers: int, heavy: str) -> None:
    loader = StreamingDataLoader(StreamingDataset(local=heavy), batch_size=16, num_workers=workers)
    assert len(list(loader)) == 25
    assert multiprocessing.active_children() == []
    for _ in itertools.islice(loader, 2):
        assert len(multiprocessing.active_children()) == workers
    assert multiprocessing.active_children() == []


FEW_FILES = """
import resource, sys
from mds_torch import StreamingDataLoader, StreamingDataset
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
dataset = StreamingDataset(local=sys.argv[1], shuffle=True)
loader = StreamingDataLoader(dataset, batch_size=10, num_workers=int(sys.argv[2]))
for _ in range(2):
    ids = [i for batch in loader for i in batch["n"].tolist()]
    assert sorted(ids) == list(range(300))
"""


@pytest.mark.parametrize(("compression", "workers"), [(None, 0), ("zstd", 2)])
def test_shards_may_be_more_than_files_that_may_be_open(
    compression: str | None, workers: int, make: Make, run_script: Callable[..., Any]
) -> None:
    folder = make({"n": "int64"}, ({"n": n} for n in range(300)), size_limit=1, compression=compression)
    ended = run_script(FEW_FILES, folder, workers)
    assert ended.returncode == 0, ended.stderr


def shared_memory() -> set[str]:
    """What this process and its workers map of shared memory, by name; a name that is gone ends with (deleted)."""
    processes = ["self", *(str(worker.pid) for worker in multiprocessing.active_children())]
    lines = itertools.chain.from_iterable(Path(f"/proc/{pid}/maps").read_text().splitlines() for pid in processes)
    return {line.split(None, 5)[5] for line in lines if "/dev/shm/" in line}


def test_no_shared_memory_has_a_name_that_could_stay_behind(heavy: str) -> None:
    dataset = StreamingDataset(local=heavy, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=16, num_workers=2, persistent_workers=True)
    for _ in range(2):
        kept = list(itertools.islice(loader, 25))
        assert len(kept) == 25
        assert [name for name in shared_memory() if not name.endswith("(deleted)")] == []
        assert shared_memory()  # batches came through it
