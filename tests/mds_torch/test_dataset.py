"""StreamingDataset: a data set's samples, shared out over ranks and workers."""

import json
import pickle
import shutil
import subprocess
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset

from mds_core import FormatError, MDSReader, MDSWriter
from mds_torch import StreamingDataset

Make = Callable[..., Path]
RunScript = Callable[..., "subprocess.CompletedProcess[str]"]
ROWS = [{"n": n, "s": "x" * n} for n in range(30)]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def numbers(samples: Any) -> list[int]:
    return [int(sample["n"]) for sample in samples]


class Doubled(StreamingDataset):
    """Changes samples, as users do."""

    def __getitem__(self, at: Any) -> Any:
        return 2 * int(super().__getitem__(at)["n"])


# A sequence


def test_it_is_an_iterable_dataset_of_known_length(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty)
    assert isinstance(dataset, IterableDataset)
    assert len(dataset) == dataset.size == 30
    assert dataset.columns == {"n": "int64", "s": "str"}


def test_samples_are_read_by_number(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True)
    assert [dataset[i] for i in range(30)] == ROWS
    assert [dataset[-i] for i in range(1, 31)] == ROWS[::-1]
    assert dataset[np.int64(4)] == ROWS[4]
    assert dataset[[3, 1, 3]] == [ROWS[3], ROWS[1], ROWS[3]]


@pytest.mark.parametrize("at", [slice(None), slice(3, 7), slice(-3, None), slice(None, None, -4), slice(7, 3)], ids=str)
def test_slices_are_those_of_a_list(at: slice, thirty: str) -> None:
    assert StreamingDataset(local=thirty)[at] == ROWS[at]


@pytest.mark.parametrize("at", [30, -31])
def test_a_number_outside_is_an_index_error(at: int, thirty: str) -> None:
    with pytest.raises(IndexError, match="of a data set of 30 samples"):
        StreamingDataset(local=thirty)[at]


def test_numbers_count_the_whole_data_set_on_every_rank(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, rank=2, world_size=3)
    assert len(dataset) == 10
    assert dataset.size == 30
    assert dataset[29] == ROWS[29]


# Epochs


def test_without_shuffle_iteration_is_the_data_set_in_order(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty)
    assert list(dataset) == list(MDSReader(thirty)) == ROWS
    assert list(dataset) == ROWS


def test_each_shuffled_epoch_is_another_permutation(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True)
    epochs = [list(dataset) for _ in range(3)]
    for epoch in epochs:
        assert sorted(numbers(epoch)) == list(range(30))
        assert sorted(epoch, key=lambda sample: sample["n"]) == ROWS
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_set_epoch_brings_an_epochs_order_back(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True)
    epochs = [numbers(dataset) for _ in range(4)]
    dataset.set_epoch(2)
    assert numbers(dataset) == epochs[2]
    assert numbers(dataset) == epochs[3]
    assert [dataset.epoch_order(epoch)[:].tolist() for epoch in range(4)] == epochs


def test_a_seed_makes_the_order(thirty: str) -> None:
    first, again, other = (StreamingDataset(local=thirty, shuffle=True, shuffle_seed=seed) for seed in (1, 1, 2))
    assert numbers(first) == numbers(again) != numbers(other)


def test_a_block_size_may_be_text(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True, shuffle_block_size="1k")
    assert sorted(numbers(dataset)) == list(range(30))


def test_iterating_is_lazy(thirty: str) -> None:
    shutil.copytree(thirty, f"{thirty}.copy")
    dataset = StreamingDataset(local=f"{thirty}.copy")
    for path in Path(f"{thirty}.copy").glob("*.mds"):
        path.unlink()
    samples = iter(dataset)
    with pytest.raises(FileNotFoundError, match=r"shard\.00000\.mds is missing"):
        next(samples)


# Where it lies


def test_the_folder_is_given_as_local_or_remote(thirty: str, tmp_path: Path) -> None:
    assert numbers(StreamingDataset(remote=thirty)) == list(range(30))
    assert numbers(StreamingDataset(remote=thirty, local=str(tmp_path / "cache"))) == list(range(30))


def test_a_split_is_a_subfolder(make: Make) -> None:
    make({"n": "int64"}, ({"n": n} for n in range(3)), name="data/train")
    folder = make({"n": "int64"}, ({"n": n} for n in range(3, 5)), name="data/val").parent
    assert numbers(StreamingDataset(local=str(folder), split="train")) == [0, 1, 2]
    assert numbers(StreamingDataset(remote=str(folder), split="val")) == [3, 4]


def test_reading_leaves_the_data_set_as_it_was(thirty: str) -> None:
    before = {path.name: path.read_bytes() for path in Path(thirty).iterdir()}
    list(StreamingDataset(local=thirty, shuffle=True))
    assert {path.name: path.read_bytes() for path in Path(thirty).iterdir()} == before


