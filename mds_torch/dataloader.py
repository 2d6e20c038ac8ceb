"""StreamingDataLoader: a DataLoader that reads whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, default_collate, get_worker_info

from mds_torch.dataset import StreamingDataset
from mds_torch.state import Progress
from mds_torch.transport import unpack
from mds_torch.workers import Batches, PackedBatches, Samples

# DataLoader's arguments that say how samples are loaded, not which.
_LOADING = (
    "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip


class StreamingDataLoader(DataLoader[Any]):
    """A torch DataLoader for `StreamingDataset`; takes every argument of it.

    Each `iter(loader)` is the dataset's next epoch. With torch's default collation, and a dataset whose
    `__getitem__` and `__iter__` are not overridden, workers build whole batches column by column: the same batches,
    many times faster.

    Args:
        dataset: the dataset.
        *args: DataLoader's arguments.
        **kwargs: DataLoader's keyword arguments.

    Example:
        >>> loader = StreamingDataLoader(dataset, batch_size=64, num_workers=2)
        >>> next(iter(loader))["stars"].shape
        torch.Size([64])
    """

    # What Accelerate asks a loader: to leave it as it is, as it deals samples to ranks itself, where Accelerate would
    # do so once more and leave out half of them on two ranks; and to keep its state.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(self, dataset: StreamingDataset, *args: Any, **kwargs: Any):
        if not isinstance(dataset, StreamingDataset):
            raise TypeError(f"StreamingDataLoader: expected a StreamingDataset, found {type(dataset).__name__}")
        super().__init__(dataset, *args, **kwargs)
        kind = type(dataset)
        # A dataset with an __iter__ of its own chooses its samples, and their order.
        self._ours = kind.__iter__ is StreamingDataset.__iter__
        if self._ours:
            object.__setattr__(self, "sampler", _Sampler(dataset))  # torch refuses a plain assignment
        self._whole = (
            self.batch_size is not None
            and self.collate_fn is default_collate
            and kind.__getitem__ is StreamingDataset.__getitem__
            and dataset.transform is None
            and dataset.is_uniform
        )
        self._progress: Progress | None = None
        self._kept: DataLoader[Any] | None = None

    def __len__(self) -> int:
        if not self._ours:
            return super().__len__()
        dataset: Any = self.dataset
        deal, rank = dataset.deal(self.batch_size or 1, self.drop_last), dataset.world.rank
        length: int = deal.samples(rank) if self.batch_size is None else deal.batches(rank)
        return length

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        dataset: Any = self.dataset
        if not self._ours:
            yield from super().__iter__()
            return
        # Each epoch's workers have samples of their own, as two epochs may be read side by side; unless they stay.
        loader = self._open() if self._kept is None else self._kept
        if self.persistent_workers:
            self._kept = loader
        samples: Any = loader.dataset
        size = self.batch_size or 1
        progress = self._progress = dataset.begin(size, self.drop_last, in_batches=True)
        samples.epoch = progress.epoch
        try:
            for batch in self._batches(loader, samples):
                progress.samples += size
                yield batch
            progress.finished = True
        finally:
            progress.left = True

    def _batches(self, loader: DataLoader[Any], samples: Any) -> Iterator[Any]:
        if not isinstance(samples, PackedBatches):
            yield from loader
            return
        encodings, pin = samples.dataset.columns, self.pin_memory and torch.accelerator.is_available()
        for packed in loader:
            yield from unpack(packed, encodings, samples.batch_size, samples.slots, pin)

    def state_dict(self) -> dict[str, Any]:
        """Give where to go on after the batches that this loader has handed over: plain JSON, the same on all ranks."""
        dataset: Any = self.dataset
        progress = self._progress
        # What was loaded since a loop ended is newer than where it was; of a loop that goes on it is not.
        state: dict[str, Any]
        if progress is None or (progress.left and dataset.progress is None):
            state = dataset.state_dict()
        else:
            state = dataset.to_state(progress.rest())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next iteration is the rest of that epoch.

        Raises:
            ValueError: it is none of ours, or of a dataset of other arguments.
        """
        dataset: Any = self.dataset
        dataset.load_state_dict(state)
        self._progress = None

    def _open(self) -> DataLoader[Any]:
        """Make the DataLoader of an epoch."""
        dataset: Any = self.dataset
        loading = {name: getattr(self, name) for name in _LOADING if hasattr(self, name)}
        if self.num_workers:
            loading["worker_init_fn"] = _StartWorker(self.worker_init_fn)
        if not self._whole:
            samples = Samples(dataset, self.batch_size or 1, self.drop_last)
            return DataLoader(samples, batch_size=self.batch_size, collate_fn=self.collate_fn, **loading)
        assert self.batch_size is not None
        if not self.num_workers:
            samples = Batches(dataset, self.batch_size, self.drop_last)
        else:
            assert self.prefetch_factor is not None
            samples = PackedBatches(dataset, self.batch_size, self.drop_last, self.num_workers, self.prefetch_factor)
            loading["pin_memory"] = False  # what comes is no batch yet
        return DataLoader(samples, batch_size=None, collate_fn=same, **loading)


class _Sampler(Sampler[Any]):
    """What Lightning tells the number of the epoch that begins: it keeps a loader's state within an epoch only."""

    def __init__(self, dataset: StreamingDataset):
        self._dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        """Read this epoch next; the rest of it, if that is what comes next anyhow."""
        if self._dataset.epoch != epoch:
            self._dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return repeat(None)  # as torch has it for data sets that choose their samples themselves


def same(batch: Any) -> Any:
    """Give a batch as it is: the collate_fn of what is collated."""
    return batch


class _StartWorker:
    """A worker_init_fn that makes `get_worker_info().dataset` the user's dataset, then calls the user's own."""

    def __init__(self, user_function: Callable[[int], None] | None):
        self.user_function = user_function

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # it refuses a plain assignment
        if self.user_function is not None:
            self.user_function(worker)
