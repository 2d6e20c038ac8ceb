"""Where was I: which epoch a dataset reads, and from which sample on; counted together by all its workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from multiprocessing.context import get_spawning_popen
from operator import length_hint
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from mds_torch.order.deal import Deal
from mds_torch.shared import SharedArray


@dataclass(frozen=True)
class Epoch:
    """An epoch to read.

    Args:
        number: from 0.
        start: the first position of its global sequence that is to be read.
        pieces: the number of canonical nodes; 0 until it is known.
        seed: of the shuffle.
        group: samples in a row of one stream, for batching methods with groups; 0 until it is known.
            It is one epoch's: what is left of that keeps it, whatever the batch size is then.
        skip: each worker of each rank had so many samples more. Then `ranks`, `workers` and `batch_size` say who.
        ranks: how many there were.
        workers: DataLoader workers of a rank; 1 without.
        batch_size: a rank's.
    """

    number: int
    start: int
    pieces: int
    seed: int
    group: int = 0
    skip: int = 0
    ranks: int = 0
    workers: int = 0
    batch_size: int = 0

    def next(self) -> Epoch:
        """Give the one after it."""
        return Epoch(self.number + 1, 0, self.pieces, self.seed)

    def rest(self, start: int) -> Epoch:
        """Give the rest of it, from a position on."""
        return Epoch(self.number, start, self.pieces, self.seed, self.group)

    def check_goes_on(self, ranks: int, workers: int, batch_size: int) -> None:
        """Check that these can go on where it begins; StreamingDataLoader, whose batches are whole, has 0 workers.

        Raises:
            ValueError: it begins within a batch of others.
        """
        found = (ranks, workers, batch_size) if workers else "StreamingDataLoader"
        expected = (self.ranks, self.workers, self.batch_size)
        if self.skip and found != expected:
            raise ValueError(
                "the state was taken within a batch, and only the same (ranks, workers, batch size) of a plain "
                f"iteration can go on there: expected {expected}, found {found}; iterate the dataset itself, or take "
                "states between batches"
            )

    def row(self) -> tuple[int, ...]:
        """Give it as numbers."""
        return tuple(getattr(self, name) for name in _FIELDS)


_FIELDS = tuple(field.name for field in fields(Epoch))
_VERSION = 1
# What a state calls them.
_KEYS = {
    "epoch": "number",
    "sample_in_epoch": "start",
    "num_canonical_nodes": "pieces",
    "shuffle_seed": "seed",
    "samples_per_group": "group",
    "rank_samples": "skip",
    "ranks": "ranks",
    "workers": "workers",
    "batch_size": "batch_size",
}


def to_state(epoch: Epoch, order: str) -> dict[str, Any]:
    """Give what a checkpoint keeps: plain JSON, the same on every rank.

    Args:
        epoch: the epoch, from where on it is to be read.
        order: what else the order depends on, in words.
    """
    return {"version": _VERSION, "order": order} | {key: getattr(epoch, name) for key, name in _KEYS.items()}


def from_state(state: Any, order: str) -> Epoch:
    """Read what a checkpoint kept.

    Raises:
        ValueError: it is none of ours, or of another order.
    """
    advice = "set_epoch begins an epoch anew"
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        found = f"keys {sorted(map(str, state))}" if isinstance(state, dict) else type(state).__name__
        raise ValueError(
            f"state: expected a dict of version {_VERSION}, as state_dict() gives, found {found}; {advice}"
        )
    wrong = [
        f"{key} = {state.get(key)!r}"
        for key in _KEYS
        if not isinstance(state.get(key), int) or not 0 <= state[key] < 1 << 63
    ]
    if wrong:
        raise ValueError(f"state: expected numbers from 0 on, found {', '.join(wrong)}; {advice}")
    if state.get("order") != order:
        raise ValueError(
            f"state: it is of an order with\n    {state.get('order')}\nwhere this dataset has\n    {order}\n"
            f"Give the dataset the arguments, and the data, that it had; {advice}"
        )
    return Epoch(**{name: state[key] for key, name in _KEYS.items()})


# So many processes that train, epochs of theirs that began last, and workers of each are told apart.
_TRAINERS, _BEGUN, _WORKERS = 256, 64, 1024
_EPOCH = (np.int64, len(_FIELDS))
_ROWS = np.dtype(
    [
        (
            "trainers",
            [("process", np.int64), ("next", *_EPOCH), ("latest", *_EPOCH), ("has_begun", np.bool_)],
            _TRAINERS,
        ),
        ("begun", [("key", np.int64), ("epoch", *_EPOCH), ("by", np.bool_, _WORKERS)], _BEGUN),
    ]
)


class Epochs:
    """Counts a dataset's epochs, in the process that trains and in its workers.

    torch hands a DataLoader's workers copies of the dataset, and tells nobody that an epoch begins. The first worker
    to begin one takes the trainer's next number; the others of the same iteration, which have torch's seed in common,
    take the same. Copies in processes that are no workers count for themselves.

    Args:
        first: the first epoch.
    """

    def __init__(self, first: Epoch):
        self._first = first
        self._rows = SharedArray((), _ROWS)
        self._begun_here = 0
        # The process that pickled this copy, and the one that it was meant for.
        self._sent = (0, 0)

    @property
    def next(self) -> Epoch:
        """The epoch that the next iteration reads. Setting it forgets which one began last."""
        with self._rows.locked() as rows:
            return Epoch(*self._row(rows)["next"].tolist())

    @next.setter
    def next(self, epoch: Epoch) -> None:
        with self._rows.locked() as rows:
            row = self._row(rows)
            row["next"], row["has_begun"] = epoch.row(), False

    @property
    def latest(self) -> Epoch | None:
        """The epoch that began last, if any did."""
        with self._rows.locked() as rows:
            row = self._row(rows)
            return Epoch(*row["latest"].tolist()) if row["has_begun"] else None

    def begin(self, complete: Callable[[Epoch], Epoch], known: Epoch | None = None) -> Epoch:
        """Begin an iteration: give its epoch.

        Args:
            complete: makes an epoch whole of which not everything is known.
            known: the epoch, if this worker has been told; the others may not know.
        """
        info = get_worker_info()
        with self._rows.locked() as rows:
            row, begun = self._row(rows), rows["begun"]
            if info is not None:
                self._begun_here += 1
                key = hash((info.seed - info.id, self._begun_here, int(row["process"])))
                worker = info.id % _WORKERS
                # The seed alone may be that of an earlier iteration, which this worker has begun already.
                same = np.flatnonzero((begun["key"] == key) & ~begun["by"][:, worker])
                if len(same):
                    begun["by"][same[0], worker] = True
                    return known or Epoch(*begun["epoch"][same[0]].tolist())
            epoch = complete(known or Epoch(*row["next"].tolist()))
            if info is not None:
                begun[1:] = begun[:-1].copy()
                begun["key"][0], begun["epoch"][0], begun["by"][0] = key, epoch.row(), False
                begun["by"][0, worker] = True
            row["next"], row["latest"], row["has_begun"] = epoch.next().row(), epoch.row(), True
            return epoch

    def _row(self, rows: Any) -> Any:
        """Give the row of this process, or of the one whose worker it is."""
        parent = self._sent[0] if self._sent[1] == os.getpid() else os.getppid()
        mine = os.getpid() if get_worker_info() is None else parent
        trainers = rows["trainers"]
        known = np.flatnonzero(trainers["process"] == mine)
        if len(known):
            return trainers[known[0]]
        free = np.argmin(trainers["process"] != 0)
        origin = np.flatnonzero(trainers["process"] == parent)
        if len(origin):  # this goes on where the process that it comes from is
            trainers[free] = trainers[origin[0]]
        else:
            trainers[free] = mine, self._first.row(), self._first.row(), False
        trainers["process"][free] = mine
        return trainers[free]

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is None:
            return {"_first": self.next}
        return {"_first": self._first, "_rows": self._rows, "_begun_here": 0, "_sent": (os.getpid(), 0)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_rows" in state:
            self.__dict__.update(state)
            self._sent = (self._sent[0], os.getpid())
        else:
            Epochs.__init__(self, state["_first"])


@dataclass
class Progress:
    """How far an iteration is: what it delivered of this rank's, or in a worker, of the worker's samples.

    Args:
        epoch: what it reads.
        deal: how that is dealt out.
        rank: whose share it is.
        samples: delivered so far, those that were skipped included.
        current: the samples that are being delivered, already counted.
        finished: nothing is left.
        left: the loop was left.
    """

    epoch: Epoch
    deal: Deal
    rank: int
    samples: int = 0
    current: Iterator[Any] | None = None
    finished: bool = False
    left: bool = False

    def rest(self) -> Epoch:
        """Give what is left to read."""
        samples = self.samples - (0 if self.current is None else length_hint(self.current))
        info, deal = get_worker_info(), self.deal
        who = {"ranks": deal.ranks, "workers": 1 if info is None else info.num_workers, "batch_size": deal.batch_size}
        if info is not None:
            # Of a worker that has ended, nothing is left until all have.
            return replace(self.epoch, skip=samples, **who) if samples else self.epoch
        if self.finished:
            return self.epoch.next()
        batches, more = divmod(samples, deal.batch_size)
        if more and samples >= deal.samples(self.rank):
            batches, more = batches + 1, 0  # the last batch is smaller
        # Rank 0 has most. A loop that has had the last batch has had the epoch: a framework that makes its checkpoint
        # there would take the empty rest for an epoch.
        if not more and batches >= deal.batches(0):
            return self.epoch.next()
        rest = self.epoch.rest(deal.position(batches))
        return replace(rest, skip=more, **who) if more else rest
