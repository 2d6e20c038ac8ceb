"""StreamingDataLoader: the batches of torch's DataLoader, read whole."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from mds_core import FormatError
from mds_torch import StreamingDataLoader, StreamingDataset
from tests.mds_torch.comparing import assert_same

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def collated(dataset: StreamingDataset, epoch: int, batch_size: int, drop_last: bool = False) -> list[Any]:
    """What torch makes of the epoch's samples."""
    order = dataset.epoch_order(epoch)[:].tolist()
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return [default_collate([dataset[i] for i in ids]) for ids in batches if not drop_last or len(ids) == batch_size]


@WORKERS
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(1, False), (16, False), (16, True), (500, False), (500, True)])
def test_batches_are_what_default_collation_makes_of_the_samples(
    everything: str, workers: int, shuffle: bool, batch_size: int, drop_last: bool
) -> None:
    dataset = StreamingDataset(local=everything, shuffle=shuffle)
    loader = StreamingDataLoader(dataset, batch_size=batch_size, drop_last=drop_last, num_workers=workers)
    right = collated(dataset, 0, batch_size, drop_last)
    found = list(loader)
    assert len(found) == len(loader) == len(right)
    for a, b in zip(found, right, strict=True):
        assert_same(a, b)


@WORKERS
def test_blocks_too_large_for_the_pipe_arrive_as_well(write: Callable[..., str], workers: int) -> None:
    rows = [{"t": "é" * (i * 997 % 40_000), "b": bytes([i]) * (i * 31 % 50_000), "n": i} for i in range(60)]
    folder = write(rows, {"t": "str", "b": "bytes", "n": "uint64"}, size_limit="256kb")
    dataset = StreamingDataset(local=folder, shuffle=True)
    batches = list(StreamingDataLoader(dataset, batch_size=8, num_workers=workers))
    order = dataset.epoch_order(0)[:].tolist()
    assert [t for batch in batches for t in batch["t"]] == [rows[i]["t"] for i in order]
    assert [b for batch in batches for b in batch["b"]] == [rows[i]["b"] for i in order]
    assert [n for batch in batches for n in batch["n"].tolist()] == order


@WORKERS
def test_arrays_of_different_shapes_fail_as_in_torch(write: Callable[..., str], workers: int) -> None:
    folder = write([{"x": np.arange(i)} for i in range(1, 9)], {"x": "ndarray:int64"})
    loader = StreamingDataLoader(StreamingDataset(local=folder), batch_size=4, num_workers=workers)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(loader)


@WORKERS
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_differ_and_hold_all_samples(numbers: str, workers: int, persistent: bool) -> None:
    dataset = StreamingDataset(local=numbers, shuffle=True)
    loader = StreamingDataLoader(
        dataset, batch_size=64, num_workers=workers, persistent_workers=persistent and workers > 0
    )
    for epoch in (0, 1, 2):
        assert torch.cat([batch["id"] for batch in loader]).tolist() == dataset.epoch_order(epoch)[:].tolist()
    dataset.set_epoch(1)
    assert torch.cat([batch["id"] for batch in loader]).tolist() == dataset.epoch_order(1)[:].tolist()