@pytest.mark.parametrize("split", [None, "train"])
def test_a_missing_data_set_is_named(split: str | None, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere"):
        StreamingDataset(local=str(tmp_path / "nowhere"), split=split)


def test_a_broken_index_is_named(thirty: str) -> None:
    (Path(thirty) / "index.json").write_text("{")
    with pytest.raises(FormatError, match=r"index\.json"):
        StreamingDataset(local=thirty)


@WORKERS
def test_an_empty_data_set_has_no_samples(workers: int, make: Make) -> None:
    dataset = StreamingDataset(local=str(make({"n": "int64"}, [])), shuffle=True)
    assert len(dataset) == 0
    assert list(dataset) == []
    assert list(DataLoader(dataset, batch_size=2, num_workers=workers)) == []
    assert len(StreamingDataset(local=dataset.streams[0].local, rank=1, world_size=2)) == 0


# Arguments


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"local": None}, "expected streams, or a path in remote or local; found neither"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, found 0"),
        ({"batch_size": -3}, "batch_size: expected a whole number of at least 1, found -3"),
        ({"num_canonical_nodes": -1}, "num_canonical_nodes: expected a whole number of at least 0, found -1"),
        ({"shuffle_block_size": -1}, "shuffle_block_size"),
        ({"epoch_size": "-1"}, "epoch_size"),
        ({"sampling_granularity": 0}, "sampling_granularity: expected a whole number of at least 1, found 0"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number of at least 1, found 2.5"),
        ({"num_canonical_nodes": "2"}, "num_canonical_nodes: expected a whole number of at least 0, found '2'"),
        ({"rank": "0", "world_size": 2}, "rank: expected a whole number of at least 0, found '0'"),
        ({"shuffle_block_size": 2**70}, "shuffle_block_size: expected a whole number of at least 1"),
        ({"replication": 0}, "replication: expected a whole number of at least 1, found 0"),
        ({"shuffle_algo": "py3"}, "shuffle_algo: expected one of naive, py1s, py2s, py1br, py1e, found 'py3'"),
        ({"batching_method": "all"}, "batching_method: expected one of random, stratified, per_stream"),
        ({"sampling_method": "luck"}, "sampling_method: expected one of balanced, fixed"),
        ({"partition_algo": "old"}, "partition_algo: expected one of relaxed, orig"),
        ({"stream_name": "text"}, "stream_name: expected one of stream"),
        ({"shuffle_block_size": "many"}, "shuffle_block_size"),
        ({"shuffle": True, "shuffle_seed": -1}, "shuffle_seed"),
        ({"validate_hash": "md5"}, "md5"),
        ({"validate_hash": "nonsense"}, "nonsense"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_at_once_by_name(wrong: dict[str, Any], match: str, thirty: str) -> None:
    with pytest.raises(ValueError, match=match):
        StreamingDataset(**{"local": thirty, **wrong})


@pytest.mark.parametrize("epoch", [-1, 1.5, "0", None, 2**63])
def test_an_epoch_is_a_number_from_0_on(epoch: Any, thirty: str) -> None:
    dataset = StreamingDataset(local=thirty)
    with pytest.raises(ValueError, match="set_epoch: epoch: expected a whole number of at least 0"):
        dataset.set_epoch(epoch)
    assert dataset.epoch == 0


def test_unknown_arguments_are_refused(thirty: str) -> None:
    with pytest.raises(TypeError, match="shufle"):
        StreamingDataset(local=thirty, shufle=True)  # type: ignore[call-arg]


def test_pickled_columns_need_leave(make: Make) -> None:
    folder = str(make({"p": "pkl"}, [{"p": {1, 2}}]))
    with pytest.raises(ValueError, match="allow_unsafe_types=True"):
        StreamingDataset(local=folder)
    assert list(StreamingDataset(local=folder, allow_unsafe_types=True)) == [{"p": {1, 2}}]


def test_a_shard_that_fails_its_hash_is_named(thirty: str) -> None:
    path = sorted(Path(thirty).glob("*.mds"))[1]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"y")
    assert len(list(StreamingDataset(local=thirty))) == 30
    with pytest.raises(FormatError, match=rf"{path.name}: xxh64"):
        list(StreamingDataset(local=thirty, validate_hash="xxh64"))
    path.write_bytes(data)
    assert list(StreamingDataset(local=thirty, validate_hash="xxh64")) == ROWS


# Ranks


@pytest.mark.parametrize(("world", "nodes"), [(1, 1), (2, 1), (2, 2), (6, 3)])
@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_ranks_by_hand_share_the_samples(world: int, nodes: int, batch_size: int | None, thirty: str) -> None:
    parts = []
    for rank in range(world):
        dataset = StreamingDataset(
            local=thirty,
            shuffle=True,
            batch_size=batch_size,
            rank=rank,
            world_size=world,
            local_world_size=world // nodes,
        )
        parts.append(numbers(dataset))
        assert len(parts[-1]) == len(dataset) == 30 // world
    assert sorted(chain.from_iterable(parts)) == list(range(30))


def test_the_order_is_the_same_on_any_number_of_ranks(thirty: str) -> None:
    def steps(world: int) -> list[set[int]]:
        ranks = [
            numbers(StreamingDataset(local=thirty, shuffle=True, batch_size=6 // world, rank=rank, world_size=world))
            for rank in range(world)
        ]
        size = 6 // world
        return [{i for ids in ranks for i in ids[size * step : size * (step + 1)]} for step in range(5)]

    assert steps(1) == steps(2) == steps(3) == steps(6)


PRINT = """
import sys
from mds_torch import StreamingDataset
dataset = StreamingDataset(local=sys.argv[1], shuffle=True)
print(len(dataset), *(sample["n"] for sample in dataset))
"""


def test_ranks_come_from_the_environment(thirty: str, run_script: RunScript) -> None:
    ids = []
    for rank in "01":
        ended = run_script(PRINT, thirty, RANK=rank, WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")
        length, *part = map(int, ended.stdout.split())
        assert length == len(part) == 15, ended.stderr
        ids += part
    assert sorted(ids) == list(range(30))


TORCHRUN = """
import json, sys
import torch.distributed as dist
from torch.utils.data import DataLoader
from mds_torch import StreamingDataLoader, StreamingDataset

dataset = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=4)
dist.init_process_group("gloo")
kinds = {
    "plain": [int(sample["n"]) for sample in dataset],
    "torch": [i for batch in DataLoader(dataset, batch_size=4, num_workers=2) for i in batch["n"].tolist()],
    "ours": [i for batch in StreamingDataLoader(dataset, batch_size=4, num_workers=2) for i in batch["n"].tolist()],
}
with open(f"{sys.argv[2]}/rank{dist.get_rank()}.json", "w") as file:
    json.dump(kinds, file)
dist.destroy_process_group()
"""


def test_ranks_of_torchrun_share_the_samples(thirty: str, run_script: RunScript, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = run_script(TORCHRUN, thirty, tmp_path, launcher=launcher, OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for kind in ("plain", "torch", "ours"):
        assert len(ranks[0][kind]) == len(ranks[1][kind]) == 15
        assert sorted(ranks[0][kind] + ranks[1][kind]) == list(range(30)), kind


# Copies


def test_a_pickled_dataset_reads_on(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True, batch_size=4, rank=1, world_size=2)
    first = numbers(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    assert numbers(copy) == numbers(dataset) != first
    copy.set_epoch(0)
    assert numbers(copy) == first
    assert copy[29] == ROWS[29]


def test_a_pickle_does_not_carry_shards(make: Make) -> None:
    dataset = StreamingDataset(local=str(make({"b": "bytes"}, ({"b": bytes(10**5)} for _ in range(10)))))
    list(dataset)
    assert len(pickle.dumps(dataset)) < 10_000


# Subclasses, and torch's DataLoader


def test_iteration_gives_what_an_overridden_getitem_does(thirty: str) -> None:
    assert list(Doubled(local=thirty)) == list(range(0, 60, 2))
    assert sorted(Doubled(local=thirty, shuffle=True)) == list(range(0, 60, 2))


@WORKERS
def test_torchs_loader_gives_each_sample_once(workers: int, thirty: str) -> None:
    for shuffle in (False, True):
        dataset = StreamingDataset(local=thirty, shuffle=shuffle, batch_size=4)
        batches = list(DataLoader(dataset, batch_size=4, num_workers=workers))
        ids = [i for batch in batches for i in batch["n"].tolist()]
        assert ids == dataset.epoch_order(0)[:].tolist()
        assert [text for batch in batches for text in batch["s"]] == ["x" * i for i in ids]
        assert len(DataLoader(dataset, batch_size=4)) == len(batches) == 8


@WORKERS
def test_torchs_loader_takes_set_epoch(workers: int, thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True, batch_size=4)
    loader = DataLoader(dataset, batch_size=4, num_workers=workers)
    for epoch in (1, 0, 2):
        dataset.set_epoch(epoch)
        assert [i for batch in loader for i in batch["n"].tolist()] == dataset.epoch_order(epoch)[:].tolist()


@WORKERS
def test_torchs_loader_takes_a_subclass(workers: int, thirty: str) -> None:
    dataset = Doubled(local=thirty, batch_size=4)
    assert [i for batch in DataLoader(dataset, batch_size=4, num_workers=workers) for i in batch.tolist()] == list(
        range(0, 60, 2)
    )


def test_a_data_set_may_have_shards_without_samples(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    with MDSWriter(out=folder, columns={"n": "int64"}, size_limit=1) as writer:
        for n in range(5):
            writer.write({"n": n})
    dataset = StreamingDataset(local=folder, shuffle=True)
    assert dataset.reader.shards[0].samples == 0
    assert sorted(numbers(dataset)) == list(range(5))
