"""The global sequence of an epoch: from a position to a sample.

An epoch permutes the shards, lays them end to end, and cuts that line into as many equal pieces as there are
canonical nodes. Within a piece, samples are shuffled. The global sequence takes one sample from each piece in turn.
What is random is made when a position that needs it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mds_torch.order.line import Line, Mixing, Parts, Shards
from mds_torch.order.permutations import Feistel, Kept, Positions, Use
from mds_torch.order.shuffles import SHUFFLES
from mds_torch.order.windows import Windows

WINDOWS = (Use.WINDOWS, Use.SHIFTED_WINDOWS)


@dataclass(frozen=True)
class Rules:
    """What an epoch's order depends on, besides the data set.

    Args:
        pieces: the number of canonical nodes.
        shuffle: the name of an algorithm; None leaves shards and samples in their order.
        seed: of the shuffle.
        epoch: from 0; each has an order of its own.
        block: about how many samples of a piece are shuffled together, by algorithms that have blocks.
        stream: tells streams apart that are shuffled one by one.
    """

    pieces: int = 1
    shuffle: str | None = None
    seed: int = 0
    epoch: int = 0
    block: int = 1 << 18
    stream: int = 0


class Sequence:
    """The samples of an epoch in order: `len(sequence)` of them.

    Args:
        shards: the data set's.
        parts: what the epoch takes of them.
        rules: the rest.
    """

    def __init__(self, shards: Shards, parts: Parts, rules: Rules):
        self._pieces = rules.pieces
        self._everything: Feistel | None = None
        self._windows: list[Windows] = []
        if rules.shuffle is None:
            self._line = Line(shards, parts, rules.pieces, Mixing())
            return
        seed, shuffle, block = (rules.seed, rules.stream), SHUFFLES[rules.shuffle], rules.block
        key = (*seed, rules.epoch)
        within = float("inf") if shuffle.within is None else float(shuffle.within * block)
        self._line = Line(shards, parts, rules.pieces, Mixing(seed, rules.epoch, shuffle.twice, within))
        if shuffle.everything:
            self._everything = Feistel(self._line.samples, Use.EVERYTHING, *key)
        # Two windows of each piece that the next positions need, and one that they are about to need.
        kept = Kept(max(1 << 22, 2 * block * rules.pieces))
        sizes = np.diff(self._line.cuts)
        largest = int(sizes.max())
        if shuffle.around and self._line.segments:
            block = max(block // 2, block - len(self) // self._line.segments)
        for use, (size, start, jitter) in zip(WINDOWS, shuffle.windows, strict=False):
            # As large as they must be for none to be smaller than the others: a small one would mix less.
            window = -(-largest // max(1, int(largest // max(Fraction(1), size * block))))
            places = max(1, window), max(1, int(window * start / size)), int(window * jitter / size)
            self._windows.append(Windows(sizes, *places, kept, use, key))

    def __len__(self) -> int:
        return self._line.samples

    def ids(self, positions: Positions) -> Positions:
        """Give the ids of the samples at some positions, int64[n] both."""
        if self._everything is not None:
            positions = self._everything(positions)
        piece, place = self._places(positions)
        for windows in reversed(self._windows):
            place = windows(piece, place)
        return self._line.ids(piece, place)

    def pieces(self, positions: Positions) -> Positions:
        """Give the canonical nodes that some positions belong to, int64[n] both."""
        return self._places(positions)[0]

    def _places(self, positions: Positions) -> tuple[Positions, Positions]:
        place, piece = np.divmod(positions, self._pieces)
        rest = positions - len(self) // self._pieces * self._pieces
        last = rest >= 0
        if last.any():
            # Those pieces have a sample more than the others.
            larger = np.flatnonzero(np.diff(self._line.cuts) > len(self) // self._pieces)
            piece[last] = larger[rest[last]]
        return piece, place
