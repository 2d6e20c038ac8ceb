"""MDSReader: a data set as a sequence of samples, with random access."""

from __future__ import annotations

import operator
import os
import tempfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from mds_core.compression import decompress
from mds_core.encodings import check_safe
from mds_core.errors import FormatError
from mds_core.fetch import check_hash, check_size, fetch_shard, map_file
from mds_core.hashing import check_hashes
from mds_core.index import File, Index, Shard, check_unchanged, read_index_version
from mds_core.ranged import MOST_BY_RANGE, RangedShard
from mds_core.shard import Rows, ShardReader
from mds_core.storage import Storage, open_storage
from mds_core.storage.info import Version
from mds_core.storage.local import LocalStorage

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A mapped shard costs an entry in the kernel's table of at most 65,530 a process.
_MOST_OPEN_SHARDS = 1024


def _keep_freed_memory() -> None:
    """Make glibc's malloc keep up to 64 MB that is free, and not give each large value's back to the kernel.

    Freeing a block this large, which is never touched, raises its limits (mallopt(3), M_MMAP_THRESHOLD). Images of
    100 kB are read 5 times as fast: 16,000 and 83,000 a second, where their memory came from the kernel and did not.
    """
    np.empty((32 << 20) - (64 << 10), np.uint8)


_keep_freed_memory()


def open_shard(
    storage: Storage,
    index: Version,
    shard: Shard,
    validate_hash: str | None = None,
    columns: Sequence[str] | None = None,
) -> ShardReader:
    """Open and check a shard: memory-mapped, or unpacked to a temporary file without a name, and mapped.

    Args:
        storage: the data set's folder.
        index: the version of its index, when that was read.
        shard: the shard's entry there.
        validate_hash: the name of a hash that the files must have, if any.
        columns: the names of the columns to read, all unless given.

    Raises:
        FileNotFoundError: its file is missing.
        FormatError: its file is not what the index says.
    """
    stored = shard.stored
    path = storage.describe(stored.basename)
    if isinstance(storage, LocalStorage):
        data = _map_stored(storage, stored, path)
        check_hash(validate_hash, stored.hashes, data, path)
    else:
        with tempfile.TemporaryFile() as file:
            fetch_shard(storage, index, shard, file, validate_hash=validate_hash)
            data = map_file(file.fileno(), stored.bytes)
    if shard.layout.compression is not None:
        raw = decompress(data, shard.layout.compression, shard.raw_data.bytes, path)
        check_hash(validate_hash, shard.raw_data.hashes, raw, path)
        with tempfile.TemporaryFile() as file:
            file.write(raw)
            file.flush()
            data = map_file(file.fileno(), shard.raw_data.bytes)
    return ShardReader(data, shard, storage.describe(shard.raw_data.basename), columns)


def _map_stored(storage: LocalStorage, stored: File, path: str) -> Buffer:
    try:
        with storage.open(stored.basename) as file:
            size = os.fstat(file.fileno()).st_size
            check_size(size, stored, path)
            return map_file(file.fileno(), size)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"shard {path} is missing: the index names it, with {stored.bytes} bytes") from None
    except IsADirectoryError:
        raise FormatError(f"{path}: expected a shard of {stored.bytes} bytes, found a folder") from None


def _number(value: object) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"expected samples' numbers, found the boolean {value}; of a mask, give np.flatnonzero(mask)")
    return operator.index(value)  # type: ignore[arg-type]


