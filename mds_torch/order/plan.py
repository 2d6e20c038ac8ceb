"""The plan of a dataset's epochs: from what a user asks for to an epoch's global sequence."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mds_torch.order.batching import Batched
from mds_torch.order.epoch import GlobalSequence
from mds_torch.order.filtered import Filtered, Masks, left_of
from mds_torch.order.line import Parts, Shards
from mds_torch.order.permutations import Positions
from mds_torch.order.sampling import Weight, parts_of, stream_samples
from mds_torch.order.sequence import Rules, Sequence


@dataclass(frozen=True)
class Plan:
    """What the epochs of a dataset are made of.

    Args:
        shard_samples: samples of each shard, those of the first stream first, int64[shards].
        stream_shards: how many shards each stream has.
        weights: how much of each stream an epoch takes.
        epoch_size: how many samples an epoch has, if that is given.
        shuffle: the name of an algorithm, or None.
        block: about how many samples of a piece are shuffled together, if that is given.
        batching: the name of a batching method.
        balanced: choose anew each epoch what is taken of a stream.
        granularity: how many samples to choose of one shard at a time.
        masks: which samples to leave in, if not all.
    """

    shard_samples: Positions
    stream_shards: List[int]
    weights: List[Weight]
    epoch_size: int | None = None
    shuffle: str | None = None
    block: int | None = None
    batching: str = "random"
    balanced: bool = True
    granularity: int = 1
    masks: Masks | None = None

    @cached_property
    def _all(self) -> Shards:
        return Shards(np.cumsum(self.shard_samples) - self.shard_samples, self.shard_samples)

    @cached_property
    def _shards(self) -> Shards:
        return self._all if self.masks is None else left_of(self._all, self.masks)

    @cached_property
    def _streams(self) -> list[range]:
        ends = np.cumsum([0, *self.stream_shards]).tolist()
        return [range(first, last) for first, last in pairwise(ends)]

    @cached_property
    def stream_samples(self) -> list[int]:
        """How many samples an epoch takes of each stream.

        Raises:
            ValueError: of a stream without samples it takes some.
        """
        sizes = [int(self._shards.samples[mine.start : mine.stop].sum()) for mine in self._streams]
        taken = stream_samples(self.weights, sizes, self.epoch_size)
        for number, (samples, size) in enumerate(zip(taken, sizes, strict=True)):
            if samples and not size:
                raise ValueError(f"stream {number} has no samples, and an epoch is to take {samples} of it")
        return taken

    @property
    def has_groups(self) -> bool:
        """Whether samples come in groups of one stream."""
        return self.batching in ("per_stream", "device_per_stream")

    def samples(self, group: int) -> int:
        """Give how many samples an epoch has, in groups of a size."""
        if not self.has_groups:
            return sum(self.stream_samples)
        return sum(samples // group * group for samples in self.stream_samples)

    @property
    def pieces_per_node(self) -> int:
        """How many canonical nodes there are for each node, unless something else is asked for."""
        return 64 if self.shuffle in ("py1s", "py2s") else 1

    def sequence(self, pieces: int, seed: int, epoch: int, group: int) -> GlobalSequence:
        """Give the global sequence of an epoch.

        Args:
            pieces: the number of canonical nodes.
            seed: of the shuffle.
            epoch: from 0.
            group: samples in a row of one stream, for batching methods with groups.

        Raises:
            ValueError: a stream has less than a group.
        """
        chosen = seed, epoch if self.balanced else 0
        parts = [
            parts_of(self._shards, mine, samples, self.granularity, chosen)
            for mine, samples in zip(self._streams, self.stream_samples, strict=True)
        ]
        block = self.block or max(4_000_000 // pieces, 1 << 18)
        if self.batching == "random":
            shard, taken = (np.concatenate([getattr(part, name) for part in parts]) for name in ("shard", "samples"))
            whole = Parts(shard, taken, chosen)
            sequence: GlobalSequence = Sequence(self._shards, whole, Rules(pieces, self.shuffle, seed, epoch, block))
        else:
            total = max(1, sum(self.stream_samples))
            sequences = []
            for number, (part, samples) in enumerate(zip(parts, self.stream_samples, strict=True)):
                rules = Rules(pieces, self.shuffle, seed, epoch, max(1, block * samples // total), number)
                sequences.append(Sequence(self._shards, part, rules))
            key = None if self.shuffle is None else (seed, epoch)
            by_piece = self.batching == "device_per_stream"
            sequence = Batched(sequences, group if self.has_groups else 1, pieces, by_piece, key)
        return sequence if self.masks is None else Filtered(sequence, self._all, self._shards, self.masks)

    def __str__(self) -> str:
        """Say what an order depends on, besides seed, epoch, canonical nodes and groups."""
        shuffle = f"{self.shuffle} in blocks of {self.block or 'the usual size'}" if self.shuffle else "none"
        samples = " + ".join(map(str, self.stream_samples))
        choice = f"{'anew each epoch' if self.balanced else 'the same each epoch'}, {self.granularity} at a time"
        return (
            f"samples: {samples} of {int(self.shard_samples.sum())} in {len(self.shard_samples)} shards, chosen "
            f"{choice}; shuffle: {shuffle}; batching: {self.batching}"
        )
