"""CachedReader: a remote data set, read through this machine's cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mds_core.errors import FormatError
from mds_core.reader import MDSReader
from mds_core.shard import ShardReader
from mds_torch.cache import Cache, Fetching

# When another process finds no room, shards that were not read for so long, in seconds, are let go of.
_IDLE = 0.02


class CachedReader(MDSReader):
    """Read a remote data set, whose shards are fetched to a folder of this machine when they are first needed.

    Args:
        path: the data set's remote place.
        local: the folder.
        fetching: how shards are fetched and kept.
        allow_unsafe_types: as `MDSReader` has it.
        columns: likewise.
        storage_options: likewise.

    Raises:
        ValueError: the folder holds another data set; the limit is too small.
        FileNotFoundError, FormatError, PermissionError: as `MDSReader` and `Cache` say.
    """

    def __init__(
        self,
        path: str,
        local: str,
        fetching: Fetching,
        *,
        allow_unsafe_types: bool = False,
        columns: Sequence[str] | None = None,
        storage_options: dict[str, str] | None = None,
    ):
        super().__init__(
            path,
            allow_unsafe_types=allow_unsafe_types,
            validate_hash=fetching.validate_hash,
            columns=columns,
            storage_options=storage_options,
        )
        self.timeout = fetching.timeout
        self.cache = Cache(self, local, fetching)
        # How often a shard had been evicted when it was opened, and when it was last read.
        self._evicted: dict[int, int] = {}
        self._read_at: dict[int, float] = {}

    def sample_by_range(self, number: int, row: int) -> dict[str, Any] | None:
        """Read one sample without its shard, as `MDSReader` does; None where the shard is on disk."""
        return None if self.cache.is_there(number) else super().sample_by_range(number, row)

    def open_shard(self, number: int) -> ShardReader:
        """Give a shard, opened and checked, fetched if need be.

        Raises:
            FileNotFoundError, PermissionError, FormatError, OSError: it can't be fetched, or is broken.
            RewrittenError: the data set is another one now.
        """
        if self.cache.fetching.limit is None:
            return super().open_shard(number)
        books, now = self.cache.books, time.monotonic()
        if time.time_ns() - books.pressed[0] < 10**9:
            for other in [other for other, at in self._read_at.items() if now - at > _IDLE and other != number]:
                self._close(other)
        if number in self._open:
            if books.evicted[number] != self._evicted.get(number):
                self._close(number)
            else:
                books.used[number] = time.time_ns()
        shard = super().open_shard(number)
        self._read_at[number] = now
        if len(self._read_at) > len(self._open):  # the oldest was closed, for there are so many
            for other in [other for other in self._read_at if other not in self._open]:
                self._close(other)
        return shard

    def _opened(self, number: int) -> ShardReader:
        data, self._evicted[number] = self.cache.get(number, self.let_go)
        entry = self.shards[number]
        where = self.storage.describe(entry.raw_data.basename)
        try:
            return ShardReader(data, entry, where, self._columns)
        except FormatError:
            # What lies on disk may be broken: a hash would have told.
            self.cache.discard(number)
            data, self._evicted[number] = self.cache.get(number, self.let_go)
            return ShardReader(data, entry, where, self._columns)

    def is_fetched(self, number: int) -> bool:
        """Tell whether a shard is on disk."""
        return number in self._open or self.cache.is_there(number)

    def fetch_ahead(self, number: int) -> bool:
        """Fetch a shard before it is read; tell whether there was room for it."""
        return self.cache.fetch(number) is not None

    def _close(self, number: int) -> None:
        self._open.pop(number, None)
        self._read_at.pop(number, None)
        self._evicted.pop(number, None)
        self.cache.books.let_go(number)

    def let_go(self) -> None:
        """Close all shards: they may be evicted."""
        for number in list(self._read_at):
            self._close(number)
        self._open.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_evicted": {}, "_read_at": {}}