class MDSReader:
    """Read an MDS data set: its length, single samples, slices, and all of them in order.

    Shards are memory-mapped when they are first needed; compressed ones are unpacked once, to a temporary file
    without a name. Of a store, they are fetched to such a file, too, but `reader[i]` reads the first 16 samples of an
    uncompressed shard by themselves: its offsets once, then one request a sample.

    A shard file that is cut short in place while it is mapped ends the process with SIGBUS, as with any memory map:
    nothing here ever writes into a file that is there.

    Args:
        path: the data set's folder.
        allow_unsafe_types: read `pkl` columns, too, which runs code of the data set's writer.
        validate_hash: the name of a hash in the index; each shard is checked against it when it is opened.
        columns: the names of the columns to read, all unless given; the others are not decoded.
        storage_options: of the path's store, by name, instead of what the environment says: `endpoint`, `profile`, …

    Raises:
        FileNotFoundError: there is no data set.
        FormatError: its index is broken.
        ValueError: there is no such column, a column needs `allow_unsafe_types`, or the data set does not have the
            hash.

    Example:
        >>> MDSReader("/data/reviews")[0]
        {'stars': np.int32(5), 'text': 'good'}
    """

    def __init__(
        self,
        path: str,
        *,
        allow_unsafe_types: bool = False,
        validate_hash: str | None = None,
        columns: Sequence[str] | None = None,
        storage_options: dict[str, str] | None = None,
    ):
        self.storage = open_storage(path, storage_options)
        # The version is the file's, the identity tells the same contents: see `read_index_version`.
        self.index: Index
        self.index, self.identity, self.version = read_index_version(self.storage)
        self._columns = None if columns is None else self._known(columns)
        check_safe(self.columns, allow_unsafe_types)
        self._validate_hash = validate_hash
        if validate_hash is not None:
            check_hashes([validate_hash])
            without = next((s for s in self.shards if validate_hash not in s.layout.hashes), None)
            if without is not None:
                raise ValueError(
                    f"validate_hash {validate_hash!r}: {without.stored.basename} has only {list(without.layout.hashes)}"
                )
        self.starts: NDArray[np.int64] = np.concatenate(
            [[0], np.cumsum([shard.samples for shard in self.shards], dtype=np.int64)]
        )
        self._ends: list[int] = self.starts[1:].tolist()
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._by_range: dict[int, RangedShard] = {}
        # Seconds after which no request for a sample is tried again.
        self.timeout = 60.0

    @property
    def columns(self) -> dict[str, str]:
        """The encoding of each column that is read, by name, in the data set's order."""
        columns = self.index.columns
        if self._columns is None:
            return columns
        return {name: encoding for name, encoding in columns.items() if name in self._columns}

    def _known(self, columns: Sequence[str]) -> list[str]:
        if isinstance(columns, str):
            raise TypeError(f"columns: expected a list of names, found the text {columns!r}; give [{columns!r}]")
        unknown = [name for name in columns if name not in self.index.columns]
        # An empty data set may have no columns at all.
        if self.shards and (unknown or not columns):
            raise ValueError(
                f"columns: expected names from {list(self.index.columns)} of {self.storage.root}, "
                f"found {unknown or 'none'}"
            )
        return list(columns)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards' entries in the index, in order."""
        return self.index.shards

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, at: slice | Sequence[int] | NDArray[np.integer[Any]]) -> list[dict[str, Any]]: ...

    def __getitem__(self, at: Any) -> Any:
        try:
            i = at.__index__()
        except (AttributeError, TypeError):
            if isinstance(at, slice):
                return self.samples(np.arange(*at.indices(len(self))))
            return self.samples(np.array([self._counted_from_start(_number(i)) for i in at], np.int64))
        i = self._counted_from_start(i)
        ends = self._ends
        number = bisect_right(ends, i)
        shard = self._open.get(number)
        if shard is None:
            row = i - ends[number] + self.shards[number].samples
            sample = self.sample_by_range(number, row)
            if sample is not None:
                return sample
            shard = self.open_shard(number)
        return shard.sample(i - ends[number] + shard.samples)

    def sample_by_range(self, number: int, row: int) -> dict[str, Any] | None:
        """Read one sample of a shard in a store without fetching the shard; None where that is no use.

        It is none after the first samples of a shard, for compressed ones, for those in a folder, and where hashes
        are to be checked.

        Raises:
            FormatError: the shard is not what the index says.
            RewrittenError: the data set is another one now.
        """
        shard = self.shards[number]
        if isinstance(self.storage, LocalStorage) or shard.zip_data is not None or self._validate_hash is not None:
            return None
        ranged = self._by_range.get(number)
        if ranged is None:
            while len(self._by_range) >= _MOST_OPEN_SHARDS:
                del self._by_range[next(iter(self._by_range))]
            ranged = self._by_range[number] = RangedShard(self.storage, shard, self._columns, self.timeout)
            check_unchanged(self.storage, self.version, shard, ranged.version)
        if ranged.asked >= MOST_BY_RANGE:
            del self._by_range[number]
            return None
        return ranged.sample(row)

    def _counted_from_start(self, at: int) -> int:
        i = at + len(self) if at < 0 else at
        if not 0 <= i < len(self):
            raise IndexError(f"sample {at} of a data set of {len(self)} samples at {self.storage.root}")
        return i

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(len(self.shards)):
            yield from self.open_shard(number).iterate()

    def samples(self, ids: Rows) -> list[dict[str, Any]]:
        """Read many samples, each shard's together; ids are int64[n], in any order."""
        samples: list[dict[str, Any]] = []
        for shard, rows, places in self.by_shard(ids):
            part = shard.read(rows)
            if places is None:
                return part
            samples = samples or [{}] * len(ids)
            for place, sample in zip(places.tolist(), part, strict=True):
                samples[place] = sample
        return samples

    def by_shard(self, ids: Rows) -> Iterator[tuple[ShardReader, Rows, Rows | None]]:
        """Group samples by their shard.

        Args:
            ids: sample numbers in the data set, int64[n], in any order.

        Returns:
            For each shard of theirs: the open shard, the samples' rows in it, and their places among the ids, or
            None if these are all.
        """
        if not len(ids):
            return
        numbers = np.searchsorted(self.starts[1:], ids, side="right")
        if (numbers == numbers[0]).all():
            yield self.open_shard(int(numbers[0])), ids - self.starts[numbers[0]], None
            return
        order = np.argsort(numbers, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            number = int(numbers[places[0]])
            yield self.open_shard(number), ids[places] - self.starts[number], places

    def open_shard(self, number: int) -> ShardReader:
        """Give a shard, opened and checked.

        Raises:
            FileNotFoundError: its file is missing.
            FormatError: its file is not what the index says.
        """
        shard = self._open.get(number)
        if shard is None:
            shard = self._opened(number)
            if len(self._open) >= _MOST_OPEN_SHARDS:
                self._open.popitem(last=False)
            self._open[number] = shard
        return shard

    def _opened(self, number: int) -> ShardReader:
        return open_shard(self.storage, self.version, self.shards[number], self._validate_hash, self._columns)

    def __getstate__(self) -> dict[str, Any]:
        # Memory maps do not travel; a copy in another process opens its own.
        return {**self.__dict__, "_open": OrderedDict(), "_by_range": {}}
