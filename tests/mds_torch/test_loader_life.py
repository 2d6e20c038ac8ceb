"""A loader's life: epochs, loops that are left, loops side by side, ranks, and what stays behind."""

import gc
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mds_torch import StreamingDataLoader, StreamingDataset

Make = Callable[..., Path]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def ids_of(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch["n"].tolist()]


def order_of(dataset: StreamingDataset, epoch: int) -> list[int]:
    return dataset.epoch_order(epoch)[:].tolist()


@pytest.fixture
def thousand(make: Make) -> str:
    rows = ({"n": n, "s": "x" * (n % 7)} for n in range(1000))
    return str(make({"n": "int64", "s": "str"}, rows, size_limit=3000, compression="zstd"))


# Epochs


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_is_respected_by_workers(persistent: bool, thousand: str) -> None:
    dataset = StreamingDataset(local=thousand, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=3, num_workers=2, persistent_workers=persistent)
    for epoch in (0, 1, 2):
        assert ids_of(loader) == order_of(dataset, epoch)
    for epoch in (7, 0):
        dataset.set_epoch(epoch)
        assert ids_of(loader) == order_of(dataset, epoch)


@WORKERS
def test_a_loop_that_is_left_is_followed_by_the_next_epoch(workers: int, thousand: str) -> None:
    dataset = StreamingDataset(local=thousand, shuffle=True)
    for persistent in {False, workers > 0}:
        dataset.set_epoch(0)
        loader = StreamingDataLoader(dataset, batch_size=10, num_workers=workers, persistent_workers=persistent)
        for epoch in (0, 2):
            assert ids_of(itertools.islice(loader, 3)) == order_of(dataset, epoch)[:30]
            assert ids_of(loader) == order_of(dataset, epoch + 1)


def test_an_iterator_that_is_never_asked_begins_no_epoch(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=10)
    iter(loader)  # as Lightning does, to probe
    assert ids_of(loader) == order_of(dataset, 0)


def be_late(worker: int) -> None:
    time.sleep(worker)


def test_two_loops_side_by_side_have_an_epoch_each(thousand: str) -> None:
    dataset = StreamingDataset(local=thousand, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=10, num_workers=2)
    first, second = iter(loader), iter(loader)
    found: tuple[list[int], list[int]] = ([], [])
    for a, b in zip(first, second, strict=True):
        found[0].extend(a["n"].tolist())
        found[1].extend(b["n"].tolist())
    assert found[0] == order_of(dataset, 0)
    assert found[1] == order_of(dataset, 1)


def test_a_worker_that_starts_late_reads_its_own_epoch(thousand: str) -> None:
    # The second worker begins when the loader's next loop has begun.
    dataset = StreamingDataset(local=thousand, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=10, num_workers=2, worker_init_fn=be_late)
    first = iter(loader)
    found = next(first)["n"].tolist()
    next(iter(loader))
    found += ids_of(first)
    assert found == order_of(dataset, 0)


# Lengths


def as_is(samples: Any) -> Any:
    return samples


@WORKERS
@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 7},
        {"batch_size": 7, "drop_last": True},
        {"batch_size": 100},
        {"batch_size": 100, "drop_last": True},
        {"batch_size": 15, "drop_last": True},
        {"batch_size": 4, "collate_fn": as_is},
        {"batch_size": 4, "collate_fn": as_is, "drop_last": True},
        {"batch_size": None},
        {},
    ],
)
@pytest.mark.parametrize("ranks", [1, 4])
def test_the_length_is_exact(ranks: int, arguments: dict[str, Any], workers: int, thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, rank=ranks - 1, world_size=ranks)
    loader = StreamingDataLoader(dataset, num_workers=workers, **arguments)
    assert len(loader) == sum(1 for _ in loader)


@WORKERS
def test_an_empty_data_set_has_no_batches(workers: int, make: Make) -> None:
    dataset = StreamingDataset(local=str(make({"n": "int64", "s": "str"}, [])), shuffle=True)
    for drop_last in (False, True):
        loader = StreamingDataLoader(dataset, batch_size=2, num_workers=workers, drop_last=drop_last)
        assert len(loader) == 0
        assert list(loader) == []


# Ranks


