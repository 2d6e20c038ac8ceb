"""Collation at its edges: unsafe columns, golden numbers and images, and torch's own loader without hints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from mds_core import FormatError
from mds_torch import StreamingDataLoader, StreamingDataset

Make = Callable[..., Path]
GOLDEN = Path(__file__).parents[1] / "data" / "golden"
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def as_is(samples: Any) -> Any:
    return samples


@WORKERS
def test_golden_numbers_keep_dtypes_and_bits(workers: int) -> None:
    dataset = StreamingDataset(local=str(GOLDEN / "scalars"))
    samples = dataset[:]
    (batch,) = StreamingDataLoader(dataset, batch_size=len(samples), num_workers=workers)
    assert set(batch) == set(dataset.columns)
    for name, values in batch.items():
        right = np.array([sample[name] for sample in samples], "int64" if name == "int" else name)
        assert values.numpy().dtype == right.dtype
        assert values.numpy().tobytes() == right.tobytes()


@WORKERS
def test_images_reach_a_collation_of_ones_own(workers: int) -> None:
    dataset = StreamingDataset(local=str(GOLDEN / "images"))
    loader = StreamingDataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=as_is)
    found = [sample for batch in loader for sample in batch]
    assert len(found) == len(dataset) > 0
    for sample, right in zip(found, dataset[:], strict=True):
        for name in ("pil", "png", "jpeg"):
            assert sample[name].mode == right[name].mode
            assert sample[name].tobytes() == right[name].tobytes()


@WORKERS
def test_pickled_columns_are_collated_when_allowed(workers: int, make: Make) -> None:
    folder = str(make({"p": "pkl", "n": "int64"}, ({"p": {"a": n, "b": "x" * n}, "n": n} for n in range(7))))
    dataset = StreamingDataset(local=folder, allow_unsafe_types=True)
    batches = list(StreamingDataLoader(dataset, batch_size=3, num_workers=workers))
    assert [batch["p"]["a"].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch["p"]["b"] for batch in batches] == [["", "x", "xx"], ["xxx", "xxxx", "xxxxx"], ["xxxxxx"]]
    assert all(batch["n"].tolist() == batch["p"]["a"].tolist() for batch in batches)


@WORKERS
@pytest.mark.parametrize("order", [{}, {"in_order": False}], ids=str)
@pytest.mark.parametrize("collate", [{}, {"collate_fn": as_is}], ids=["batches", "samples"])
def test_with_in_order_or_without_each_sample_comes_once(
    collate: dict[str, Any], order: dict[str, Any], workers: int, thirty: str
) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers, **order, **collate)
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == 8
        samples = [int(sample["n"]) for batch in batches for sample in batch] if collate else None
        ids = samples or [i for batch in batches for i in batch["n"].tolist()]
        assert sorted(ids) == list(range(30))


@WORKERS
def test_torchs_default_collation_may_be_given_by_name(workers: int, thirty: str) -> None:
    loaders = [
        StreamingDataLoader(
            StreamingDataset(local=thirty, shuffle=True), batch_size=4, num_workers=workers, **arguments
        )
        for arguments in ({}, {"collate_fn": default_collate})
    ]
    for a, b in zip(*loaders, strict=True):
        assert torch.equal(a["n"], b["n"])
        assert a["s"] == b["s"]


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")  # workers' last batches are smaller: they are more
@WORKERS
@pytest.mark.parametrize("shuffle", [False, True])
def test_torchs_loader_gives_each_sample_once_without_being_told_its_batch_size(
    shuffle: bool, workers: int, thirty: str
) -> None:
    loader = DataLoader(StreamingDataset(local=thirty, shuffle=shuffle), batch_size=4, num_workers=workers)
    assert sorted(i for batch in loader for i in batch["n"].tolist()) == list(range(30))


class Failing(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        if at == 17:
            raise KeyError("my own mistake")
        return super().__getitem__(at)["n"]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_users_getitem_reaches_the_loop(workers: int, thirty: str) -> None:
    loader = StreamingDataLoader(Failing(local=thirty), batch_size=4, num_workers=workers)
    with pytest.raises(KeyError, match="my own mistake"):
        list(loader)


def test_several_columns_of_lists_and_text_keep_their_places(make: Make) -> None:
    # Some columns travel in the block, others beside it; a batch has all, in the data set's order.
    columns = {"j": "json", "a": "str", "x": "ndarray:float32", "b": "bytes", "k": "json", "n": "uint16"}
    rows = [
        {"j": [n], "a": "a" * n, "x": np.full(3, n), "b": b"b" * (20 - n), "k": {"v": str(n)}, "n": n}
        for n in range(20)
    ]
    dataset = StreamingDataset(local=str(make(columns, rows, size_limit=700)))
    for number, batch in enumerate(StreamingDataLoader(dataset, batch_size=6, num_workers=2)):
        right = default_collate(dataset[6 * number : 6 * (number + 1)])
        assert list(batch) == list(right)
        assert [batch[name] for name in "abk"] == [right[name] for name in "abk"]
        assert torch.equal(batch["j"][0], right["j"][0])
        assert torch.equal(batch["x"], right["x"])
        assert torch.equal(batch["n"], right["n"])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("encoding", "head"), [("ndarray", b"\x11\x04\x04"), ("ndarray:int16", b"\x04\x04")])
def test_a_broken_array_raises_with_its_shards_name(encoding: str, head: bytes, workers: int, make: Make) -> None:
    rows = ({"x": np.arange(4, dtype=np.int16)} for _ in range(40))
    folder = make({"x": encoding}, rows, size_limit=500)
    shard = sorted(folder.glob("*.mds"))[1]
    data = bytearray(shard.read_bytes())
    at = data.index(head + bytes([0, 0, 1, 0]))
    data[at] = 0xFF
    shard.write_bytes(data)
    loader = StreamingDataLoader(StreamingDataset(local=str(folder)), batch_size=4, num_workers=workers)
    with pytest.raises(FormatError, match=rf"{shard.name}: sample \d+, column 'x'"):
        list(loader)
