"""What a dataset reads: several streams, some columns, what a filter leaves, and what a transform makes of it."""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from mds_core import FormatError
from mds_torch import Stream, StreamingDataLoader, StreamingDataset

Make = Callable[..., Path]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture
def abc(make: Make) -> list[str]:
    """Three data sets of 7, 10 and 23 samples, in shards of a few."""
    return [
        str(make({"n": "int64", "s": "str"}, ({"n": 100 * k + n, "s": f"{k}" * n} for n in range(size)), name=name,
                 size_limit=300))
        for k, (name, size) in enumerate({"a": 7, "b": 10, "c": 23}.items())
    ]  # fmt: skip


def numbers(samples: Any) -> list[int]:
    return [int(sample["n"]) for sample in samples]


def batched(loader: Any) -> list[int]:
    return [i for batch in loader for i in batch["n"].tolist()]


# Streams


@WORKERS
def test_streams_are_read_together(workers: int, abc: list[str]) -> None:
    every = [100 * k + n for k, size in enumerate((7, 10, 23)) for n in range(size)]
    dataset = StreamingDataset(streams=[Stream(local=path) for path in abc], batch_size=4)
    assert (len(dataset), dataset.size, dataset.num_samples, dataset.epoch_size, dataset.num_streams) == (
        40,
        40,
        40,
        40,
        3,
    )
    assert batched(StreamingDataLoader(dataset, batch_size=4, num_workers=workers)) == every
    assert numbers(dataset) == every
    assert [dataset[i]["n"] for i in (0, 6, 7, 16, 17, -1)] == [0, 6, 100, 109, 200, 222]
    assert numbers(dataset[5:9]) == [5, 6, 100, 101]
    with pytest.raises(IndexError):
        dataset[40]
    shuffled = StreamingDataset(streams=[Stream(local=path) for path in abc], batch_size=4, shuffle=True)
    assert sorted(batched(StreamingDataLoader(shuffled, batch_size=4, num_workers=workers))) == every


def test_a_stream_may_belong_to_several_datasets(abc: list[str]) -> None:
    streams = [Stream(local=path, proportion=1) for path in abc]
    for epoch_size in (30, "60", 90):
        dataset = StreamingDataset(streams=streams, epoch_size=epoch_size)
        assert len(dataset) == dataset.epoch_size == int(epoch_size)
        assert Counter(n // 100 for n in numbers(dataset)) == dict.fromkeys(range(3), int(epoch_size) // 3)
    assert (streams[0].proportion, streams[0].repeat, streams[0].choose) == (1, None, None)


@WORKERS
def test_weights_say_how_much_of_each_stream_comes(workers: int, abc: list[str]) -> None:
    streams = [Stream(local=abc[0], repeat=2), Stream(local=abc[1], choose=4), Stream(local=abc[2])]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=5)
    loader = StreamingDataLoader(dataset, batch_size=5, num_workers=workers)
    epochs = [batched(loader) for _ in range(3)]
    for epoch in epochs:
        assert Counter(n // 100 for n in epoch) == {0: 14, 1: 4, 2: 23}
        assert max(Counter(n for n in epoch if n >= 100).values()) == 1
    chosen = [sorted(n for n in epoch if 100 <= n < 200) for epoch in epochs]
    assert chosen[0] != chosen[1] or chosen[1] != chosen[2]


def test_a_config_is_that_of_the_only_stream(abc: list[str]) -> None:
    config = {"repeat": 2}
    assert len(StreamingDataset(local=abc[0], stream_config=config)) == 14
    assert config == {"repeat": 2}


def test_a_split_of_the_dataset_is_that_of_streams_without_one(make: Make) -> None:
    for name in ("x/train", "x/val", "y/train"):
        make({"n": "int64"}, ({"n": n} for n in range(len(name))), name=name)
    folders = [str(make({"n": "int64"}, [], name=name).parent / name[0]) for name in ("x1", "y1")]
    dataset = StreamingDataset(streams=[Stream(local=folders[0], split="val"), Stream(local=folders[1])], split="train")
    assert len(dataset) == 5 + 7


@pytest.mark.parametrize(
    ("streams", "options", "match"),
    [
        ([{"proportion": 1}, {}], {}, r"streams \[0\] have a proportion and \[1\] have none"),
        ([{"repeat": 1}, {}], {"epoch_size": 5}, "epoch_size: expected none"),
        ([{}, {}], {"local": "/somewhere"}, "expected streams, or a path in remote or local; found both"),
        ([], {}, "found neither"),
    ],
)
def test_streams_that_do_not_go_together_are_refused(
    streams: list[dict[str, Any]], options: dict[str, Any], match: str, abc: list[str]
) -> None:
    with pytest.raises(ValueError, match=match):
        StreamingDataset(
            streams=[Stream(local=path, **more) for path, more in zip(abc, streams, strict=False)], **options
        )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "expected a path in local or remote"),
        ({"local": "/x", "proportion": 1, "repeat": 2}, "/x: expected at most one of proportion, repeat and choose"),
        ({"remote": "/x", "choose": -1}, "/x: choose: expected a whole number from 0 on, found -1"),
    ],
)
def test_a_wrong_stream_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Stream(**options)


