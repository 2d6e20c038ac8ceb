"""How many samples an epoch takes: of each stream, and of each shard."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from mds_torch.order.line import Parts, Shards
from mds_torch.order.permutations import Positions, Use, permutation


@dataclass(frozen=True)
class Weight:
    """How much of a stream an epoch takes: one of three, or all of it, once.

    Args:
        proportion: relative to the other streams.
        repeat: times its size.
        choose: samples.
    """

    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def wrong(self) -> list[str]:
        """Give what is wrong with it."""
        given: dict[str, Any] = {name: value for name, value in self.__dict__.items() if value is not None}
        several = [f"expected at most one of proportion, repeat and choose, found {given}"] if len(given) > 1 else []
        for name, value in given.items():
            kind: Any = Integral if name == "choose" else Real
            if not isinstance(value, kind) or isinstance(value, bool) or not 0 <= float(value) < float("inf"):
                whole = "whole " if name == "choose" else ""
                several.append(f"{name}: expected a {whole}number from 0 on, found {value!r}")
        return several


def check_weights(weights: List[Weight], epoch_size: int | None) -> list[str]:
    """Give what is wrong with streams' weights taken together."""
    relative = [weight.proportion is not None for weight in weights]
    wrong = []
    if any(relative) and not all(relative):
        wrong.append(
            f"streams {[i for i, one in enumerate(relative) if one]} have a proportion and "
            f"{[i for i, one in enumerate(relative) if not one]} have none: give all streams one, or none"
        )
    elif any(relative) and not 0 < (total := sum(float(weight.proportion or 0) for weight in weights)) < float("inf"):
        wrong.append(f"streams: expected proportions that add up to more than 0, and not to infinity, found {total}")
    if epoch_size is not None and any(w.repeat is not None or w.choose is not None for w in weights):
        wrong.append(
            "epoch_size: expected none where streams have repeat or choose, which say how many samples an epoch has; "
            f"found {epoch_size}"
        )
    return wrong


def stream_samples(weights: List[Weight], sizes: List[int], epoch_size: int | None) -> list[int]:
    """Give how many samples an epoch takes of each stream.

    Proportions, or sizes where only an epoch size is given, are rounded down; what is missing goes to the largest
    remainders, a sample each.
    """
    proportions = [weight.proportion for weight in weights]
    if proportions[0] is None and epoch_size is None:
        return [
            int(w.choose) if w.choose is not None else size if w.repeat is None else int(w.repeat * size)
            for w, size in zip(weights, sizes, strict=True)
        ]
    shares = sizes if proportions[0] is None else [p or 0.0 for p in proportions]
    total = sum(sizes) if epoch_size is None else epoch_size
    if not sum(shares):
        return [total, *[0] * (len(sizes) - 1)]  # of nothing: the caller says so
    exact = [float(total * share / sum(shares)) for share in shares]
    counts = [int(samples) for samples in exact]
    largest = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in largest[: total - sum(counts)]:
        counts[i] += 1
    return counts


def parts_of(shards: Shards, mine: range, samples: int, granularity: int, key: tuple[int, int]) -> Parts:
    """Give what an epoch takes of a stream's shards.

    Each shard comes whole as often as the stream does. Of the rest each shard has its share, in multiples of the
    granularity where it has as many.

    Args:
        shards: of all streams.
        mine: which of them are the stream's.
        samples: how many to take.
        granularity: samples to take of one shard at a time.
        key: seed and epoch, of what is chosen.
    """
    sizes, count = shards.samples[mine.start : mine.stop], len(mine)
    size = int(sizes.sum())
    whole, rest = divmod(samples, size) if size else (0, 0)
    shard, taken = np.tile(np.arange(mine.start, mine.stop), whole), np.tile(sizes, whole)
    if rest:
        order = permutation(count, Use.CHOICE, *key, mine.start)
        some = np.empty(count, np.int64)
        some[order] = _shares(sizes[order], rest, granularity)
        shard, taken = np.concatenate([shard, mine]), np.concatenate([taken, some])
    return Parts(shard, taken, key)


def _shares(sizes: Positions, samples: int, granularity: int) -> Positions:
    """Share samples, fewer than there are, out to shards: evenly along their line."""
    turns = -(-sizes // granularity)
    ends = np.cumsum(turns)
    # In floating point, a share may come out a turn off; sums are put right below.
    taken = np.floor(ends * (samples / granularity / ends[-1]))
    shares: Positions = np.minimum(np.diff(taken, prepend=0).astype(np.int64) * granularity, sizes)
    missing = samples - int(shares.sum())
    if missing > 0:
        room = sizes - shares
        shares += np.clip(missing - (np.cumsum(room) - room), 0, room)
    elif missing < 0:
        shares -= np.clip(-missing - (np.cumsum(shares) - shares), 0, shares)
    return shares
