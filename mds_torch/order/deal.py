"""Dealing the global sequence out: which positions a rank has, batch by batch.

A step's global batch is the next (ranks x batch size) positions; ranks of one node take those of that node's pieces.
All ranks have the same number of batches of the same size: in the last one, at most ranks-1 positions are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mds_torch.order.sequence import Positions


@dataclass(frozen=True)
class Deal:
    """How a global sequence is dealt to ranks.

    `samples` is its length, `pieces` its number of canonical nodes, `batch_size` a rank's.
    """

    samples: int
    pieces: int
    batch_size: int
    ranks: int = 1
    nodes: int = 1

    @property
    def samples_per_rank(self) -> int:
        """How many samples each rank has, repeated ones included."""
        return -(-self.samples // self.ranks)

    @property
    def batches(self) -> int:
        """How many batches each rank has, the last, smaller one included."""
        return -(-self.samples_per_rank // self.batch_size)

    def batch(self, rank: int, number: int) -> Positions:
        """Give the positions of a rank's batch, int64[n]; n is the batch size but for the last batch."""
        first = number * self.ranks * self.batch_size
        last = min(first + self.ranks * self.batch_size, self.samples_per_rank * self.ranks)
        size = (last - first) // self.ranks
        if self.nodes == 1:
            return np.arange(first + rank * size, first + (rank + 1) * size) % self.samples
        positions = np.arange(first, last) % self.samples
        node = positions % self.pieces * self.nodes // self.pieces
        return positions[np.argsort(node, kind="stable")[rank * size : (rank + 1) * size]]
