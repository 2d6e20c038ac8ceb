"""Single samples of a shard in a store, without fetching the shard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mds_core.errors import FormatError, RewrittenError
from mds_core.index import File, Shard
from mds_core.shard import ShardReader, config_bytes, header_bytes
from mds_core.storage import Storage

# From so many samples on, the whole shard is the better thing to fetch.
MOST_BY_RANGE = 16


class RangedShard:
    """The offsets of a shard, read when this is made; then one request a sample.

    Args:
        storage: the data set's place.
        shard: the shard's entry in the index; uncompressed.
        columns: the names of the columns to read, all unless given.
        timeout: seconds after which a request is not tried again.

    Raises:
        FileNotFoundError: its file is missing.
        FormatError: the offsets are not what the index says.
    """

    def __init__(self, storage: Storage, shard: Shard, columns: Sequence[str] | None, timeout: float = 60.0):
        self.asked = 0
        self._timeout = timeout
        self._storage, self._shard, self._columns = storage, shard, columns
        raw = shard.raw_data
        self._path = storage.describe(raw.basename)
        stop = min(raw.bytes, 8 + 4 * shard.samples)
        try:
            header, self.version = storage.read_range(raw.basename, 0, stop, time.monotonic() + timeout)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"shard {self._path} is missing: the index names it, with {raw.bytes} bytes"
            ) from None
        numbers = np.frombuffer(header[: len(header) // 4 * 4], "<u4")
        self._offsets = offsets = numbers[1:]
        if len(header) != 8 + 4 * shard.samples or numbers[0] != shard.samples:
            found = int(numbers[0]) if len(numbers) else None
            raise FormatError(
                f"{self._path}: number of samples: expected {shard.samples} as in the index, found {found}"
            )
        if offsets[0] < len(header) or offsets[-1] != raw.bytes or (offsets[1:] < offsets[:-1]).any():
            raise FormatError(f"{self._path}: offsets: expected rising numbers from {len(header)} to {raw.bytes}")

    def sample(self, row: int) -> dict[str, Any]:
        """Read a sample.

        Raises:
            FormatError: it is broken.
            RewrittenError: the shard was written again since its offsets were read.
        """
        self.asked += 1
        shard, start, stop = self._shard, int(self._offsets[row]), int(self._offsets[row + 1])
        data, version = b"", self.version
        if stop > start:
            data, version = self._storage.read_range(
                shard.raw_data.basename, start, stop, time.monotonic() + self._timeout
            )
        if version != self.version:
            raise RewrittenError(f"{self._path} was written again while it was read; open the data set anew")
        if len(data) != stop - start:
            found = start + len(data)
            raise FormatError(f"{self._path}: bytes: expected {shard.raw_data.bytes} as in the index, found {found}")
        # A shard of this sample alone, for the reader of shards to check.
        whole = header_bytes(config_bytes(shard.layout), np.array([stop - start])) + data
        alone = Shard(shard.layout, 1, File(shard.raw_data.basename, len(whole), {}), None)
        try:
            return ShardReader(whole, alone, self._path, self._columns).sample(0)
        except FormatError as error:
            raise FormatError(f"{error} (sample {row} of the shard, which is read by itself)") from None