def test_things_of_other_kinds_are_refused(abc: list[str]) -> None:
    with pytest.raises(TypeError, match=r"streams: expected a list of Stream objects, found \['str'"):
        StreamingDataset(streams=abc)  # type: ignore[arg-type]
    for options in ({"filter": ["n", len]}, {"filter": ("n", 3)}, {"transform": 3}):
        with pytest.raises(ValueError, match=r"expected a function.*, found"):
            StreamingDataset(local=abc[0], **options)


def test_all_wrong_arguments_are_told_at_once(abc: list[str]) -> None:
    with pytest.raises(ValueError, match=r"shuffle_algo.*\n.*batching_method") as error:
        StreamingDataset(local=abc[0], shuffle_algo="x", batching_method="y", batch_size=0)
    assert "batch_size" in str(error.value)


@pytest.mark.parametrize("batching", ["per_stream", "device_per_stream"])
@WORKERS
def test_batches_of_one_stream_may_have_columns_of_their_own(batching: str, workers: int, make: Make) -> None:
    folders = [
        make({"n": "int64", "x": "str"}, ({"n": n, "x": "x"} for n in range(20)), name="x"),
        make({"n": "int64", "y": "int32"}, ({"n": 100 + n, "y": 1} for n in range(20)), name="y"),
    ]
    dataset = StreamingDataset(
        streams=[Stream(local=str(folder)) for folder in folders], batching_method=batching, batch_size=4, shuffle=True
    )
    found = list(StreamingDataLoader(dataset, batch_size=4, num_workers=workers))
    assert len(found) == 10
    assert Counter(tuple(batch) for batch in found) == {("n", "x"): 5, ("n", "y"): 5}
    assert sorted(batched(found)) == [*range(20), *range(100, 120)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_batching_methods_on_ranks(ranks: int, abc: list[str]) -> None:
    def steps(batching: str) -> list[list[list[int]]]:
        parts = []
        for rank in range(ranks):
            dataset = StreamingDataset(
                streams=[Stream(local=path) for path in abc],
                shuffle=True,
                batch_size=2,
                batching_method=batching,
                rank=rank,
                world_size=ranks,
            )
            loader = StreamingDataLoader(dataset, batch_size=2)
            parts.append([batch["n"].tolist() for batch in loader])
            assert len(loader) == len(parts[-1])
            assert len(dataset) == sum(map(len, parts[-1]))
        return [list(step) for step in zip(*parts, strict=True)]

    for step in steps("per_stream"):
        assert len({n // 100 for batch in step for n in batch}) == 1
    for step in steps("device_per_stream"):
        assert all(len({n // 100 for n in batch}) == 1 for batch in step)


def test_batches_of_one_stream_need_a_batch_size(abc: list[str]) -> None:
    dataset = StreamingDataset(streams=[Stream(local=path) for path in abc], batching_method="per_stream")
    with pytest.raises(ValueError, match="'per_stream' needs a batch_size"):
        list(dataset)
    with pytest.raises(ValueError, match="stream 0 has 7 samples an epoch, less than one batch of 8"):
        list(StreamingDataLoader(dataset, batch_size=8))


# Columns


@WORKERS
def test_only_the_columns_that_are_asked_for_are_read(workers: int, make: Make) -> None:
    columns = {"n": "int64", "broken": "json", "s": "str", "x": "float32", "p": "pkl"}
    rows = ({"n": n, "broken": n, "s": "s" * n, "x": n, "p": {1}} for n in range(20))
    folder = make(columns, rows)
    # What is not read is not decoded: its bytes may be anything.
    path = folder / "shard.00000.mds"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"1", b"{") if b'"1"' in data else data)
    for names in (["n"], ["x", "n"], ["s"], ["s", "n"]):
        dataset = StreamingDataset(local=str(folder), columns=names, batch_size=4)
        assert list(dataset.columns) == [name for name in sorted(columns) if name in names]
        assert set(dataset[3]) == set(names)
        assert [set(sample) for sample in dataset] == [set(names)] * 20
        found = list(StreamingDataLoader(dataset, batch_size=4, num_workers=workers))
        assert [set(batch) for batch in found] == [set(names)] * 5
        if "n" in names:
            assert batched(found) == list(range(20))
        if "s" in names:
            assert [text for batch in found for text in batch["s"]] == ["s" * n for n in range(20)]


def test_a_broken_column_is_an_error_only_where_it_is_read(make: Make) -> None:
    folder = make({"j": "json", "n": "int64", "s": "str"}, ({"j": [n, "mark"], "n": n, "s": ""} for n in range(20)))
    path = folder / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b'"mark"', b'"mark{'))
    assert len(list(StreamingDataset(local=str(folder), columns=["n", "s"]))) == 20
    assert len(list(StreamingDataLoader(StreamingDataset(local=str(folder), columns=["n"]), batch_size=3))) == 7
    for read in (lambda dataset: list(dataset), lambda dataset: dataset[3]):
        with pytest.raises(FormatError, match="column 'j'"):
            read(StreamingDataset(local=str(folder)))


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        (["n", "m"], ValueError, r"columns: expected names from \['n', 's'\].*found \['m'\]"),
        ([], ValueError, "found none"),
        ("n", TypeError, r"expected a list of names, found the text 'n'; give \['n'\]"),
    ],
)
def test_wrong_columns_are_named(columns: Any, error: type[Exception], match: str, thirty: str) -> None:
    with pytest.raises(error, match=match):
        StreamingDataset(local=thirty, columns=columns)


