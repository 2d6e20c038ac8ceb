"""Batching methods: how the sequences of several streams become one.

`random` needs nothing: its streams' shards lie in one line. The others take the streams' sequences in turn, a sample or
a group of samples at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from functools import partial

import numpy as np

from mds_torch.order.line import groups
from mds_torch.order.permutations import Kept, Positions, Use, permutation
from mds_torch.order.sequence import Sequence

BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")
_BLOCK = 1 << 16


class Turns:
    """Whose turn it is, so that in any stretch each stream has its share.

    Args:
        counts: how many turns each stream has, int64[streams].
        key: seed and epoch; shuffles the turns in blocks of 65,536. None spreads each stream's evenly.
    """

    def __init__(self, counts: Positions, key: tuple[int, int] | None = None):
        self._counts = np.asarray(counts, np.int64)
        self._key = key
        self.turns = int(self._counts.sum())
        self._blocks = max(1, -(-self.turns // _BLOCK))
        self._kept = Kept(1 << 20)

    def at(self, turns: Positions) -> tuple[Positions, Positions]:
        """Give the streams of some turns, and how many turns each had before; int64[n] all."""
        block = turns * self._blocks // max(1, self.turns)
        # Counts are rounded down, one by one: a turn may lie in a later block.
        while len(later := np.flatnonzero(turns >= self._before(block + 1).sum(axis=1))):
            block[later] += 1
        stream, number = np.empty_like(turns), np.empty_like(turns)
        for key, here in groups(block):
            before = self._before(np.array([key]))[0]
            both = self._kept.get((key,), partial(self._block, key))[turns[here] - before.sum()]
            stream[here] = both >> 32
            number[here] = before[stream[here]] + (both & 0xFFFFFFFF)
        return stream, number

    def _before(self, block: Positions) -> Positions:
        """Give how many turns each stream has before blocks, int64[blocks, streams]."""
        before: Positions = self._counts * np.minimum(block, self._blocks)[:, None] // self._blocks
        return before

    def _block(self, block: int) -> Positions:
        """Make a block's turns: for each its stream, shifted by 32, and its number in this block."""
        first, last = self._before(np.array([block, block + 1]))
        counts = last - first
        stream = np.repeat(np.arange(len(counts)), counts)
        number = np.concatenate([np.arange(count) for count in counts])
        if self._key is None:
            turns = np.lexsort((stream, (number + 0.5) / counts[stream]))
            stream, number = stream[turns], number[turns]
        else:
            stream = stream[permutation(len(stream), Use.GROUPS, *self._key, block)]
            for one in range(len(counts)):
                number[stream == one] = np.arange(counts[one])
        both: Positions = (stream << 32) | number
        return both


class Batched:
    """Several streams' sequences as one, by a batching method other than `random`.

    Args:
        streams: the streams' sequences.
        group: how many samples in a row come from one stream; 1 spreads each stream's samples evenly.
        pieces: the number of canonical nodes.
        by_piece: let each group be of one canonical node, too; so many groups in a row as there are canonical nodes
            are then of one stream.
        key: seed and epoch, if the groups are to be shuffled.

    What of a stream fills no group is left out.

    Raises:
        ValueError: a stream has less than a group.
    """

    def __init__(self, streams: List[Sequence], group: int, pieces: int, by_piece: bool, key: tuple[int, int] | None):
        self._streams = streams
        self._group = group
        self._pieces = pieces if by_piece else 1
        sizes = np.array([len(stream) for stream in streams], np.int64)
        for number in np.flatnonzero((sizes < group) & (sizes > 0)):
            raise ValueError(
                f"stream {number} has {sizes[number]} samples an epoch, less than one batch of {group}: batches of one "
                "stream need more; give it more samples, choose a smaller batch size, or batching_method='stratified'"
            )
        # Groups that make up a whole turn, a group of each piece; and those that are left, at the end.
        self._whole, rest = np.divmod(sizes // group, self._pieces)
        key = None if group == 1 else key
        self._turns, self._rest = Turns(self._whole, key), Turns(rest, key)

    def __len__(self) -> int:
        return (self._turns.turns * self._pieces + self._rest.turns) * self._group

    def ids(self, positions: Positions) -> Positions:
        """Give the ids of the samples at some positions, int64[n] both."""
        return self._ask(positions, Sequence.ids)

    def pieces(self, positions: Positions) -> Positions:
        """Give the canonical nodes that some positions belong to, int64[n] both."""
        return self._ask(positions, Sequence.pieces)

    def _ask(self, positions: Positions, what: Callable[[Sequence, Positions], Positions]) -> Positions:
        stream, position = self._split(positions)
        answers = np.empty(len(positions), np.int64)
        for number, here in groups(stream):
            answers[here] = what(self._streams[number], position[here])
        return answers

    def _split(self, positions: Positions) -> tuple[Positions, Positions]:
        """Give each position's stream, and its position in the stream's sequence."""
        turn_size = self._group * self._pieces
        turn, within = np.divmod(positions, turn_size)
        rest = turn >= self._turns.turns
        stream, position = np.empty_like(positions), np.empty_like(positions)
        if not rest.all():
            stream[~rest], number = self._turns.at(turn[~rest])
            # A sequence takes a sample of each piece in turn: put those of a piece together.
            piece, place = np.divmod(within[~rest], self._group)
            position[~rest] = number * turn_size + place * self._pieces + piece
        if rest.any():
            turn, within = np.divmod(positions[rest] - self._turns.turns * turn_size, self._group)
            stream[rest], number = self._rest.at(turn)
            position[rest] = self._whole[stream[rest]] * turn_size + number * self._group + within
        return stream, position
