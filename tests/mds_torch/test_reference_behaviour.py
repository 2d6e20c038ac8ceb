"""What mosaicml-streaming's users know of it: arguments, lengths, padding, weights, and what is refused."""

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import mds_torch
from mds_torch import Stream, StreamingDataLoader, StreamingDataset
from tests.reference import run_reference

SIZES = {"a": 7, "b": 10, "c": 23}
WORLDS = [(n, ranks, batch) for n in SIZES for ranks in (1, 2, 4) for batch in (1, 2, 3)]
WEIGHTS: list[tuple[list[dict[str, Any]], Any]] = [
    ([{}, {}, {}], None),
    ([{"repeat": 0.5}, {"repeat": 1.5}, {}], None),
    ([{"choose": 25}, {"choose": 3}, {"repeat": 0}], None),
    ([{"proportion": 1}, {"proportion": 3}, {"proportion": 1}], None),
    ([{"proportion": 0.2}, {"proportion": 0.3}, {"proportion": 0.5}], 10),
    ([{"proportion": 1}, {"proportion": 1}, {"proportion": 2}], "1k"),
    ([{}, {}, {}], 80),
]
WRONG: list[tuple[list[dict[str, Any]], Any]] = [
    ([{"proportion": 1, "repeat": 1}, {}, {}], None),
    ([{"repeat": 1, "choose": 1}, {}, {}], None),
    ([{"proportion": -1}, {"proportion": 1}, {"proportion": 1}], None),
    ([{"repeat": -1}, {}, {}], None),
    ([{"choose": -1}, {}, {}], None),
    ([{"proportion": 1}, {}, {}], None),
    ([{"proportion": 1}, {"repeat": 1}, {}], None),
    ([{"repeat": 2}, {}, {}], 10),
    ([{}, {}, {}], "1e3"),
    ([{}, {}, {}], -1),
]

REFERENCE = """
import inspect, json, sys
from streaming import MDSWriter, Stream, StreamingDataset, StreamingDataLoader

folder, sizes, worlds, weights, wrong = sys.argv[1], *map(json.loads, sys.argv[2:])
for name, size in sizes.items():
    with MDSWriter(out=f"{folder}/{name}", columns={"n": "int"}, size_limit=300) as writer:
        for n in range(size):
            writer.write({"n": n})

def signature(kind):
    return [[p.name, repr(p.default)] for p in inspect.signature(kind.__init__).parameters.values()]

def streams(all_weights):
    return [Stream(local=f"{folder}/{name}", **w) for name, w in zip(sizes, all_weights)]

found = {"signatures": {kind.__name__: signature(kind) for kind in (Stream, StreamingDataset, StreamingDataLoader)}}
found["loaders"] = []
for name, ranks, batch in worlds:
    if ranks == 1:
        dataset = StreamingDataset(local=f"{folder}/{name}", batch_size=batch)
        loaders = [StreamingDataLoader(dataset, batch_size=batch, drop_last=drop) for drop in (False, True)]
        batches = [[len(b["n"]) for b in loader] for loader in loaders]
        found["loaders"].append([len(dataset), dataset.size, [len(loader) for loader in loaders], batches])
found["samples"] = []
for all_weights, epoch_size in weights:
    dataset = StreamingDataset(streams=streams(all_weights), epoch_size=epoch_size, batch_size=1)
    found["samples"].append([dataset.epoch_size, [stream.choose for stream in dataset.streams]])
found["refused"] = []
for all_weights, epoch_size in wrong:
    try:
        StreamingDataset(streams=streams(all_weights), epoch_size=epoch_size, batch_size=1)
        found["refused"].append(None)
    except Exception as error:
        found["refused"].append(type(error).__name__)
print("found:" + json.dumps(found, default=int))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three data sets that the reference wrote."""
    return tmp_path_factory.mktemp("reference")


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[str, Any]:
    """What the reference does."""
    arguments = (SIZES, WORLDS, WEIGHTS, WRONG)
    out = run_reference(REFERENCE, str(folder), *map(json.dumps, arguments))
    found: dict[str, Any] = json.loads(out[out.rindex("found:") + 6 :])
    return found


def streams(folder: Path, weights: list[dict[str, Any]]) -> list[Stream]:
    return [Stream(local=str(folder / name), **one) for name, one in zip(SIZES, weights, strict=True)]


@pytest.mark.parametrize("name", ["Stream", "StreamingDataset"])
def test_every_argument_is_there_with_its_default(name: str, reference: dict[str, Any]) -> None:
    ours = inspect.signature(getattr(mds_torch, name).__init__).parameters
    theirs = dict(reference["signatures"][name])
    assert [key for key in theirs if key not in ours] == []
    assert [key for key in theirs if repr(ours[key].default) != theirs[key]] == []
    # Those that are ours come after them.
    assert list(ours)[: len(theirs)] == list(theirs) or name == "Stream"


def test_epochs_have_the_same_lengths(reference: dict[str, Any], folder: Path) -> None:
    found = iter(reference["loaders"])
    for name, ranks, batch_size in WORLDS:
        length = -(-SIZES[name] // ranks)
        for rank in range(ranks):
            dataset = StreamingDataset(
                local=str(folder / name), batch_size=batch_size, rank=rank, world_size=ranks, shuffle=True
            )
            assert len(dataset) == dataset.length == length
            assert len(list(dataset)) == length
        if ranks > 1:
            continue
        loaders = [StreamingDataLoader(dataset, batch_size=batch_size, drop_last=drop) for drop in (False, True)]
        batches = [[len(batch["n"]) for batch in loader] for loader in loaders]
        assert [len(dataset), dataset.size, [len(loader) for loader in loaders], batches] == next(found)


def test_ranks_are_filled_up_with_samples_that_are_there(reference: dict[str, Any], folder: Path) -> None:
    for name, ranks, batch_size in WORLDS:
        parts = [
            [
                int(sample["n"])
                for sample in StreamingDataset(
                    local=str(folder / name), batch_size=batch_size, rank=rank, world_size=ranks
                )
            ]
            for rank in range(ranks)
        ]
        had = sorted(itertools.chain.from_iterable(parts))
        assert set(had) == set(range(SIZES[name]))
        assert len(had) == -(-SIZES[name] // ranks) * ranks


def test_weights_come_to_the_same_numbers(reference: dict[str, Any], folder: Path) -> None:
    for (weights, epoch_size), (size, samples) in zip(WEIGHTS, reference["samples"], strict=True):
        dataset = StreamingDataset(streams=streams(folder, weights), epoch_size=epoch_size, batch_size=1)
        assert dataset.epoch_size == size
        # A sample that is left over goes to a stream by lot there, to the largest remainder here.
        for ours, theirs in zip(dataset.plan.stream_samples, samples, strict=True):
            assert abs(ours - theirs) <= 1
        if all("proportion" not in one for one in weights) and epoch_size is None:
            assert dataset.plan.stream_samples == samples


def test_what_is_refused_there_is_refused_here(reference: dict[str, Any], folder: Path) -> None:
    assert reference["refused"] == ["ValueError"] * len(WRONG)
    for weights, epoch_size in WRONG:
        with pytest.raises(ValueError, match=r"expected|have none"):
            StreamingDataset(streams=streams(folder, weights), epoch_size=epoch_size, batch_size=1)