# Filters


@pytest.mark.parametrize(
    "keeps", [lambda ids: ids % 3 == 0, ("n", lambda n: n % 3 == 0), ("s", lambda s: [len(t) % 3 == 0 for t in s])]
)
@WORKERS
def test_a_filter_leaves_samples_out_on_all_ranks_alike(keeps: Any, workers: int, thirty: str) -> None:
    left = list(range(0, 30, 3))
    for shuffle in (False, True):
        parts = []
        for rank in range(3):
            dataset = StreamingDataset(
                local=thirty, shuffle=shuffle, batch_size=2, filter=keeps, rank=rank, world_size=3
            )
            assert (len(dataset), dataset.epoch_size, dataset.size) == (4, 10, 30)
            loader = StreamingDataLoader(dataset, batch_size=2, num_workers=workers)
            parts.append(batched(loader))
            assert len(parts[-1]) == 4
            assert len(loader) == 2
        assert set(chain.from_iterable(parts)) == set(left)


def test_a_filter_goes_on_where_it_was(thirty: str) -> None:
    def loader() -> StreamingDataLoader:
        dataset = StreamingDataset(local=thirty, shuffle=True, batch_size=2, filter=("n", lambda n: n % 2 == 0))
        return StreamingDataLoader(dataset, batch_size=2, num_workers=2)

    first = loader()
    right = batched(first)
    assert len(right) == 15
    for stop in (0, 3, 7):
        second, third = loader(), loader()
        iterator = iter(second)
        assert batched(next(iterator) for _ in range(stop)) == right[: 2 * stop]
        third.load_state_dict(second.state_dict())
        assert batched(third) == right[2 * stop :]


