"""Fetching a shard's file from where it is kept: checked, tried again, and never for ever."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa

from mds_core.errors import FormatError, RewrittenError
from mds_core.hashing import digest
from mds_core.index import File, Shard, check_unchanged
from mds_core.storage import Storage
from mds_core.storage.info import Version
from mds_core.storage.remote import pause_after

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A file may take a second more for each so many bytes.
_SLOWEST = 1 << 20


def fetch_shard(
    storage: Storage,
    index: Version,
    shard: Shard,
    into: BinaryIO,
    *,
    retry: int = 2,
    timeout: float = 60.0,
    validate_hash: str | None = None,
) -> None:
    """Write a shard's file, as it is stored, to an open, empty one, and check it.

    Args:
        storage: the data set's folder.
        index: the version of its index, when that was read.
        shard: the shard's entry there.
        into: where to.
        retry: how often to try again what may pass, with growing pauses: broken connections, busy servers, a body that
            is cut short or does not have its hash.
        timeout: seconds that all tries together may take, and a second more for each MiB.
        validate_hash: the name of a hash that the file must have, if any.

    Raises:
        FileNotFoundError: there is no such file.
        RewrittenError: the data set was written again since its index was read.
        PermissionError: the store refuses.
        FormatError: what came each time is not what the index says.
        OSError: it could not be read; the disk is full.
    """
    stored = shard.stored
    path = storage.describe(stored.basename)
    began = time.monotonic()
    deadline = began + timeout + stored.bytes / _SLOWEST
    for attempt in range(retry + 1):
        into.seek(0)
        into.truncate()
        try:
            version = storage.fetch(stored.basename, cast(BinaryIO, _Bounded(into, stored, path)), deadline)
            into.flush()
            check_size(into.tell(), stored, path)
            check_hash(validate_hash, stored.hashes, map_file(into.fileno(), stored.bytes), path)
            check_unchanged(storage, index, shard, version)
            return
        except FileNotFoundError:
            check_unchanged(storage, index, shard, None)
            raise FileNotFoundError(f"shard {path} is missing: the index names it, with {stored.bytes} bytes") from None
        except (PermissionError, RewrittenError):
            raise
        except (FormatError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):  # the disk is full
                raise
            pause = pause_after(attempt)
            if attempt == retry or time.monotonic() + pause > deadline:
                took = time.monotonic() - began
                tries = "tries" if attempt else "try"
                kind = FormatError if isinstance(error, FormatError) else OSError
                raise kind(
                    f"shard {path}: could not be fetched in {attempt + 1} {tries} and {took:.1f} s; the last: {error}"
                ) from error
            time.sleep(pause)


class _Bounded:
    """A file that takes no more bytes than the index says: what a store sends may be anything."""

    def __init__(self, file: BinaryIO, stored: File, path: str):
        self._file, self._stored, self._path = file, stored, path
        self.tell = file.tell

    def write(self, data: Buffer) -> int:
        """Write all of the data."""
        view = memoryview(data).cast("B")
        if self._file.tell() + view.nbytes > self._stored.bytes:
            check_size(self._file.tell() + view.nbytes, self._stored, self._path)
        size = view.nbytes
        while view.nbytes:  # an unbuffered file may take a part
            view = view[self._file.write(view) :]
        return size


def check_size(size: int, stored: File, path: str) -> None:
    """Raise FormatError unless a file has the size that the index says."""
    if size != stored.bytes:
        raise FormatError(f"{path}: bytes: expected {stored.bytes} as in the index, found {size}")


def check_hash(name: str | None, hashes: dict[str, str], data: Buffer, path: str) -> None:
    """Raise FormatError unless data have the hash that the index says; ValueError if it says none of this name."""
    if name is None:
        return
    if name not in hashes:
        raise ValueError(f"{path}: no {name} in the index, which has {list(hashes)}; choose one of them")
    found = digest([data], [name])[name]
    if found != hashes[name]:
        raise FormatError(f"{path}: {name}: expected {hashes[name]}, found {found}")


def map_file(descriptor: int, size: int) -> Buffer:
    """Map an open file. Python's own `mmap` would keep a descriptor open for each, and run out of them."""
    if not size:
        return b""
    with pa.memory_map(f"/dev/fd/{descriptor}") as file:
        data: Buffer = file.read_buffer()
    return data
