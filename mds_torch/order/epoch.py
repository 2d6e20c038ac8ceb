"""The order of an epoch: its global sequence, and how it is dealt out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from mds_torch.order.deal import Deal
from mds_torch.order.permutations import Positions


class GlobalSequence(Protocol):
    """A global sequence: `Sequence`, or several `Batched`, or what a filter leaves of them."""

    def __len__(self) -> int: ...

    def ids(self, positions: Positions) -> Positions:
        """Give the ids of the samples at some positions, int64[n] both."""

    def pieces(self, positions: Positions) -> Positions:
        """Give the canonical nodes that some positions belong to, int64[n] both."""


class EpochOrder:
    """An epoch's samples in order: `len(order)` of them, `order[a:b]` their ids, `order.batches(rank)` a rank's.

    Args:
        sequence: the epoch's.
        deal: how it is dealt out.
        rank: whose batches are given, unless another is named.

    Example:
        >>> order = dataset.epoch_order(0)
        >>> order[:4]
        array([7, 2, 9, 4])
        >>> next(order.batches(rank=1))
        array([9, 4])
    """

    def __init__(self, sequence: GlobalSequence, deal: Deal, rank: int = 0):
        self.sequence = sequence
        self.deal = deal
        self.rank = rank

    def __len__(self) -> int:
        return len(self.sequence)

    def __getitem__(self, at: slice) -> Positions:
        return self.sequence.ids(np.arange(*at.indices(len(self)), dtype=np.int64))

    def batches(self, rank: int | None = None, worker: int = 0, workers: int = 1) -> Iterator[Positions]:
        """Give the ids of a rank's batches that a DataLoader worker loads.

        Args:
            rank: whose, this process's unless given.
            worker: which of the workers.
            workers: how many there are.

        Returns:
            An int64[n] for each batch.

        Raises:
            ValueError: there is no such rank or worker.
        """
        rank = self.rank if rank is None else rank
        if not (0 <= rank < self.deal.ranks and 0 <= worker < workers):
            raise ValueError(
                f"expected a rank from 0 to {self.deal.ranks - 1} and a worker from 0 to {workers - 1}, "
                f"found {rank} and {worker}"
            )
        return self._batches(rank, worker, workers)

    def _batches(self, rank: int, worker: int, workers: int) -> Iterator[Positions]:
        for number in range(worker, self.deal.batches(rank), workers):
            yield self.sequence.ids(self.deal.positions(rank, [number]))

    def turns(
        self, worker: int, workers: int, rows: int, *, long_turns: bool = False, skip: int = 0
    ) -> Iterator[Positions]:
        """Give the ids of this rank's batches that a DataLoader worker loads, many at once.

        Args:
            worker: this worker.
            workers: how many there are.
            rows: about how many ids to give together.
            long_turns: workers take turns of one batch, as torch's DataLoader asks them for; with this, of all the
                batches whose ids are given together.
            skip: leave so many of the worker's samples out.

        Returns:
            Arrays int64[n]; n is a multiple of the batch size, but for the last, and the first that is not skipped.
        """
        deal, batches = self.deal, self.deal.batches(self.rank)
        # Few enough batches together that all workers have a like number of them; one at first, then twice as many each
        # time, for the first batch to be there soon.
        together = max(1, min(rows // deal.batch_size, batches // (8 * workers)))
        if long_turns:
            numbers = _long_turns(worker, workers, batches, together)
        else:
            numbers = _growing(range(worker, batches, workers)[skip // deal.batch_size :], together)
            skip %= deal.batch_size
        for some in numbers:
            if skip >= len(some) * deal.batch_size:
                skip -= len(some) * deal.batch_size
                continue
            yield self.sequence.ids(deal.positions(self.rank, some)[skip:])
            skip = 0


def _growing(numbers: range, most: int) -> Iterator[range]:
    """Cut batches' numbers into 1, 2, 4, … together, up to a number."""
    start, length = 0, 1
    while start < len(numbers):
        yield numbers[start : start + length]
        start += length
        length = min(2 * length, most)


def _long_turns(worker: int, workers: int, batches: int, most: int) -> Iterator[range]:
    """Give a worker's turns: all workers take 1 batch each, then 2 in a row, 4, …, up to a number."""
    start, length = 0, 1
    while start < batches:
        first = start + worker * length
        if first < batches:
            yield range(first, min(first + length, batches))
        start += workers * length
        length = min(2 * length, most)
