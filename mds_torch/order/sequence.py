"""The global sequence of an epoch: from a position to a sample.

An epoch permutes the shards, lays them end to end, and cuts that line into as many equal pieces as there are
canonical nodes. Within a piece, samples are shuffled in windows. The global sequence takes one sample from each
piece in turn. A window's permutation is made when a position in it is asked for: what is kept is one window a
piece.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

# Samples a window: enough to mix several shards, few enough to permute in 5 ms.
DEFAULT_BLOCK = 1 << 18


class EpochOrder:
    """The samples of an epoch in order: `len(order)` of them, `order[a:b]` their ids.

    Args:
        shard_sizes: samples of each shard, int64[shards].
        pieces: the number of canonical nodes.
        shuffle: without it, shards and samples keep their order.
        seed: of the shuffle.
        epoch: from 0; each has an order of its own.
        block_size: about how many samples of a piece are shuffled together.
    """

    def __init__(
        self,
        shard_sizes: Positions,
        pieces: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        block_size: int = DEFAULT_BLOCK,
    ):
        self._shuffle = shuffle
        self._key = (seed, epoch)
        self._block = block_size
        self._pieces = pieces
        sizes = np.asarray(shard_sizes, np.int64)
        shards = np.random.default_rng([*self._key]).permutation(len(sizes)) if shuffle else np.arange(len(sizes))
        self._line_ends = np.cumsum(sizes[shards])
        # From a place on the line to the sample there: what is added within each shard of the line.
        self._shift = (np.cumsum(sizes) - sizes)[shards] - (self._line_ends - sizes[shards])
        self._samples = int(self._line_ends[-1]) if len(sizes) else 0
        self._windows: dict[int, tuple[int, Positions]] = {}

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, at: slice) -> Positions:
        return self.at(np.arange(*at.indices(self._samples)))

    def at(self, positions: Positions) -> Positions:
        """Give the ids of the samples at positions of the global sequence, int64[n] both."""
        piece, place = positions % self._pieces, positions // self._pieces
        if self._shuffle:
            place = self._shuffled(piece, place)
        line = piece * (self._samples // self._pieces) + np.minimum(piece, self._samples % self._pieces) + place
        return line + self._shift[np.searchsorted(self._line_ends, line, side="right")]

    def _piece_size(self, piece: int) -> int:
        return self._samples // self._pieces + (piece < self._samples % self._pieces)

    def _shuffled(self, piece: Positions, place: Positions) -> Positions:
        window = place // self._block
        shuffled = np.empty_like(place)
        keys = piece + self._pieces * window
        for key in np.unique(keys).tolist():
            here = keys == key
            first = key // self._pieces * self._block
            shuffled[here] = first + self._permutation(key % self._pieces, key // self._pieces)[place[here] - first]
        return shuffled

    def _permutation(self, piece: int, window: int) -> Positions:
        kept = self._windows.get(piece)
        if kept is not None and kept[0] == window:
            return kept[1]
        size = min(self._block, self._piece_size(piece) - window * self._block)
        permutation = np.random.default_rng([*self._key, piece, window]).permutation(size)
        self._windows[piece] = window, permutation
        return permutation
