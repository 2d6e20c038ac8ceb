"""The line: what an epoch takes of the shards, laid end to end and cut into a piece for each canonical node.

A part is what is taken of one shard, all of it or some, once; a segment is what of a part lies in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mds_torch.order.permutations import Kept, Positions, Use, permutation, random_state


@dataclass(frozen=True)
class Shards:
    """A data set's shards: the id of each one's first sample, and how many samples it has; int64[shards] both."""

    first: Positions
    samples: Positions


@dataclass(frozen=True)
class Parts:
    """What an epoch takes: the shard of each part, and how many of its samples; int64[parts] both.

    A part of fewer samples than its shard has holds some of them, chosen by `choice`, the key of the choice.
    """

    shard: Positions
    samples: Positions
    choice: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Mixing:
    """What a shuffle does with the line, but for its windows.

    Args:
        seed: of the shuffle, and the stream; they decide which shards lie in which piece, the same in each epoch, so
            that a node can keep its shards. None leaves all in its order.
        epoch: decides all the rest.
        twice: shuffle the samples of each part before the line is cut, too.
        within: shuffle the samples of segments of more samples than this.
    """

    seed: tuple[int, int] | None = None
    epoch: int = 0
    twice: bool = False
    within: float = float("inf")


class Line:
    """The segments of all pieces, one after the other: from a place in a piece to the id of the sample there."""

    def __init__(self, shards: Shards, parts: Parts, pieces: int, mixing: Mixing):
        self._shards = shards
        self._parts = parts
        self._mixing = mixing
        count = len(parts.shard)
        line = np.arange(count) if mixing.seed is None else permutation(count, Use.SHARDS, *mixing.seed)
        part_ends = np.cumsum(parts.samples[line])
        self.samples = int(part_ends[-1]) if count else 0
        # Cut like this, as many larger pieces lie in each half, third, … of all.
        self.cuts: Positions = np.array([piece * self.samples // pieces for piece in range(pieces + 1)])
        ends = np.union1d(part_ends, self.cuts[1:])
        ends = ends[ends > 0]
        starts = np.concatenate([[0], ends[:-1]])[: len(ends)]
        at = np.searchsorted(part_ends, starts, side="right")
        part = line[at]
        offset = starts - (part_ends[at] - parts.samples[part])
        if mixing.seed is not None:
            piece = np.searchsorted(self.cuts, starts, side="right")
            numbers = random_state(Use.SEGMENTS, *mixing.seed, mixing.epoch).random_sample(len(starts))
            anew = np.argsort(piece + numbers, kind="stable")
            part, offset, sizes = part[anew], offset[anew], (ends - starts)[anew]
            ends = np.cumsum(sizes)
            starts = ends - sizes
        self.segments = len(ends)
        self._ends = ends
        self._part = part
        # What is added to a place on the line: the id of the sample there, if the segment keeps its order.
        self._shift = shards.first[parts.shard[part]] + offset - starts
        self._some = parts.samples != shards.samples[parts.shard]
        longest = int((ends - starts).max()) if len(ends) else 0
        self._plain = not (mixing.twice or longest > mixing.within or self._some.any())
        self._kept = Kept(1 << 24)

    def ids(self, piece: Positions, place: Positions) -> Positions:
        """Give the ids of the samples at places of pieces, int64[n] all."""
        line = self.cuts[piece] + place
        segment = np.searchsorted(self._ends, line, side="right")
        if self._plain:
            ids: Positions = line + self._shift[segment]
            return ids
        ids = np.empty(len(line), np.int64)
        for number, here in groups(segment):
            ids[here] = self._ids_of_segment(number, line[here])
        return ids

    def _ids_of_segment(self, segment: int, line: Positions) -> Positions:
        mixing, part = self._mixing, int(self._part[segment])
        shard = int(self._parts.shard[part])
        start, end = int(self._ends[segment - 1]) if segment else 0, int(self._ends[segment])
        first = int(self._shards.first[shard])
        row = line - start
        if end - start > mixing.within:
            row = self._permutation(end - start, Use.IN_SEGMENT, segment, mixing.epoch)[row].astype(np.int64)
        row = row + (int(self._shift[segment]) + start - first)
        taken = int(self._parts.samples[part])
        if mixing.twice:
            row = self._permutation(taken, Use.IN_SHARD, part, mixing.epoch)[row].astype(np.int64)
        if self._some[part]:
            chosen = self._kept.get((Use.WITHIN_SHARD_CHOICE, part), lambda: self._chosen(part, shard, taken))
            row = chosen[row].astype(np.int64)
        return row + first

    def _chosen(self, part: int, shard: int, taken: int) -> NDArray[np.int32 | np.int64]:
        of = int(self._shards.samples[shard])
        return np.sort(permutation(of, Use.WITHIN_SHARD_CHOICE, *self._parts.choice, shard)[:taken])

    def _permutation(self, size: int, use: Use, number: int, epoch: int) -> NDArray[np.int32 | np.int64]:
        assert self._mixing.seed is not None
        key = (use, *self._mixing.seed, epoch, number)
        return self._kept.get((use, number), lambda: permutation(size, *key))


def groups(keys: Positions) -> Iterator[tuple[int, Positions | slice]]:
    """Give each key that occurs, and where."""
    if not len(keys):
        return
    if (keys == keys[0]).all():
        yield int(keys[0]), slice(None)
        return
    order = np.argsort(keys, kind="stable")
    for here in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        yield int(keys[here[0]]), here
