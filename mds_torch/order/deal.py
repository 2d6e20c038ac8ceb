"""Dealing the global sequence out: which positions a rank has, batch by batch.

A step's global batch is the next (ranks x batch size) positions; ranks of one node take those of that node's pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np

from mds_torch.order.permutations import Positions


@dataclass(frozen=True)
class Deal:
    """How a global sequence is dealt to ranks.

    Args:
        length: of the sequence.
        batch_size: a rank's.
        ranks: how many there are.
        nodes: how many nodes they are on.
        start: the first position to deal.
        drop_last: leave a last global batch that is not full out.
        pad: repeat up to ranks-1 samples in the last global batch, so that all ranks have as many. Without it ranks
            have no sample twice, and some may have one sample, or one batch, less.
        group: so many positions in a row go to one rank where they fit into its batches.
        pieces: the number of canonical nodes.
        pieces_of: gives the canonical nodes of positions, int64[n] both; what is dealt to several nodes needs it.
    """

    length: int
    batch_size: int = 1
    ranks: int = 1
    nodes: int = 1
    start: int = 0
    drop_last: bool = False
    pad: bool = True
    group: int = 1
    pieces: int = 1
    pieces_of: Callable[[Positions], Positions] | None = None

    @property
    def step(self) -> int:
        """Samples a global batch."""
        return self.ranks * self.batch_size

    @property
    def _full(self) -> int:
        """How many global batches are full."""
        return max(0, self.length - self.start) // self.step

    def _last(self, rank: int) -> int:
        """Give how many samples a rank has of the last global batch, if that is not full."""
        rest = 0 if self.drop_last else max(0, self.length - self.start) % self.step
        return -(-(rest if self.pad else rest - rank) // self.ranks)

    def samples(self, rank: int) -> int:
        """Give how many samples a rank has, repeated ones included."""
        return self._full * self.batch_size + self._last(rank)

    def batches(self, rank: int) -> int:
        """Give how many batches a rank has, the last, smaller one included."""
        return self._full + (self._last(rank) > 0)

    def position(self, batches: int) -> int:
        """Give the position where the sequence goes on after so many batches of each rank."""
        return min(self.length, self.start + batches * self.step)

    def positions(self, rank: int, batches: List[int]) -> Positions:
        """Give the positions of some of a rank's batches, one after the other.

        Args:
            rank: whose.
            batches: their numbers, rising, at least one.

        Returns:
            int64[n]; n is a multiple of the batch size, unless the epoch's last batch, which can be smaller, is there.
        """
        last = batches[-1] >= self._full
        full = np.asarray(batches[:-1] if last else batches, np.int64)
        parts = [self._dealt(rank, full)] if len(full) else []
        if last:
            parts.append(self._dealt_last(rank))
        return np.concatenate(parts)

    def _dealt(self, rank: int, batches: Positions) -> Positions:
        size = self.batch_size
        starts = (self.start + batches * self.step)[:, None]
        if self.nodes == 1:
            mine: Positions = starts + np.arange(rank * size, (rank + 1) * size)
            return mine.reshape(-1)
        positions = starts + np.arange(self.step)
        together = self.group if size % self.group == 0 else 1
        node = self._nodes(positions[:, ::together].reshape(-1)).reshape(len(batches), -1)
        by_node = np.argsort(node, axis=1, kind="stable")
        groups = by_node[:, rank * size // together : (rank + 1) * size // together]
        return (starts[:, :, None] + groups[:, :, None] * together + np.arange(together)).reshape(-1)

    def _nodes(self, positions: Positions) -> Positions:
        assert self.pieces_of is not None
        return self.pieces_of(positions) * self.nodes // self.pieces

    def _dealt_last(self, rank: int) -> Positions:
        rest = np.arange(self.start + self._full * self.step, self.length)
        shares = np.array([self._last(r) for r in range(self.ranks)])
        room = shares.reshape(self.nodes, -1).sum(axis=1)
        node = self._nodes(rest) if self.nodes > 1 else np.zeros(len(rest), np.int64)
        own = [rest[node == n] for n in range(self.nodes)]
        # What is too much for a node goes to those that have room.
        others = np.concatenate([positions[room[n] :] for n, positions in enumerate(own)])
        mine = rank * self.nodes // self.ranks
        for n in range(mine + 1):
            own[n] = own[n][: room[n]]
            more = others[: room[n] - len(own[n])]
            others = others[len(more) :]
            own[n] = np.concatenate([own[n], more])
        repeated = self._repeated(mine, int(room[mine]) - len(own[mine]))
        before = int(shares[mine * self.ranks // self.nodes : rank].sum())
        return np.concatenate([own[mine], repeated])[before : before + shares[rank]]

    def _repeated(self, node: int, count: int) -> Positions:
        """Choose positions of a node's pieces to repeat: its first ones."""
        first = np.arange(min(self.length, (count + 1) * self.pieces if count else 0))
        own = first[self._nodes(first) == node] if self.nodes > 1 else first
        return np.resize(own if len(own) else first, count)
