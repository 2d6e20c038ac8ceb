"""Reading ahead: shards that the next samples need are fetched in the background, in the order of their need."""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from mds_torch.order.permutations import Positions

# Fetches at once, of each process that reads.
_THREADS = 8
# How far to be ahead where no number of samples is given: so many shards, or samples.
_SHARDS_AHEAD = 2 * _THREADS
_SAMPLES_AHEAD = 1 << 20


class Fetcher(Protocol):
    """What can fetch a data set's shards."""

    def shards_of(self, ids: Positions) -> Positions:
        """Give the numbers of the shards that samples are in, each once."""

    def is_fetched(self, number: int) -> bool:
        """Tell whether a shard needs no fetching."""

    def fetch_ahead(self, number: int) -> bool:
        """Fetch a shard before it is read; tell whether there was room for it."""


def read_ahead(turns: Iterator[Positions], fetcher: Fetcher, samples: int | None) -> Iterator[Positions]:
    """Give what is given, later: when its shards are being fetched, and those of what comes after it.

    What is ahead is bounded, so a slow reader holds the fetching back, as a full cache does.

    Args:
        turns: ids of samples, int64[n] each, in the order in which they are read.
        fetcher: of their shards.
        samples: how many samples to be ahead; unless given, as many as have 16 shards to fetch.
    """
    most_samples, most_shards = (_SAMPLES_AHEAD, _SHARDS_AHEAD) if samples is None else (samples, sys.maxsize)
    work = _Work(fetcher)
    ahead: deque[tuple[Positions, int]] = deque()
    seen: set[int] = set()
    samples_ahead = shards_ahead = added = 0
    try:
        while True:
            while not ahead or (samples_ahead < most_samples and shards_ahead < most_shards):
                ids = next(turns, None)
                if ids is None:
                    break
                new = [number for number in fetcher.shards_of(ids).tolist() if number not in seen]
                seen.update(new)
                missing = [number for number in new if not fetcher.is_fetched(number)]
                work.add(added, missing)
                added += 1
                ahead.append((ids, len(missing)))
                samples_ahead += len(ids)
                shards_ahead += len(missing)
            if not ahead:
                return
            ids, fetched = ahead.popleft()
            samples_ahead -= len(ids)
            shards_ahead -= fetched
            yield ids
            work.turns_read += 1
    finally:
        work.end()


class _Work:
    """Threads that fetch shards, in the order in which they are added; those of the first turn before all others.

    Who reads counts `turns_read`: what only earlier turns needed is not fetched any more.
    """

    def __init__(self, fetcher: Fetcher):
        self.turns_read = 0
        self._fetcher = fetcher
        self._wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._first = 0
        self._first_done = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, turn: int, shards: list[int]) -> None:
        """Fetch shards for a turn."""
        if turn == 0:
            self._first = len(shards)
        if not self._first:
            self._first_done.set()
        for shard in shards:
            self._wanted.put((turn, shard))
            if len(self._threads) < _THREADS:
                self._threads.append(threading.Thread(target=self._run, daemon=True))
                self._threads[-1].start()

    def end(self) -> None:
        """Fetch nothing more."""
        self._ended.set()
        self._first_done.set()
        for _ in self._threads:
            self._wanted.put((-1, 0))

    def _run(self) -> None:
        while not self._ended.is_set():
            turn, shard = self._wanted.get()
            if turn:
                # The first batch has the line for itself: it is there 10 to 20% sooner.
                self._first_done.wait()
            while turn >= self.turns_read and not self._ended.is_set():
                try:
                    if self._fetcher.fetch_ahead(shard):
                        break
                except Exception:  # who reads the shard meets the error again, and tells
                    break
                self._ended.wait(0.02)
            if not turn:
                with self._lock:
                    self._first -= 1
                    if not self._first:
                        self._first_done.set()