class Pairs(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        i = int(super().__getitem__(at)["id"])
        return torch.full((2,), i), i


@WORKERS
@pytest.mark.parametrize("persistent", [False, True])
def test_an_overridden_getitem_makes_the_samples(numbers: str, workers: int, persistent: bool) -> None:
    dataset = Pairs(local=numbers, shuffle=True, batch_size=16)
    loader = StreamingDataLoader(
        dataset, batch_size=64, num_workers=workers, persistent_workers=persistent and workers > 0
    )
    for epoch in (0, 1):
        batches = list(loader)
        assert len(batches) == len(loader) == 16
        assert torch.cat([ids for _, ids in batches]).tolist() == dataset.epoch_order(epoch)[:].tolist()
        assert batches[0][0].shape == (64, 2)


class Backwards(StreamingDataset):
    def __iter__(self) -> Any:
        return iter(list(super().__iter__())[::-1])


@WORKERS
def test_an_overridden_iter_is_used(numbers: str, workers: int) -> None:
    dataset = Backwards(local=numbers, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=50, num_workers=workers)
    epochs = [torch.cat([batch["id"] for batch in loader]).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert all(sorted(epoch) == list(range(1000)) for epoch in epochs)
    if not workers:
        assert epochs[0] == dataset.epoch_order(0)[:].tolist()[::-1]


def ids_only(samples: list[Any]) -> list[int]:
    return [int(sample["id"]) for sample in samples]


@WORKERS
def test_a_collation_of_ones_own_gets_the_samples(numbers: str, workers: int) -> None:
    dataset = StreamingDataset(local=numbers, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=48, num_workers=workers, collate_fn=ids_only)
    assert [i for batch in loader for i in batch] == dataset.epoch_order(0)[:].tolist()
    assert len(loader) == 21


@WORKERS
def test_without_batches_it_gives_samples(numbers: str, workers: int) -> None:
    loader = StreamingDataLoader(StreamingDataset(local=numbers), batch_size=None, num_workers=workers)
    assert sorted(int(sample["id"]) for sample in loader) == list(range(1000))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_each_start_method_read_the_same(numbers: str, method: str) -> None:
    dataset = StreamingDataset(local=numbers, shuffle=True)
    loader = StreamingDataLoader(
        dataset, batch_size=64, num_workers=2, multiprocessing_context=method, prefetch_factor=4, timeout=100
    )
    for epoch in (0, 1):
        assert torch.cat([batch["id"] for batch in loader]).tolist() == dataset.epoch_order(epoch)[:].tolist()


def test_it_takes_the_arguments_of_dataloader(numbers: str) -> None:
    seen: list[int] = []
    dataset = StreamingDataset(local=numbers)
    loader = StreamingDataLoader(
        dataset, 10, num_workers=0, pin_memory=False, worker_init_fn=seen.append, generator=torch.Generator()
    )
    assert isinstance(loader, DataLoader)
    assert loader.batch_size == 10
    assert loader.dataset is dataset
    assert len(list(loader)) == 100
    with pytest.raises(TypeError, match="expected a StreamingDataset, found list"):
        StreamingDataLoader([1, 2], batch_size=1)  # type: ignore[arg-type]


@WORKERS
def test_batches_are_writable_and_independent_of_each_other(numbers: str, workers: int) -> None:
    loader = StreamingDataLoader(StreamingDataset(local=numbers), batch_size=10, num_workers=workers)
    batches = list(loader)
    batches[0]["id"] += 1000
    assert batches[1]["id"].tolist() == list(range(10, 20))
    assert all(batch["id"].untyped_storage().nbytes() == 80 for batch in batches)


@WORKERS
def test_loops_do_not_disturb_one_another(numbers: str, workers: int) -> None:
    dataset = StreamingDataset(local=numbers, shuffle=True)
    loaders = [StreamingDataLoader(dataset, batch_size=100, num_workers=workers) for _ in range(2)]
    left = iter(loaders[0])
    next(left)
    pairs = list(zip(loaders[1], StreamingDataLoader(Pairs(local=numbers), batch_size=100), strict=True))
    assert torch.cat([batch["id"] for batch, _ in pairs]).tolist() == dataset.epoch_order(1)[:].tolist()
    for _ in loaders[0]:
        break
    assert torch.cat([batch["id"] for batch in loaders[0]]).tolist() == dataset.epoch_order(3)[:].tolist()


@WORKERS
def test_a_missing_shard_raises_in_the_loop_with_its_name(write: Callable[..., str], workers: int) -> None:
    folder = write([{"id": i} for i in range(300)], {"id": "int"}, size_limit=1000)
    Path(folder, "shard.00001.mds").unlink()
    loader = StreamingDataLoader(
        StreamingDataset(local=folder), batch_size=8, num_workers=workers, timeout=60 * workers
    )
    before = set(psutil.Process().children())
    with pytest.raises(FileNotFoundError, match=r"shard .*shard\.00001\.mds is missing"):
        list(loader)
    del loader
    gc.collect()
    _, alive = psutil.wait_procs(set(psutil.Process().children()) - before, timeout=20)
    assert not alive


@WORKERS
def test_a_broken_shard_raises_in_the_loop_with_its_name(write: Callable[..., str], workers: int) -> None:
    folder = write([{"t": str(i)} for i in range(300)], {"t": "str"}, size_limit=1000)
    shard = Path(folder, "shard.00001.mds")
    shard.write_bytes(shard.read_bytes()[:-1])
    loader = StreamingDataLoader(StreamingDataset(local=folder), batch_size=8, num_workers=workers)
    with pytest.raises(FormatError, match=r"shard\.00001\.mds: bytes: expected"):
        list(loader)


def test_memory_stays_flat_over_ten_epochs(everything: str) -> None:
    loader = StreamingDataLoader(StreamingDataset(local=everything, shuffle=True), batch_size=16)

    def after(epochs: int) -> int:
        for _ in range(epochs):
            for _ in loader:
                pass
        gc.collect()
        return psutil.Process().memory_info().rss

    warm = after(3)
    assert after(10) - warm < 8 << 20


@WORKERS
@pytest.mark.parametrize("name", ["hashes", "many_shards", "one_shard", "task_folders", "compression/br-3"])
def test_golden_data_sets_load(name: str, workers: int) -> None:
    dataset = StreamingDataset(local=str(GOLDEN / name))
    loader = StreamingDataLoader(dataset, batch_size=5, num_workers=workers)
    for found, right in zip(loader, collated(dataset, 0, 5), strict=True):
        assert found.keys() == right.keys()
        for column, values in right.items():
            if isinstance(values, torch.Tensor):
                torch.testing.assert_close(found[column], values, equal_nan=True, rtol=0, atol=0)
            else:
                assert found[column] == values
