"""Quarantine: what to read instead of shards that stay bad, so that one of them does not end a run."""

from __future__ import annotations

import logging
from itertools import chain

import numpy as np

from mds_core.errors import FormatError, RewrittenError
from mds_torch.order.permutations import Positions
from mds_torch.shared import SharedArray
from mds_torch.stream import JoinedReader

log = logging.getLogger("mds_torch")


class Quarantine:
    """The shards of a data set that could not be opened, known to this process and its workers.

    Args:
        reader: of the data set.
    """

    def __init__(self, reader: JoinedReader):
        self._reader = reader
        self._bad = SharedArray((len(reader.shards),), np.uint8)

    @property
    def shards(self) -> dict[str, range]:
        """The path of each bad shard, and the ids of its samples."""
        numbers = np.flatnonzero(self._bad.array).tolist()
        starts = self._reader.starts
        return {self._reader.path_of(n): range(int(starts[n]), int(starts[n + 1])) for n in numbers}

    def readable(self, ids: Positions) -> Positions:
        """Give the ids of samples to read: those that are given, but for those in bad shards.

        Instead of such a sample comes one of the next good shard of its stream, which every process chooses alike, and
        which comes at its own place, too: no batch is smaller, no rank has fewer.

        Args:
            ids: int64[n].

        Raises:
            FormatError, OSError: all shards of a stream are bad.
            RewrittenError: the data set is another one now.
        """
        reader, bad = self._reader, self._bad.array
        while True:
            numbers = np.searchsorted(reader.starts[1:], ids, side="right")
            if bad[numbers].any():
                ids = ids.copy()
                for number in np.unique(numbers[bad[numbers] != 0]).tolist():
                    other = self._good_one_after(number)
                    these = numbers == number
                    rows = (ids[these] - reader.starts[number]) % reader.shards[other].samples
                    ids[these] = reader.starts[other] + rows
                continue
            if all(self._opens(number) for number in np.unique(numbers).tolist()):
                return ids

    def _good_one_after(self, number: int) -> int:
        entries = self._reader.shards
        first, stop = self._reader.stream_of(number)
        for other in chain(range(number + 1, stop), range(first, number)):
            if entries[other].samples and not self._bad.array[other]:
                return other
        self._reader.open_shard(number)  # raises what is wrong with it
        raise FormatError(f"{self._reader.path_of(number)}: it could not be read before; no shard of its stream can")

    def _opens(self, number: int) -> bool:
        try:
            self._reader.open_shard(number)
        except RewrittenError:
            raise
        except (FormatError, OSError) as error:
            start, stop = self._reader.starts[number : number + 2].tolist()
            log.error(
                "%s is left out, samples %d to %d, and others come instead: %s",
                self._reader.path_of(number), start, stop - 1, error,
            )  # fmt: skip
            self._bad.array[number] = 1
            return False
        return True
