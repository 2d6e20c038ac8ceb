"""What a filter leaves of a data set, in an order of its own."""

from __future__ import annotations

from collections.abc import Sequence as List
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mds_torch.order.epoch import GlobalSequence
from mds_torch.order.line import Shards, groups
from mds_torch.order.permutations import Kept, Positions

# A bit a sample of each shard: whether it stays.
Masks = List[NDArray[np.uint8]]


def left_of(shards: Shards, masks: Masks) -> Shards:
    """Give the shards of what is left, numbered anew."""
    samples = np.array([int(np.unpackbits(mask).sum()) for mask in masks], np.int64)
    return Shards(np.cumsum(samples) - samples, samples)


class Filtered:
    """A sequence of what is left, with the ids that its samples have in the data set.

    Args:
        sequence: of the samples that are left, numbered anew.
        shards: the data set's.
        left: the shards of what is left.
        masks: whether each sample stays.
    """

    def __init__(self, sequence: GlobalSequence, shards: Shards, left: Shards, masks: Masks):
        self._sequence = sequence
        self._shards = shards
        self._ends = left.first + left.samples
        self._left = left
        self._masks = masks
        self._rows = Kept(1 << 22)

    def __len__(self) -> int:
        return len(self._sequence)

    def pieces(self, positions: Positions) -> Positions:
        """Give the canonical nodes that some positions belong to, int64[n] both."""
        return self._sequence.pieces(positions)

    def ids(self, positions: Positions) -> Positions:
        """Give the ids of the samples at some positions, int64[n] both."""
        ids = self._sequence.ids(positions)
        for shard, here in groups(np.searchsorted(self._ends, ids, side="right")):
            rows = self._rows.get((shard,), partial(self._rows_of, shard))
            ids[here] = rows[ids[here] - self._left.first[shard]] + self._shards.first[shard]
        return ids

    def _rows_of(self, shard: int) -> NDArray[np.int64]:
        return np.flatnonzero(np.unpackbits(self._masks[shard]))
