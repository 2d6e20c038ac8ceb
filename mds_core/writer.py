"""MDSWriter: samples -> data set; and ShardWriter beneath it, which cuts samples into shards and stores them."""

from __future__ import annotations

import contextlib
import logging
import mmap
import re
import struct
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mds_core.columnar import encode_batch
from mds_core.compression import check_compression, compress, parse_compression
from mds_core.encodings import get_encoding
from mds_core.errors import EncodeError, FormatError, describe
from mds_core.hashing import check_hashes, digest
from mds_core.index import INDEX, MAX_SHARD_BYTES, File, Index, Layout, Shard, delete_replaced, parse_index
from mds_core.shard import config_bytes, header_bytes
from mds_core.sizes import parse_size
from mds_core.storage import Storage, open_storage

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

log = logging.getLogger("mds_core")

# Samples of one shard beyond this go to a temporary file, so that size_limit=None does not take the memory.
_MEMORY_A_SHARD = 1 << 28
_ROWS_AT_ONCE = 1 << 10
_NUMBERED = re.compile(r"shard\.([0-9]+)\.mds")


def check_options(
    columns: dict[str, str],
    compression: str | None = None,
    hashes: Sequence[str] | None = None,
    size_limit: int | str | None = 1 << 26,
) -> tuple[Layout | None, list[str]]:
    """Check a writer's options; give the layout that they make, or None and all that is wrong."""
    mistakes = []

    def attempt(what: str, check: Callable[..., Any], *args: Any) -> Any:
        try:
            return check(*args)
        except (TypeError, ValueError) as error:
            mistakes.append(f"{what}: {error}")

    if not columns or not isinstance(columns, dict):
        mistakes.append(f"columns: expected a dict of at least one column's encoding, found {columns!r}")
        columns = {}
    unnamed = [name for name in columns if not isinstance(name, str)]
    if unnamed:
        mistakes.append(f"columns: expected texts as names, found {unnamed}")
    for name, encoding in columns.items():
        attempt(f"column {name!r}", get_encoding, encoding)
    attempt("compression", check_compression, compression)
    names = [hashes] if isinstance(hashes, str) else hashes or ()
    attempt("hashes", check_hashes, names)
    limit = None if size_limit is None else attempt("size_limit", parse_size, size_limit)
    if limit is not None and limit > MAX_SHARD_BYTES:
        mistakes.append(f"size_limit: a shard holds at most {MAX_SHARD_BYTES} bytes (offsets are u32), found {limit}")
    if mistakes:
        return None, mistakes
    return Layout.of(columns, compression, names, limit), []


