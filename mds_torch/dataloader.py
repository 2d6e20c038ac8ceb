"""StreamingDataLoader: a DataLoader that reads whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

from mds_torch.batches import Batches, Samples, unpack
from mds_torch.dataset import StreamingDataset

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

    def __init__(self, dataset: StreamingDataset, *args: Any, **kwargs: Any):
        if not isinstance(dataset, StreamingDataset):
            raise TypeError(f"StreamingDataLoader: expected a StreamingDataset, found {type(dataset).__name__}")
        super().__init__(dataset, *args, **kwargs)
        kind = type(dataset)
        self._unpacks = False
        self._samples: Samples | None = None
        if kind.__iter__ is not StreamingDataset.__iter__:
            return  # its samples, and their order, are its own
        loading = {name: getattr(self, name) for name in _LOADING if hasattr(self, name)}
        if self.num_workers:
            loading["worker_init_fn"] = _StartWorker(self.worker_init_fn)
        plain_collation = self.collate_fn is default_collate
        if plain_collation and self.batch_size is not None and kind.__getitem__ is StreamingDataset.__getitem__:
            self._unpacks = self.num_workers > 0
            self._samples = Batches(dataset, self.batch_size, self.drop_last, self._unpacks)
            self._loader = DataLoader(self._samples, batch_size=None, collate_fn=_same, **loading)
        else:
            self._samples = Samples(dataset, self.batch_size or 1, self.drop_last)
            self._loader = DataLoader(self._samples, batch_size=self.batch_size, collate_fn=self.collate_fn, **loading)
        if self.persistent_workers:
            self._samples.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        if self._samples is None:
            return super().__len__()
        deal = self._samples.dataset.deal(self._samples.batch_size, self.drop_last)
        return deal.samples_per_rank if self.batch_size is None else deal.batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        dataset: Any = self.dataset
        if self._samples is None:
            # The dataset's own __iter__ counts epochs; with workers, it does so in their copies.
            batches = super().__iter__()
            if self.num_workers:
                dataset.next_epoch()
            yield from batches
            return
        epoch = dataset.next_epoch()
        if isinstance(self._samples.epoch, torch.Tensor):
            self._samples.epoch[0] = epoch
        else:
            self._samples.epoch = epoch
        encodings = dataset.columns
        for loaded in self._loader:
            if self._unpacks:
                yield from unpack(loaded, encodings, self.batch_size or 1)
            else:
                yield loaded


def _same(batch: Any) -> Any:
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
