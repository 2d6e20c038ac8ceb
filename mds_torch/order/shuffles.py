"""The shuffle algorithms, by the names that mosaicml-streaming has for them: what is mixed with what, over which span.

All put the shards in a random order, cut that line into pieces, and shuffle each piece's segments; they differ in what
they do with the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Shuffle:
    """What an algorithm does with the samples.

    Args:
        within: shuffle the samples of each segment of more samples than this part of a block.
        twice: shuffle the samples of each part before the line is cut, too.
        windows: shuffle in windows, again and again. Of each time, in blocks: the window, the first window (which may
            be smaller, so that windows lie across the others), and by how much a window may begin elsewhere.
        around: a block is what a shard's samples spread over, the shard's own length included.
        everything: shuffle all samples with all, whatever their shard and piece.
    """

    within: Fraction | None = None
    twice: bool = False
    windows: tuple[tuple[Fraction, Fraction, Fraction], ...] = ()
    around: bool = False
    everything: bool = False


_HALF, _QUARTER, _EIGHTH = Fraction(1, 2), Fraction(1, 4), Fraction(1, 8)

SHUFFLES = {
    # All with all: every node needs every shard, all the time. For small data sets only.
    "naive": Shuffle(everything=True),
    # A shard after the other, its samples shuffled.
    "py1s": Shuffle(within=Fraction(0)),
    # The same; of a shard that lies in two pieces, each has a random part.
    "py2s": Shuffle(within=Fraction(0), twice=True),
    # In blocks, which begin elsewhere for each piece and epoch: of 3/4 to 5/4 of a block.
    "py1br": Shuffle(windows=((Fraction(1), Fraction(1), _EIGHTH),)),
    # Each shard's samples spread over a block around it, or over the shard if it is larger: in half blocks, and then in
    # half blocks that lie across them. The second ones are whole at both ends, which mixes more there.
    "py1e": Shuffle(within=_HALF, windows=((_HALF, _QUARTER, Fraction(0)), (_HALF, _HALF, Fraction(0))), around=True),
}