class ShardWriter:
    """Cuts samples into shards, and stores each in a background thread while the next one fills.

    Holds about two shards: the one that fills and the one that is compressed, hashed and stored.

    Args:
        storage: where shards go.
        layout: columns, compression, hashes and size limit of each shard.
        name: from a shard's number, from 0, to its uncompressed basename.
        staging: the staging folder for `Storage.put`, if any.
        empty_first: what the reference writer does when the very first sample is larger than a shard: an empty
            shard comes before it. Without, no shard is empty.
    """

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        name: Callable[[int], str],
        staging: str | None = None,
        empty_first: bool = False,
    ):
        self._storage = storage
        self._layout = layout
        self._name = name
        self._staging = staging
        self._empty_first = empty_first
        self._config = config_bytes(layout)
        self._limit = layout.size_limit if layout.size_limit is not None else 1 << 62
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mds-store")
        self._storing: Future[None] | None = None
        self._stored: list[Shard] = []
        self._finished = 0
        self._start_shard()

    def _start_shard(self) -> None:
        self._sizes: list[NDArray[np.int64]] = []
        self._samples = 0
        self._samples_data = _Spool()
        self._bytes = 8 + len(self._config)

    def append(self, data: Buffer | list[memoryview], sizes: NDArray[np.int64], copy: bool = False) -> None:
        """Add samples, back to back or in pieces as in `columnar.Encoded`; each goes where its size leaves it.

        Args:
            data: the samples. Its memory is kept until the shard is stored.
            sizes: each sample's size in bytes.
            copy: keep a copy instead, as the data's owner may write to it.

        Raises:
            ValueError: a shard would pass 4 GiB.
            OSError: an earlier shard could not be stored.
        """
        ends = np.cumsum(sizes, dtype=np.int64)
        pieces = data if isinstance(data, list) else []
        each = len(pieces) // max(1, len(sizes))
        view = memoryview(b"" if pieces else data).cast("B")  # type: ignore[arg-type]
        costs = ends + 4 * np.arange(1, len(sizes) + 1)  # with each sample's offset in the header

        def add(first: int, last: int) -> None:
            before = int(costs[first - 1]) if first else 0
            grown = self._bytes + int(costs[last - 1]) - before
            if grown > MAX_SHARD_BYTES:
                raise ValueError(
                    f"a shard of {grown} bytes: offsets in it are u32, so that it holds at most {MAX_SHARD_BYTES}; "
                    f"set size_limit (it is {self._layout.size_limit}), or make samples smaller"
                )
            start = int(ends[first - 1]) if first else 0
            for piece in pieces[first * each : last * each] or [view[start : int(ends[last - 1])]]:
                self._samples_data.append(memoryview(bytes(piece)) if copy else piece)
            self._sizes.append(sizes[first:last])
            self._samples += last - first
            self._bytes = grown

        done = 0
        while done < len(sizes):
            room = self._limit - self._bytes + (int(costs[done - 1]) if done else 0)
            fits = int(np.searchsorted(costs, room, side="right"))
            if fits > done:
                add(done, fits)
                done = fits
            if done < len(sizes):
                if self._samples or (self._empty_first and not self._finished):
                    self._finish_shard()
                add(done, done + 1)
                done += 1

    def _finish_shard(self) -> None:
        self._wait()
        name = self._name(self._finished)
        sizes = np.concatenate(self._sizes) if self._sizes else np.empty(0, np.int64)
        self._finished += 1
        self._storing = self._pool.submit(self._store, name, sizes, self._samples_data)
        self._start_shard()

    def _wait(self) -> None:
        if self._storing is not None:
            self._storing.result()
            self._storing = None

    def _store(self, name: str, sizes: NDArray[np.int64], spool: _Spool) -> None:
        layout = self._layout
        parts = [header_bytes(self._config, sizes), *spool.parts()]
        raw = File(name, sum(memoryview(part).nbytes for part in parts), digest(parts, layout.hashes))
        zipped = None
        if layout.compression is not None:
            whole = b"".join(parts)
            parts = []  # not three shards in memory
            spool.close()
            parts = [compress(whole, layout.compression)]
            ending = parse_compression(layout.compression)[0]
            size = memoryview(parts[0]).nbytes
            zipped = File(f"{name}.{ending}", size, digest(parts, layout.hashes))
        shard = Shard(layout, len(sizes), raw, zipped)
        self._storage.put(shard.stored.basename, parts, self._staging)
        self._stored.append(shard)
        spool.close()

    def finish(self) -> list[Shard]:
        """Store the last shard, wait for all, and give their entries for the index, in order."""
        if self._samples:
            self._finish_shard()
        self._wait()
        self._pool.shutdown()
        return self._stored

    def abort(self) -> None:
        """Stop, and delete the shards that were stored; never a file that another writer put where one should go."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._samples_data.close()
        for shard in self._stored:
            with contextlib.suppress(OSError):  # the error that made us stop is the one to see
                self._storage.delete(shard.stored.basename)


class _Spool:
    """A shard's samples while it fills: in memory, beyond a limit in a temporary file."""

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._bytes = 0
        self._file: Any = None

    def append(self, data: memoryview) -> None:
        self._parts.append(data)
        self._bytes += data.nbytes
        if self._bytes > _MEMORY_A_SHARD:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            self._file.writelines(self._parts)
            self._parts, self._bytes = [], 0

    def parts(self) -> list[Buffer]:
        if self._file is None:
            return self._parts
        self._file.flush()
        return [mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ), *self._parts]

    def close(self) -> None:
        self._parts = []
        if self._file is not None:
            self._file.close()


