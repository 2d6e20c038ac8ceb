"""What a DataLoader's worker runs: this rank's samples, or whole batches, of one epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from torch.utils.data import IterableDataset

from mds_torch.batches import batches_of, read_columns
from mds_torch.dataset import StreamingDataset
from mds_torch.order.permutations import Positions
from mds_torch.shared import SharedArray
from mds_torch.state import Epoch
from mds_torch.transport import Slots, pack
from mds_torch.world import find_worker

# Decoding more at once makes it no faster; a message takes the trainer as long as unpacking this many bytes.
_BYTES_AT_ONCE = 1 << 22
_BYTES_A_MESSAGE = 1 << 18


class Samples(IterableDataset[Any]):
    """This rank's samples of an epoch, dealt in the loader's batches, as a dataset for a DataLoader.

    Args:
        dataset: whose samples.
        batch_size: samples a batch.
        drop_last: leave a last global batch that is not full out.

    `epoch` is shared with the workers, which may stay for more than one.
    """

    def __init__(self, dataset: StreamingDataset, batch_size: int, drop_last: bool):
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._epoch = SharedArray((len(fields(Epoch)),))

    @property
    def epoch(self) -> Epoch:
        """The epoch to read."""
        return Epoch(*self._epoch.array.tolist())

    @epoch.setter
    def epoch(self, epoch: Epoch) -> None:
        self._epoch.array[:] = epoch.row()

    def turns(self, bytes_at_once: int, long_turns: bool) -> Iterator[Positions]:
        """Give the ids of this worker's batches, many at once."""
        order = self.dataset.order(self.epoch, self.batch_size, self.drop_last)
        rows = self.dataset.rows_at_once(bytes_at_once)
        return self.dataset.ahead(order.turns(*find_worker(), rows, long_turns=long_turns))

    def __iter__(self) -> Iterator[Any]:
        for ids in self.turns(_BYTES_AT_ONCE, long_turns=False):
            yield from self.dataset.samples(ids)[0]


class Batches(Samples):
    """This rank's batches of an epoch, column by column, for a DataLoader that does not collate."""

    def __iter__(self) -> Iterator[Any]:
        for ids in self.turns(_BYTES_AT_ONCE, long_turns=True):
            yield from batches_of(read_columns(self.dataset.reader, ids, ragged=False), self.batch_size)


class PackedBatches(Samples):
    """This rank's batches of an epoch from a worker, several together, packed.

    Args:
        dataset: whose samples.
        batch_size: samples a batch.
        drop_last: leave a last global batch that is not full out.
        workers: how many there are.
        prefetch_factor: how many messages of each are on their way.
    """

    def __init__(self, dataset: StreamingDataset, batch_size: int, drop_last: bool, workers: int, prefetch_factor: int):
        super().__init__(dataset, batch_size, drop_last)
        # A half more than usual, for samples of different sizes; what is larger finds another way.
        message = max(_BYTES_A_MESSAGE, min(batch_size, dataset.size) * dataset.mean_bytes)
        self.slots = Slots(workers, prefetch_factor + 1, int(1.5 * message) + (1 << 16))

    def __iter__(self) -> Iterator[Any]:
        worker, _ = find_worker()
        self.slots.clear(worker)  # of an epoch that was left
        encodings = self.dataset.columns
        for ids in self.turns(_BYTES_A_MESSAGE, long_turns=True):
            columns = read_columns(self.dataset.reader, ids, ragged=True)
            try:
                yield pack(columns, encodings, self.batch_size, self.slots, worker)
            except UnicodeError:
                self.dataset.reader.samples(ids)  # raises, and names the sample
                raise
