"""What frameworks call on a dataset or a loader, as their sources have it."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import Stateful, StatefulDataLoader

from mds_torch import StreamingDataLoader, StreamingDataset

RunScript = Callable[..., Any]


def dataset_of(folder: str, **options: Any) -> StreamingDataset:
    return StreamingDataset(local=folder, shuffle=True, batch_size=4, **options)


def ids(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch["n"].tolist()]


def order(folder: str, epoch: int = 0) -> list[int]:
    found: list[int] = dataset_of(folder).epoch_order(epoch)[:].tolist()
    return found


# torchdata


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "multiprocessing_context": "spawn"},
    ],
    ids=str,
)
def test_torchdatas_loader_goes_on_after_any_batch(options: dict[str, Any], thirty: str) -> None:
    # A worker that is spawned takes seconds.
    for stop in (3,) if "multiprocessing_context" in options else (1, 3, 7):
        loader = StatefulDataLoader(dataset_of(thirty), batch_size=4, **options)
        iterator = iter(loader)
        had = ids(next(iterator) for _ in range(stop))
        assert had == order(thirty)[: 4 * stop]
        state = loader.state_dict()
        del iterator
        again = StatefulDataLoader(dataset_of(thirty), batch_size=4, **options)
        again.load_state_dict(state)
        assert ids(again) == order(thirty)[4 * stop :]
        assert ids(again) == order(thirty, 1)
        assert ids(again) == order(thirty, 2)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batch_size", [3, 4, 16])
def test_torchdatas_loader_goes_on_where_workers_have_ended(workers: int, batch_size: int, thirty: str) -> None:
    # One worker has nothing left, and the other has; or all have ended, and the loop does not know it yet.
    def loader() -> Any:
        return StatefulDataLoader(dataset_of(thirty), batch_size=batch_size, num_workers=workers)

    batches = len(list(loader()))
    for stop in range(max(1, batches - 3), batches + 1):
        first, again = loader(), loader()
        iterator = iter(first)
        had = ids(next(iterator) for _ in range(stop))
        again.load_state_dict(first.state_dict())
        rest = ids(again)
        if len(had) < 30:
            assert sorted(had + rest) == list(range(30))
        else:
            assert rest in ([], order(thirty, 1))
        del iterator


def test_dataset_and_loader_are_stateful(thirty: str) -> None:
    dataset = dataset_of(thirty)
    assert isinstance(dataset, Stateful)
    assert isinstance(StreamingDataLoader(dataset, batch_size=4), Stateful)


# Composer


def test_composers_calls(thirty: str) -> None:
    dataset = dataset_of(thirty)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2)
    assert isinstance(loader, DataLoader)
    assert loader.dataset is dataset
    assert ids(itertools.islice(loader, 3)) == order(thirty)[:12]
    state = json.loads(json.dumps(dataset.state_dict(12, True)))
    assert state == loader.state_dict()
    again = dataset_of(thirty)
    again.load_state_dict(state)
    assert ids(StreamingDataLoader(again, batch_size=4, num_workers=2)) == order(thirty)[12:]


# torch's distributed checkpoints


def test_a_distributed_checkpoint_keeps_a_state(thirty: str, tmp_path: Any) -> None:
    loader = StreamingDataLoader(dataset_of(thirty), batch_size=4)
    iterator = iter(loader)
    assert ids(next(iterator) for _ in range(3)) == order(thirty)[:12]
    dcp.save({"loader": loader}, checkpoint_id=str(tmp_path / "checkpoint"), no_dist=True)
    again = StreamingDataLoader(dataset_of(thirty), batch_size=4)
    dcp.load({"loader": again}, checkpoint_id=str(tmp_path / "checkpoint"), no_dist=True)
    assert ids(again) == order(thirty)[12:]


# Lightning probes loaders: it calls iter() twice, and counts on an exact length.


@pytest.mark.parametrize("workers", [0, 2])
def test_a_probing_iterator_changes_nothing(workers: int, thirty: str) -> None:
    loader = StreamingDataLoader(dataset_of(thirty), batch_size=4, num_workers=workers)
    iter(loader)
    iter(loader)
    assert len(loader) == 8
    assert loader.state_dict()["sample_in_epoch"] == 0
    assert ids(loader) == order(thirty)
