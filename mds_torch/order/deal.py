"""Dealing the global sequence out: which positions a rank has, batch by batch.

A step's global batch is the next (ranks x batch size) positions; ranks of one node take those of that node's pieces.
All ranks have the same number of batches of the same size: in the last one, at most ranks-1 positions are repeated,
or none, where a last batch that is not full is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mds_torch.order.sequence import Positions


@dataclass(frozen=True)
class Deal:
    """How a global sequence is dealt to ranks.

    `samples` is its length, `pieces` its number of canonical nodes, `batch_size` a rank's. With `drop_last`, a last
    global batch that is not full is left out.
    """

    samples: int
    pieces: int
    batch_size: int
    ranks: int = 1
    nodes: int = 1
    drop_last: bool = False

    @property
    def samples_per_rank(self) -> int:
        """How many samples each rank has, repeated ones included."""
        if self.drop_last:
            return self.samples // (self.ranks * self.batch_size) * self.batch_size
        return -(-self.samples // self.ranks)

    @property
    def batches(self) -> int:
        """How many batches each rank has, the last, smaller one included."""
        return -(-self.samples_per_rank // self.batch_size)

    def positions(self, rank: int, batches: Sequence[int]) -> Positions:
        """Give the positions of some of a rank's batches, one after the other.

        Args:
            rank: whose.
            batches: their numbers, rising, at least one.

        Returns:
            int64[n]; n is a multiple of the batch size, unless the epoch's last batch, which can be smaller, is there.
        """
        last = batches[-1] == self.batches - 1 and self.samples_per_rank % self.batch_size
        full = np.asarray(batches[:-1] if last else batches, np.int64)
        parts = [self._dealt(rank, full * self.ranks * self.batch_size, self.batch_size)]
        if last:
            first = np.array([batches[-1] * self.ranks * self.batch_size])
            parts.append(self._dealt(rank, first, self.samples_per_rank % self.batch_size))
        return np.concatenate(parts)

    def _dealt(self, rank: int, starts: Positions, size: int) -> Positions:
        """Give a rank's positions in global batches that start at `starts` and hold `size` for each rank."""
        if self.nodes == 1:
            mine: Positions = starts[:, None] + np.arange(rank * size, (rank + 1) * size)
            return mine.reshape(-1) % self.samples
        positions = (starts[:, None] + np.arange(self.ranks * size)) % self.samples
        node = positions % self.pieces * self.nodes // self.pieces
        by_node = np.argsort(node, axis=1, kind="stable")[:, rank * size : (rank + 1) * size]
        return np.take_along_axis(positions, by_node, axis=1).reshape(-1)
