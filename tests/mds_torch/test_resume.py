"""Resuming: what state_dict says, and that the rest comes, however it is read."""

import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from mds_torch import Stream, StreamingDataLoader, StreamingDataset

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of 203 samples in shards of 20."""
    from mds_core import MDSWriter

    path = tmp_path_factory.mktemp("resume") / "data"
    with MDSWriter(out=str(path), columns={"n": "int64", "s": "str", "j": "json"}, size_limit=1_000) as writer:
        for n in range(203):
            writer.write({"n": n, "s": "x" * (n % 5), "j": [n, [n]]})
    return str(path)


def dataset_of(folder: str, **options: Any) -> StreamingDataset:
    return StreamingDataset(**{"local": folder, "shuffle": True, "batch_size": 8, "shuffle_block_size": 50, **options})


def ids(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch["n"].tolist()]


def order(dataset: StreamingDataset, epoch: int = 0) -> list[int]:
    found: list[int] = dataset.epoch_order(epoch)[:].tolist()
    return found


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """A state that went through a checkpoint file."""
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


def identity(samples: Any) -> Any:
    return samples


class Own(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)["n"]


# The loader

LOADERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 1, "multiprocessing_context": "spawn"},
    {"num_workers": 3, "multiprocessing_context": "forkserver", "prefetch_factor": 5},
]


@pytest.mark.parametrize("options", LOADERS, ids=str)
def test_a_loader_goes_on_after_any_batch(options: dict[str, Any], folder: str) -> None:
    right = order(dataset_of(folder))
    for stop in (1, 26):  # of 26 batches
        loader = StreamingDataLoader(dataset_of(folder), batch_size=8, **options)
        iterator = iter(loader)
        first = [next(iterator) for _ in range(stop)]
        assert ids(first) == right[: stop * 8]
        state = stored(loader.state_dict())
        del iterator
        again = StreamingDataLoader(dataset_of(folder), batch_size=8, **options)
        again.load_state_dict(state)
        assert again.state_dict() == state
        if stop < 26:
            assert ids(again) == right[stop * 8 :]
        assert ids(again) == order(dataset_of(folder), 1)


@pytest.mark.parametrize("options", LOADERS[:3], ids=str)
def test_a_loader_can_be_put_back(options: dict[str, Any], folder: str) -> None:
    loader = StreamingDataLoader(dataset_of(folder), batch_size=8, **options)
    right = order(dataset_of(folder))
    for batch in itertools.islice(loader, 5):
        assert len(batch["n"]) == 8
    state = loader.state_dict()
    assert ids(loader) == order(dataset_of(folder), 1)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert ids(loader) == right[40:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [{"collate_fn": identity}, {"drop_last": True}, {"batch_size": None}, {"batch_size": 7}, {"pin_memory": False}],
)
def test_what_a_batch_looks_like_does_not_matter(options: dict[str, Any], workers: int, folder: str) -> None:
    options = {"batch_size": 8, **options}
    whole = StreamingDataLoader(dataset_of(folder), num_workers=workers, **options)
    right, later = list(whole), list(whole)
    for stop in (3, len(right)):
        loader = StreamingDataLoader(dataset_of(folder), num_workers=workers, **options)
        for _ in itertools.islice(loader, stop):
            pass
        again = StreamingDataLoader(dataset_of(folder), num_workers=workers, **options)
        again.load_state_dict(loader.state_dict())
        assert str(list(again)) == str(right[stop:] or later)


@pytest.mark.parametrize("columns", [["j"], ["s", "n"]])
def test_counting_does_not_look_into_batches(columns: list[str], folder: str) -> None:
    # The first column is a list a sample, which collation turns around.
    loader = StreamingDataLoader(dataset_of(folder, columns=columns), batch_size=8)
    next(iter(loader))
    assert loader.state_dict()["sample_in_epoch"] == 8
    packed = StreamingDataLoader(dataset_of(folder), batch_size=8, collate_fn=lambda samples: torch.zeros(1, 99))
    next(iter(packed))
    assert packed.state_dict()["sample_in_epoch"] == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_tells_the_moment(workers: int, folder: str) -> None:
    loader = StreamingDataLoader(dataset_of(folder, num_canonical_nodes=2), batch_size=8, num_workers=workers)

    def moment() -> tuple[int, int]:
        state = loader.state_dict()
        json.dumps(state, allow_nan=False)
        assert state["version"] == 1
        assert state["num_canonical_nodes"] == 2
        assert state["shuffle_seed"] == 9176
        return state["epoch"], state["sample_in_epoch"]

    assert moment() == (0, 0)
    moments = [moment() for _ in loader]
    # Who has had the last batch has had the epoch.
    assert moments == [*((0, 8 * n) for n in range(1, 26)), (1, 0)]
    assert moment() == (1, 0)
    iterator = iter(loader)
    assert moment() == (1, 0)
    next(iterator)
    assert moment() == (1, 8)


def test_a_state_is_loaded_by_torch_without_code(folder: str, tmp_path: Path) -> None:
    loader = StreamingDataLoader(dataset_of(folder), batch_size=8)
    next(iter(loader))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == loader.state_dict()


# Ranks


def rank_loaders(folder: str, world: int, nodes: int, batch_size: int, **options: Any) -> list[StreamingDataLoader]:
    return [
        StreamingDataLoader(
            dataset_of(folder, rank=rank, world_size=world, local_world_size=world // nodes, **options),
            batch_size=batch_size,
        )
        for rank in range(world)
    ]


@pytest.mark.parametrize("algorithm", ["py1e", "py1s", "py2s", "py1br", "naive"])
def test_other_ranks_nodes_and_batches_go_on_with_what_is_left(algorithm: str, folder: str) -> None:
    options = {"shuffle_algo": algorithm}
    first = rank_loaders(folder, 4, 2, 3, **options)
    had = [i for loader in first for i in ids(itertools.islice(loader, 5))]
    states = [loader.state_dict() for loader in first]
    assert states[0] == states[1] == states[2] == states[3]
    assert states[0]["num_canonical_nodes"] == {"py1s": 128, "py2s": 128}.get(algorithm, 2)
    for world, nodes, batch_size in ((1, 1, 8), (2, 1, 7), (6, 3, 2), (3, 3, 50)):
        second = rank_loaders(folder, world, nodes, batch_size, **options)
        for loader in second:
            loader.load_state_dict(stored(states[0]))
        rest = [i for loader in second for i in ids(loader)]
        assert set(had + rest) == set(range(203))
        assert len(had + rest) < 203 + world
        later = [i for loader in second for i in ids(loader)]
        assert set(later) == set(range(203))


# The dataset itself, and other loaders


@pytest.mark.parametrize("kind", [StreamingDataset, Own])
def test_a_dataset_counts_the_samples_that_it_gave(kind: type[StreamingDataset], folder: str) -> None:
    options = {"local": folder, "shuffle": True, "batch_size": 8, "rank": 1, "world_size": 2}

    def numbers(dataset: StreamingDataset) -> Iterator[int]:
        return (int(sample["n"] if isinstance(sample, dict) else sample) for sample in dataset)

    right = list(numbers(kind(**options)))
    assert len(right) == 102
    for stop in (0, 1, 8, 9, 20, 96, 101, 102):
        dataset = kind(**options)
        assert list(itertools.islice(numbers(dataset), stop)) == right[:stop]
        state = stored(dataset.state_dict())
        assert state["epoch"] == (stop == 102)
        assert state["sample_in_epoch"] == (0 if stop == 102 else stop // 8 * 16)
        assert state["rank_samples"] == (0 if stop == 102 else stop % 8)
        again = kind(**options)
        again.load_state_dict(state)
        if stop < 102:
            assert list(numbers(again)) == right[stop:]
        assert len(list(numbers(again))) == 102


def test_within_a_batch_only_the_same_world_goes_on(folder: str) -> None:
    dataset = dataset_of(folder)
    for _ in itertools.islice(dataset, 10):
        pass
    for options in ({"batch_size": 4}, {"rank": 0, "world_size": 2}):
        other = dataset_of(folder, **options)
        other.load_state_dict(dataset.state_dict())
        with pytest.raises(ValueError, match=r"within a batch.*expected \(1, 1, 8\), found"):
            list(other)
    loader = StreamingDataLoader(dataset_of(folder), batch_size=8, num_workers=2)
    loader.load_state_dict(dataset.state_dict())
    for _ in range(2):  # what is refused is not used up
        with pytest.raises(ValueError, match=r"within a batch.*found StreamingDataLoader; iterate the dataset"):
            list(loader)
    other = dataset_of(folder, batch_size=4)
    other.load_state_dict(dataset.state_dict())
    for _ in range(2):
        with pytest.raises(ValueError, match="within a batch"):
            list(other)


def test_what_a_trainer_counts_itself_is_believed(folder: str) -> None:
    # As Composer does, with any loader.
    dataset = dataset_of(folder)
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    assert len(list(itertools.islice(loader, 5))) == 5
    state = dataset.state_dict(40, True)
    assert (state["epoch"], state["sample_in_epoch"]) == (0, 40)
    again = dataset_of(folder)
    again.load_state_dict(state)
    assert ids(itertools.islice(DataLoader(again, batch_size=8, num_workers=2), 2)) == order(dataset_of(folder))[40:56]
    assert again.state_dict(16, False)["sample_in_epoch"] == 56
    assert again.state_dict(num_samples=48, from_beginning=True)["sample_in_epoch"] == 48
    with pytest.raises(RuntimeError, match="give num_samples"):
        again.state_dict()


def test_a_torch_loader_goes_on_and_then_begins_the_next_epoch(folder: str) -> None:
    for options in LOADERS[:4]:
        dataset = dataset_of(folder)
        dataset.load_state_dict(dataset_of(folder).state_dict(80))
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=8, **options)
        assert ids(loader) == order(dataset_of(folder))[80:]
        assert ids(loader) == order(dataset_of(folder), 1)


def test_a_pickled_dataset_goes_on_where_it_was_told_to(folder: str) -> None:
    dataset = dataset_of(folder)
    dataset.load_state_dict(dataset_of(folder).state_dict(80))
    copy = pickle.loads(pickle.dumps(dataset))
    assert [sample["n"] for sample in copy] == order(dataset_of(folder))[80:]
    assert [sample["n"] for sample in dataset] == order(dataset_of(folder))[80:]


# Streams


@pytest.mark.parametrize("batching", ["random", "stratified", "per_stream", "device_per_stream"])
def test_streams_go_on_in_any_epoch(batching: str, make: Make) -> None:
    # The reference library loses `choose` and `repeat` after its first epoch.
    folders = [
        make({"n": "int64"}, ({"n": 1000 * k + n} for n in range(90)), name=str(k), size_limit=300) for k in (0, 1)
    ]
    streams = [Stream(local=str(folders[0]), repeat=1.5), Stream(local=str(folders[1]), choose=50)]

    def loader() -> StreamingDataLoader:
        dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=5, batching_method=batching)
        return StreamingDataLoader(dataset, batch_size=5, num_workers=2)

    first = loader()
    epochs = [ids(first) for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [185] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    for stop in (0, 11, 37):
        second = loader()
        second.dataset.set_epoch(1)
        assert ids(itertools.islice(second, stop)) == epochs[1][: stop * 5]
        third = loader()
        third.load_state_dict(second.state_dict())
        if stop < 37:
            assert ids(third) == epochs[1][stop * 5 :]
        assert ids(third) == epochs[2]


@pytest.fixture
def two(make: Make) -> list[Stream]:
    """Two streams of 31 samples."""
    folders = [
        make({"n": "int64"}, ({"n": 100 * k + n} for n in range(31)), name=str(k), size_limit=300) for k in (0, 1)
    ]
    return [Stream(local=str(folder)) for folder in folders]


@pytest.mark.parametrize("batching", ["per_stream", "device_per_stream"])
@pytest.mark.parametrize("workers", [0, 1])
def test_groups_are_one_epochs(batching: str, workers: int, two: list[Stream]) -> None:
    # An epoch that goes on with another batch size keeps its groups; the next one has its own.
    def loader(batch_size: int) -> StreamingDataLoader:
        dataset = StreamingDataset(streams=two, batching_method=batching, shuffle=True)
        return StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers)

    for first, second in ((10, 8), (8, 16), (10, 4), (4, 10)):
        fresh = loader(second)
        lengths = [len(batch["n"]) for batch in fresh]
        assert len(lengths) == len(fresh)
        whole = ids(loader(first))
        one, two_ = loader(first), loader(second)
        assert one.state_dict()["samples_per_group"] == 0
        had = ids(itertools.islice(one, 1))
        two_.load_state_dict(one.state_dict())
        iterator = iter(two_)
        had += ids(next(iterator) for _ in range(3))
        three = loader(second)
        three.load_state_dict(two_.state_dict())
        if len(had) < len(whole):
            had += ids(three)
        assert had == whole
        del iterator
        for batch in three:  # of the next epoch
            assert len({i // 100 for i in batch["n"].tolist()}) == 1
        assert len(three) == len(fresh)


def test_loaders_of_other_batch_sizes_have_their_own_groups(two: list[Stream]) -> None:
    dataset = StreamingDataset(streams=two, batching_method="per_stream", shuffle=True, batch_size=4)
    for batch_size in (4, 10, 4):
        loader = StreamingDataLoader(dataset, batch_size=batch_size)
        state = loader.state_dict()
        first = [batch["n"].tolist() for batch in loader]
        assert all(len({i // 100 for i in batch}) == 1 for batch in first)
        loader.load_state_dict(state)
        assert [batch["n"].tolist() for batch in loader] == first


def test_of_two_loaders_each_knows_where_it_is(folder: str) -> None:
    dataset = dataset_of(folder)
    one, two_ = StreamingDataLoader(dataset, batch_size=8), StreamingDataLoader(dataset, batch_size=8)
    iterators = iter(one), iter(two_)
    had = [ids(next(iterator) for _ in range(3)) for iterator in iterators]
    assert [loader.state_dict()["epoch"] for loader in (one, two_)] == [0, 1]
    state = two_.state_dict()
    one.load_state_dict(state)
    assert one.state_dict() == two_.state_dict() == state
    next(iterators[1])
    assert two_.state_dict()["sample_in_epoch"] == 32
    assert had[1] + ids(one) == order(dataset_of(folder), 1)


def test_without_padding_states_are_the_same_on_every_rank(make: Make) -> None:
    seven = str(make({"n": "int64"}, ({"n": n} for n in range(7))))
    loaders = [
        StreamingDataLoader(StreamingDataset(local=seven, pad=False, rank=rank, world_size=2), batch_size=3)
        for rank in (0, 1)
    ]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    assert loaders[0].state_dict() == loaders[1].state_dict()
    assert loaders[0].state_dict()["sample_in_epoch"] == 6


# What is refused


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": 2}, "expected a dict of version 1"),
        ({"version": None}, "expected a dict of version 1"),
        ({"epoch": -1}, "epoch = -1"),
        ({"sample_in_epoch": "7"}, "sample_in_epoch = '7'"),
        ({"shuffle_seed": None}, "shuffle_seed = None"),
    ],
)
def test_a_broken_state_is_named(change: dict[str, Any], match: str, folder: str) -> None:
    dataset = dataset_of(folder)
    with pytest.raises(ValueError, match=match):
        dataset.load_state_dict({**dataset.state_dict(), **change})


def test_the_state_of_another_library_is_refused(folder: str) -> None:
    theirs = {"epoch": 0, "sample_in_epoch": 8, "num_canonical_nodes": 1, "shuffle_seed": 9176}
    with pytest.raises(ValueError, match=r"found keys.*num_canonical_nodes.*set_epoch"):
        dataset_of(folder).load_state_dict(theirs)


@pytest.mark.parametrize(
    "options",
    [{"shuffle_algo": "py1s"}, {"shuffle": False}, {"shuffle_block_size": 60}, {"epoch_size": 100}]
    + [{"batching_method": "stratified"}, {"filter": lambda ids: ids % 2 == 0}],
)
def test_the_state_of_another_order_is_refused(options: dict[str, Any], folder: str) -> None:
    with pytest.raises(ValueError, match="it is of an order with"):
        dataset_of(folder, **options).load_state_dict(dataset_of(folder).state_dict())


def test_seed_and_canonical_nodes_are_those_of_the_state(folder: str) -> None:
    state = dataset_of(folder, shuffle_seed=5, num_canonical_nodes=3).state_dict(16)
    dataset = dataset_of(folder)
    dataset.load_state_dict(state)
    right = dataset_of(folder, shuffle_seed=5, num_canonical_nodes=3)
    assert [sample["n"] for sample in dataset] == order(right)[16:]
    assert [sample["n"] for sample in dataset] == order(right, 1)