def test_a_filter_is_asked_once_for_each_shard(thirty: str) -> None:
    asked = []

    def keeps(ids: Any) -> Any:
        asked.append(len(ids))
        return np.ones(len(ids), bool)

    dataset = StreamingDataset(local=thirty, filter=keeps)
    assert asked == []
    for _ in range(2):
        assert len(list(dataset)) == 30
    assert len(asked) == len(dataset.reader.shards)
    assert sum(asked) == 30


def test_a_filter_that_leaves_nothing_is_an_empty_epoch(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, filter=lambda ids: ids < 0, shuffle=True)
    assert len(dataset) == 0
    assert list(dataset) == []


@pytest.mark.parametrize(
    ("keeps", "match"),
    [
        (lambda ids: ids, r"expected bool\[\d+\] for the samples of shard.*found int64"),
        (lambda ids: np.ones(3, bool), r"found bool\[3\]"),
        (("m", lambda values: values), r"expected a column from \('n', 's'\)|expected a column from \['n', 's'\]"),
    ],
)
def test_a_wrong_filter_is_named(keeps: Any, match: str, thirty: str) -> None:
    with pytest.raises(ValueError, match=match):
        list(StreamingDataset(local=thirty, filter=keeps))


# Transforms


def double(sample: dict[str, Any]) -> Any:
    return {"twice": torch.tensor(sample["n"] * 2), "s": sample["s"].upper()}


@WORKERS
def test_a_transform_makes_what_is_given(workers: int, thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, transform=double, batch_size=4)
    assert dataset[3] == {"twice": 6, "s": "XXX"}
    assert dataset[3:5] == [dataset[3], dataset[4]]
    assert [int(sample["twice"]) for sample in dataset] == list(range(0, 60, 2))
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers)
    found = list(loader)
    assert [i for batch in found for i in batch["twice"].tolist()] == list(range(0, 60, 2))
    assert found[1]["s"] == ["X" * n for n in range(4, 8)]
    assert loader.state_dict()["epoch"] == 2
    plain = [i for batch in DataLoader(dataset, batch_size=4, num_workers=workers) for i in batch["twice"].tolist()]
    assert plain == list(range(0, 60, 2))


def test_a_subset_reads_many_samples_at_once(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty)
    assert numbers(dataset.__getitems__([7, 3, 29])) == [7, 3, 29]
    subset: Any = Subset(dataset, [5, 1, 2])  # type: ignore[arg-type]
    assert numbers(subset) == [5, 1, 2]
    assert numbers(subset.__getitems__([0, 2])) == [5, 2]
    assert dataset.get_item(4)["n"] == 4


# Exact evaluation


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@WORKERS
def test_without_padding_each_sample_comes_exactly_once(ranks: int, workers: int, thirty: str) -> None:
    for batch_size in (1, 4, 30):
        parts = []
        for rank in range(ranks):
            dataset = StreamingDataset(local=thirty, pad=False, batch_size=batch_size, rank=rank, world_size=ranks)
            loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers)
            parts.append(batched(loader))
            assert len(dataset) == len(parts[-1])
            assert len(loader) == -(-len(parts[-1]) // batch_size)
        assert sorted(chain.from_iterable(parts)) == list(range(30))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        if workers and batch_size == 4:
            break