@WORKERS
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (3, 3), (4, 2), (7, 1)])
def test_ranks_together_have_each_sample(ranks: int, nodes: int, workers: int, thirty: str) -> None:
    parts = []
    for rank in range(ranks):
        dataset = StreamingDataset(
            local=thirty, shuffle=True, rank=rank, world_size=ranks, local_world_size=ranks // nodes
        )
        parts.append(ids_of(StreamingDataLoader(dataset, batch_size=4, num_workers=workers)))
    together = list(itertools.chain.from_iterable(parts))
    assert set(together) == set(range(30))
    assert len(together) - 30 < ranks
    assert len(set(map(len, parts))) == 1


@pytest.mark.parametrize(("samples", "ranks", "batch_size"), [(30, 4, 8), (10, 4, 3), (33, 4, 8)])
def test_with_drop_last_no_sample_is_repeated(samples: int, ranks: int, batch_size: int, make: Make) -> None:
    folder = str(make({"n": "int64"}, ({"n": n} for n in range(samples))))
    together = []
    for rank in range(ranks):
        dataset = StreamingDataset(local=folder, rank=rank, world_size=ranks)
        together += ids_of(StreamingDataLoader(dataset, batch_size=batch_size, drop_last=True))
    assert len(together) == len(set(together))
    assert samples - len(together) < ranks * batch_size


# DataLoader's arguments


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:DeprecationWarning")
@WORKERS
def test_pin_memory_is_accepted(workers: int, thirty: str) -> None:
    loader = StreamingDataLoader(StreamingDataset(local=thirty), batch_size=4, num_workers=workers, pin_memory=True)
    assert ids_of(loader) == list(range(30))


@pytest.mark.parametrize("prefetch_factor", [1, 5])
def test_batches_arrive_in_the_sequences_order(prefetch_factor: int, thousand: str) -> None:
    dataset = StreamingDataset(local=thousand, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=3, num_workers=2, prefetch_factor=prefetch_factor)
    assert ids_of(loader) == order_of(dataset, 0)


@pytest.mark.parametrize("wrong", [{"shuffle": True}, {"sampler": [1]}, {"batch_size": 0}, {"prefetch_factor": 2}])
def test_what_dataloader_refuses_is_refused(wrong: dict[str, Any], thirty: str) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StreamingDataLoader(StreamingDataset(local=thirty), **wrong)


def mark(worker: int) -> None:
    torch.set_num_threads(1)
    os.environ["MARK"] = str(worker)


class Marked(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)["n"], os.environ.get("MARK", "none")


def test_worker_init_fn_runs_in_each_worker(thirty: str) -> None:
    loader = StreamingDataLoader(Marked(local=thirty), batch_size=5, num_workers=2, worker_init_fn=mark)
    assert [set(marks) for _, marks in loader] == [{"0"}, {"1"}] * 3


# What stays behind


def used() -> tuple[int, int]:
    """Memory in bytes of its own, and open files."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    memory = sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem")))
    return memory, len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_memory_and_open_files_stay_flat_over_ten_epochs(workers: int, persistent: bool, make: Make) -> None:
    rows = ({"b": bytes(20_000), "n": n} for n in range(400))
    dataset = StreamingDataset(local=str(make({"b": "bytes", "n": "int64"}, rows, size_limit=1 << 20)), shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=16, num_workers=workers, persistent_workers=persistent)
    for _ in range(3):
        assert len(ids_of(loader)) == 400
    memory, files = used()
    for _ in range(10):
        assert len(ids_of(loader)) == 400
    more_memory, more_files = used()
    assert more_memory - memory < 4 << 20  # an epoch is 8 MB
    assert more_files <= files + 2


# Imports

IMPORTS = """
import sys
for name in sys.argv[2].split(","):
    __import__(name)
found = sorted({module.partition(".")[0] for module in sys.modules} & set(sys.argv[1].split(",")))
print(",".join(found))
"""


@pytest.mark.parametrize(
    ("imported", "unwanted"),
    [
        ("mds_torch,mds_torch.batches,mds_torch.order", "pyspark,mds_spark,transformers,pandas,PIL"),
        ("mds_core,mds_core.columnar", "pyspark,torch,mds_spark,mds_torch,pandas"),
        ("mds_spark,mds_spark.source", "torch,mds_torch"),
        ("mds_torch.order.sequence", "pyspark,mds_spark"),
    ],
)
def test_each_side_imports_its_own(imported: str, unwanted: str, run_script: Callable[..., Any]) -> None:
    ended = run_script(IMPORTS, unwanted, imported)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == ""
