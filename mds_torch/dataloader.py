"""StreamingDataLoader: a DataLoader that reads whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

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
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        kind = type(dataset)
        plain_collation = self.collate_fn is default_collate
        self._unpacks = False
        self._loader: DataLoader[Any] | None = None
        loading = {name: getattr(self, name) for name in _LOADING if hasattr(self, name)}
        if kind.__iter__ is not StreamingDataset.__iter__:
            return
        if plain_collation and self.batch_size is not None and kind.__getitem__ is StreamingDataset.__getitem__:
            self._unpacks = self.num_workers > 0
            batches = Batches(dataset, self.batch_size, self._epoch, self.drop_last, self._unpacks)
            self._loader = DataLoader(batches, batch_size=None, collate_fn=_same, **loading)
        else:
            self._loader = DataLoader(
                Samples(dataset, self.batch_size or 1, self._epoch),
                batch_size=self.batch_size,
                drop_last=self.drop_last,
                collate_fn=self.collate_fn,
                **loading,
            )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        dataset: Any = self.dataset
        if self._loader is None:
            # The dataset's own __iter__ counts epochs; with workers, it does so in their copies.
            batches = super().__iter__()
            if self.num_workers:
                dataset.next_epoch()
            yield from batches
            return
        self._epoch[0] = dataset.next_epoch()
        encodings = dataset.columns
        for loaded in self._loader:
            if self._unpacks:
                yield from unpack(loaded, encodings, self.batch_size or 1, self.drop_last)
            else:
                yield loaded


def _same(batch: Any) -> Any:
    return batch