# What mosaicml-streaming's writer has for uploads and progress: nothing here needs it.
UNNEEDED = {"progress_bar", "max_workers", "retry"}


def places_of(out: Any, expected: str) -> tuple[str, str]:
    """Give the local and the remote place that `out` names, a folder or (local, remote); one may be empty.

    Raises:
        ValueError: it is neither; the message begins with `expected`.
    """
    pair = out if isinstance(out, tuple | list) and len(out) == 2 else (out, None)
    if not any(pair) or not all(isinstance(place, str | PathLike | None) for place in pair):
        raise ValueError(f"{expected}, the folder of the data set or (local, remote), found {out!r}")
    local, remote = (fspath(place or "") for place in pair)
    return local, remote


class MDSWriter:
    """Write samples as an MDS data set.

    A context manager: the data set appears, whole, when the body has ended, and not at all if it raised. A folder
    takes one writer at a time: of two at once, one fails, and leaves the other's files alone.

    Args:
        out: the data set's folder, which must be new or empty. Of a pair (local, remote), as mosaicml-streaming has
            them, the remote one counts where it is not empty: shards go there, and none stays in the local one.
        columns: the encoding of each column, by name.
        compression: None, or `br`, `bz2`, `gz`, `lz4`, `snappy` or `zstd`, with `:LEVEL` where it has levels.
        hashes: names of hashes to keep of each file, such as `["xxh64"]`.
        size_limit: the largest size of a shard before compression, in bytes or as text ("64mb"); a sample that is
            larger has a shard of its own. None: one shard.
        exist_ok: replace the data set that is in the folder, if any. It stays as it is until the new one stands; then
            the files that its index names are deleted.
        storage_options: of the folder's store, by name, instead of what the environment says: `endpoint`, `profile`, …
        keep_local: accepted for mosaicml-streaming's callers, as far as it is False.
        **kwargs: likewise `progress_bar`, `max_workers` and `retry`, which nothing here needs.

    Raises:
        TypeError: unknown arguments.
        ValueError: all wrong options, in one error.
        FileExistsError: the folder is not empty, or (at the end, or with a shard) another writer is at work in it.

    Example:
        >>> with MDSWriter(out="/data/reviews", columns={"text": "str", "stars": "int32"}) as writer:
        ...     writer.write({"text": "good", "stars": 5})
    """

    def __init__(
        self,
        *,
        out: str | PathLike[str] | tuple[str, str],
        columns: dict[str, str],
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        exist_ok: bool = False,
        storage_options: dict[str, str] | None = None,
        keep_local: bool = False,
        **kwargs: Any,
    ):
        if unknown := sorted(kwargs.keys() - UNNEEDED):
            raise TypeError(f"MDSWriter: unknown arguments {unknown}")
        local, remote = places_of(out, "MDSWriter: expected out")
        layout, mistakes = check_options(columns, compression, hashes, size_limit)
        if keep_local and remote:
            mistakes.append(f"keep_local: nothing is kept in {local!r}; write to that folder, and copy it")
            layout = None
        if layout is None:
            raise ValueError("MDSWriter: " + "; ".join(mistakes))
        self._layout = layout
        self._storage = open_storage(remote or local, storage_options)
        names = self._storage.list()
        if names and not exist_ok:
            raise FileExistsError(
                f"{self._storage.root} is not empty: it holds {names[0]}; choose a new folder, or replace the data "
                "set in it with exist_ok=True"
            )
        self._replaced = self._storage.read(INDEX)
        # Names behind those that are there, for what is replaced to be whole until the end.
        first = 1 + max((int(found[1]) for found in map(_NUMBERED.match, names) if found), default=-1)
        self._encodings = {name: get_encoding(columns[name]) for name in layout.column_names}
        self._shards = ShardWriter(self._storage, layout, lambda n: f"shard.{first + n:05d}.mds", empty_first=True)
        variable = sum(size is None for size in layout.column_sizes)
        self._pack_sizes = struct.Struct(f"<{variable}I").pack
        self._rows = 0
        self._pending: list[bytes] = []
        self._pending_sizes: list[int] = []
        self._pending_bytes = 0
        self._ended = False

    def write(self, sample: dict[str, Any]) -> None:
        """Add one sample, a value for each column.

        Raises:
            TypeError: not a dict.
            ValueError: other keys than the columns.
            EncodeError: a value that its encoding can't hold, naming column, row and value.
        """
        self._check_open()
        try:
            keys = sample.keys()
        except AttributeError:
            raise TypeError(
                f"row {self._rows}: expected a dict of the columns {list(self._encodings)}, found {describe(sample)}"
            ) from None
        if keys != self._encodings.keys():
            raise ValueError(
                f"row {self._rows}: expected the columns {list(self._encodings)}, found {sorted(map(str, sample))}"
            )
        values, sizes = [], []
        for name, encoding in self._encodings.items():
            try:
                value = encoding.encode(sample[name])
            except EncodeError as error:
                raise EncodeError(f"column {name!r}, row {self._rows}: {error.reason}", self._rows) from None
            values.append(value)
            if encoding.size is None:
                sizes.append(len(value))
        try:
            data = b"".join([self._pack_sizes(*sizes), *values])
        except struct.error:
            raise EncodeError(
                f"row {self._rows}: values of {sizes} bytes: a shard holds at most {MAX_SHARD_BYTES}", self._rows
            ) from None
        self._pending.append(data)
        self._pending_sizes.append(len(data))
        self._pending_bytes += len(data)
        self._rows += 1
        if len(self._pending) >= _ROWS_AT_ONCE or self._pending_bytes >= 1 << 22:
            self._append_pending()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Add a record batch, whole columns at a time; its columns are the writer's, in any order.

        Its memory may be used again afterwards.

        Raises:
            TypeError: not a record batch.
            ValueError: other columns.
            EncodeError: a null or another value that an encoding can't hold, naming column, row and value.
        """
        self._check_open()
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(
                f"expected a pyarrow.RecordBatch, found {type(batch).__name__}; of a pyarrow.Table, write each of its "
                "to_batches()"
            )
        self._append_pending()
        try:
            encoded = encode_batch(batch, self._layout)
        except EncodeError as error:
            row = self._rows + error.row
            raise EncodeError(f"row {row}: {error.reason}", row) from None
        self._shards.append(encoded.data, encoded.sizes, copy=encoded.shared)
        self._rows += batch.num_rows

    def _append_pending(self) -> None:
        if self._pending:
            self._shards.append(b"".join(self._pending), np.array(self._pending_sizes, np.int64))
            self._pending, self._pending_sizes, self._pending_bytes = [], [], 0

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError(f"the writer of {self._storage.root} has ended; open another one")

    def finish(self) -> None:
        """Store what is left and publish the index. The end of a `with` block does it.

        Raises:
            FileExistsError: another writer has published an index since this one was opened.
            OSError: a shard or the index could not be stored. Nothing is left then.
        """
        self._check_open()
        try:
            self._append_pending()
            shards = self._shards.finish()
            index = Index(tuple(shards), {} if shards else {"columns": self._layout.columns})
            if not self._storage.replace(INDEX, index.to_bytes(), expected=self._replaced):
                raise FileExistsError(
                    f"{self._storage.describe(INDEX)} is not what it was when this writer began: another one has "
                    "published a data set here, which stays as it is; write this one to another folder"
                )
        except BaseException:
            self.abort()
            raise
        self._ended = True
        log.info("%s: wrote %d samples in %d shards", self._storage.root, sum(s.samples for s in shards), len(shards))
        if self._replaced is not None:
            with contextlib.suppress(FormatError):  # a broken index names nothing that could be deleted
                before = parse_index(self._replaced, self._storage.describe(INDEX))
                delete_replaced(self._storage, before, index)

    def abort(self) -> None:
        """Delete what was written; no index appears, and one that was to be replaced stays.

        After the end it does nothing: what is published stays.
        """
        if not self._ended:
            self._ended = True
            self._shards.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if kind is None:
            self.finish()
        else:
            self.abort()
