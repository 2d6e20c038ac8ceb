"""Epochs under torch's own DataLoader: each iteration is the next one, for all workers, however they start."""

import itertools
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from mds_torch import StreamingDataLoader, StreamingDataset

RunScript = Callable[..., Any]
LOADERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "multiprocessing_context": "spawn"},
    {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
    {"num_workers": 2, "multiprocessing_context": "forkserver"},
]


def ids(loader: Any) -> list[int]:
    return [i for batch in loader for i in batch["n"].tolist()]


def order(folder: str, epoch: int) -> list[int]:
    found: list[int] = dataset_of(folder).epoch_order(epoch)[:].tolist()
    return found


def dataset_of(folder: str) -> StreamingDataset:
    return StreamingDataset(local=folder, shuffle=True, batch_size=4)


@pytest.mark.parametrize("options", LOADERS, ids=str)
def test_each_iteration_is_the_next_epoch(options: dict[str, Any], thirty: str) -> None:
    dataset = dataset_of(thirty)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=4, **options)
    for epoch in range(3):
        assert dataset.epoch == epoch
        assert ids(loader) == order(thirty, epoch)
    dataset.set_epoch(1)
    assert ids(loader) == order(thirty, 1)
    assert dataset.epoch == 2


@pytest.mark.parametrize("options", LOADERS[:3], ids=str)
def test_a_loop_that_is_left_was_an_epoch(options: dict[str, Any], thirty: str) -> None:
    loader: DataLoader[Any] = DataLoader(dataset_of(thirty), batch_size=4, **options)
    for epoch in range(3):
        assert ids(itertools.islice(loader, 2)) == order(thirty, epoch)[:8]


def test_loaders_of_any_kind_count_together(thirty: str) -> None:
    dataset = dataset_of(thirty)
    loaders: list[Any] = [DataLoader(dataset, batch_size=4, **options) for options in LOADERS[:3]]
    loaders += [StreamingDataLoader(dataset, batch_size=4, **options) for options in LOADERS[:3]]
    loaders += [DataLoader(dataset, batch_size=4, num_workers=3)]
    for epoch, loader in enumerate([*loaders, *loaders]):
        assert ids(loader) == order(thirty, epoch)
    assert [sample["n"] for sample in dataset] == order(thirty, 14)


def be_late(worker: int) -> None:
    time.sleep(0.3 * worker)


def test_two_loops_side_by_side_have_an_epoch_each(thirty: str) -> None:
    # The second loop's workers begin before all of the first's have.
    loader: DataLoader[Any] = DataLoader(dataset_of(thirty), batch_size=4, num_workers=3, worker_init_fn=be_late)
    pairs = list(zip(loader, loader, strict=True))
    found = [ids(pair[0] for pair in pairs), ids(pair[1] for pair in pairs)]
    assert sorted(found) == sorted([order(thirty, 0), order(thirty, 1)])


@pytest.mark.parametrize("options", LOADERS[:3], ids=str)
def test_a_seed_that_is_set_anew_does_not_stop_the_epochs(options: dict[str, Any], thirty: str) -> None:
    # Workers of one iteration know each other by torch's seed.
    loader: DataLoader[Any] = DataLoader(dataset_of(thirty), batch_size=4, **options)
    for epoch in range(3):
        torch.manual_seed(7)
        assert ids(loader) == order(thirty, epoch)


def test_copies_count_for_themselves(thirty: str) -> None:
    dataset = dataset_of(thirty)
    assert ids(DataLoader(dataset, batch_size=4, num_workers=2)) == order(thirty, 0)
    copy = pickle.loads(pickle.dumps(dataset))
    assert ids(DataLoader(copy, batch_size=4, num_workers=2)) == order(thirty, 1)
    assert dataset.epoch == 1
    assert ids(DataLoader(dataset, batch_size=4, num_workers=2)) == order(thirty, 1)


RANKS = """
import json, multiprocessing, os, sys
import torch
from torch.utils.data import DataLoader
from mds_torch import StreamingDataset

def train(rank, dataset, out):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    torch.manual_seed(1)
    epochs = [[i for b in DataLoader(dataset, batch_size=4, num_workers=2) for i in b["n"].tolist()] for _ in range(2)]
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(epochs, file)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[3])
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=4)
    if len(sys.argv) > 4:
        dataset.set_epoch(0)  # the trainer has counted before its children do
    ranks = [context.Process(target=train, args=(rank, dataset, sys.argv[2])) for rank in range(2)]
    [rank.start() for rank in ranks]
    [rank.join() for rank in ranks]
    assert [rank.exitcode for rank in ranks] == [0, 0]
"""


@pytest.mark.parametrize(
    ("start", "counted"), [("fork", ()), ("spawn", ()), ("forkserver", ()), ("fork", ("yes",)), ("spawn", ("yes",))]
)
def test_ranks_that_were_given_one_dataset_count_for_themselves(
    start: str, counted: tuple[str, ...], thirty: str, run_script: RunScript, tmp_path: Path
) -> None:
    import json

    ended = run_script(RANKS, thirty, tmp_path, start, *counted)
    assert ended.returncode == 0, ended.stderr
    parts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        assert sorted(parts[0][epoch] + parts[1][epoch]) == list(range(30))
        assert set(parts[0][epoch]) | set(parts[1][epoch]) == set(order(thirty, epoch))
        # A step is a slice of the order.
        right = order(thirty, epoch)
        assert sorted(parts[0][epoch][:4] + parts[1][epoch][:4]) == sorted(right[:8])


GOES_ON = """
import multiprocessing, sys
from mds_torch import StreamingDataset

def read(dataset):
    print(*(sample["n"] for sample in dataset), flush=True)

if __name__ == "__main__":
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=4)
    dataset.load_state_dict({**dataset.state_dict(), "epoch": 2, "sample_in_epoch": 8})
    for _ in range(2):
        child = multiprocessing.get_context(sys.argv[2]).Process(target=read, args=(dataset,))
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_a_child_goes_on_where_its_parent_is(start: str, thirty: str, run_script: RunScript) -> None:
    ended = run_script(GOES_ON, thirty, start)
    assert ended.returncode == 0, ended.stderr
    assert [list(map(int, line.split())) for line in ended.stdout.splitlines()] == [order(thirty, 2)[8:]] * 2


def test_a_dataset_is_light_to_make_and_to_send(thirty: str) -> None:
    datasets = [dataset_of(thirty) for _ in range(200)]
    assert [dataset.epoch for dataset in datasets] == [0] * 200
    assert len(pickle.dumps(datasets[0])) < 10_000
