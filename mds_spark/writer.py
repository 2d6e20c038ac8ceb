"""A write: what each task does, and what the driver does when all have ended."""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import DataType, StructType

from mds_core.columnar import encode_batch, null_rows
from mds_core.encodings import Encoding, get_encoding
from mds_core.errors import EncodeError, FormatError
from mds_core.index import (
    INDEX,
    Index,
    Layout,
    Shard,
    delete_replaced,
    loosened,
    parse_index,
    publish_index,
    read_index,
    spark_types,
)
from mds_core.storage import Storage, open_storage
from mds_core.writer import ShardWriter
from mds_spark.options import WriteOptions
from mds_spark.types import kept_schema, needs_schema, stored_column

log = logging.getLogger("mds_spark")

# Batches are encoded in slices of about this many bytes: what is beside the shards in memory stays small.
_BYTES_AT_ONCE = 1 << 23


@dataclass
class TaskShards(WriterCommitMessage):
    """What a task wrote: its shards, in order, and how many rows it left out for nulls in each column."""

    shards: list[Shard] = field(default_factory=list)
    dropped_rows: int = 0
    nulls: dict[str, int] = field(default_factory=dict)


class MDSDataSourceWriter(DataSourceArrowWriter):
    """Writes a DataFrame as MDS: Spark runs `write` in each task, and `commit` or `abort` on the driver.

    Raises:
        ValueError, FileExistsError, FormatError: the data set that is there does not allow this write.
    """

    def __init__(self, options: WriteOptions, schema: StructType):
        self.options = options
        self.schema = schema
        self.write_id = uuid.uuid4().hex[:16]
        self.staging = f".mds-{self.write_id}"
        storage = open_storage(options.path, options.storage)
        existing = read_index(storage) if storage.read(INDEX) is not None else None
        self.ignored = existing is not None and options.save_mode == "ignore"
        if not self.ignored:
            self._merged(existing, [])
            storage.make_staging(self.staging)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskShards:
        """Write a partition's batches as shards."""
        context = TaskContext.get()
        assert context is not None
        prefix = f"shard.{self.write_id}.{context.partitionId():05d}.{context.taskAttemptId()}"
        message = TaskShards()
        if self.ignored:
            for _ in iterator:
                pass
            return message
        storage = open_storage(self.options.path, self.options.storage)
        shards = ShardWriter(storage, self.options.layout, (prefix + ".{:05d}.mds").format, self.staging)
        columns = _columns(self.schema, self.options.layout)
        nulls: Counter[str] = Counter()
        row = 0
        try:
            for batch in iterator:
                for part in _slices(batch):
                    stored, kept = self._without_nulls(part, columns, nulls, row)
                    message.dropped_rows += part.num_rows - stored.num_rows
                    try:
                        encoded = encode_batch(stored, self.options.layout)
                    except EncodeError as error:
                        at = row + (error.row if kept is None else int(np.flatnonzero(kept)[error.row]))
                        raise ValueError(f"row {at} of partition {context.partitionId()}: {error.reason}") from None
                    shards.append(encoded.data, encoded.sizes)
                    row += part.num_rows
            message.shards = shards.finish()
        except BaseException:
            shards.abort()
            raise
        message.nulls = dict(nulls)
        return message

    def _without_nulls(
        self, batch: pa.RecordBatch, columns: list[_Column], nulls: Counter[str], row: int
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_] | None]:
        """Give the batch as it is to be encoded, and count the nulls of each column.

        Returns:
            The batch without rows that hold a null, and which rows are left: None for all.
        """
        arrays = []
        wrong: NDArray[np.bool_] | None = None
        found: Counter[str] = Counter()
        for column in columns:
            array = stored_column(batch.column(column.position), column.kind, column.encoding)
            arrays.append(array)
            rows = null_rows(array, column.encoding)
            if rows is not None:
                wrong = rows if wrong is None else wrong | rows
                found[column.name] = int(rows.sum())
        whole = pa.RecordBatch.from_arrays(arrays, [column.name for column in columns])
        if wrong is None:
            return whole, None
        if not self.options.drop_nulls:
            held = ", ".join(f"column {name!r} holds {count}" for name, count in found.items())
            raise ValueError(
                f"a null has no place in MDS: {held} (in {batch.num_rows} rows from row {row} of the partition); fill "
                "them, or write with option nulls=drop to leave such rows out"
            )
        nulls.update(found)
        return whole.filter(pa.array(~wrong)), ~wrong

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the index over all tasks' shards, in partition order; then clean up."""
        if self.ignored:
            return
        storage = open_storage(self.options.path, self.options.storage)
        tasks = [message for message in messages if isinstance(message, TaskShards)]
        if len(tasks) != len(messages):
            raise ValueError(f"{len(messages) - len(tasks)} of {len(messages)} tasks did not report; write again")
        shards = [shard for task in tasks for shard in task.shards]
        _check_stored(storage, shards)
        try:
            before, after = publish_index(storage, lambda existing: self._merged(existing, shards))
        except FileExistsError:  # another write was faster
            if self.options.save_mode != "ignore":
                raise
            self._clean(storage, set())
            return
        named = {shard.stored.basename for shard in after.shards}
        if before is not None and self.options.save_mode == "overwrite":
            delete_replaced(storage, before, after)
            _delete_dangling(storage, {shard.stored.basename for shard in before.shards} - named)
        self._clean(storage, named)
        samples = sum(shard.samples for shard in shards)
        log.info("%s: wrote %d rows in %d shards; there are %d", storage.root, samples, len(shards), len(after.shards))
        dropped = sum(task.dropped_rows for task in tasks)
        if dropped:
            nulls: Counter[str] = Counter()
            for task in tasks:
                nulls.update(task.nulls)
            log.warning("%s: left out %d rows with nulls (by column: %s)", self.options.path, dropped, dict(nulls))

    def _merged(self, existing: Index | None, shards: list[Shard]) -> Index:
        """Give the index after this write, or say why there can be none."""
        new_schema = json.loads(self.schema.json())
        own: dict[str, Any] = {} if self.options.foreign_schema else {"schema": new_schema}
        columns = self.options.layout.columns
        if existing is None or self.options.save_mode == "overwrite":
            if not shards:
                own["columns"] = columns
            return Index(tuple(shards), own)
        if self.options.save_mode in ("errorifexists", "ignore"):
            raise FileExistsError(
                f"{self.options.path}: there is an MDS data set already; choose another path or the mode append, "
                "overwrite or ignore"
            )
        if existing.columns != columns:
            raise ValueError(_differ(self.options.path, "", existing.columns, columns))
        if kept_schema(existing, self.options.path) is None:
            self._check_meaning(columns)
            return Index(existing.shards + tuple(shards), existing.own)
        schema = existing.own["schema"]
        kept, new = spark_types(schema), spark_types(new_schema)
        if kept != new:
            raise ValueError(_differ(self.options.path, "of Spark's type ", kept, new))
        return Index(existing.shards + tuple(shards), {**existing.own, "schema": loosened(schema, new_schema)})

    def _check_meaning(self, columns: dict[str, str]) -> None:
        """Refuse columns that a data set without Spark's types could not tell from those that it has."""
        for column in self.schema.fields:
            kind, encoding = column.dataType, columns[column.name]
            if needs_schema(kind, encoding):
                raise ValueError(
                    f"can't append to {self.options.path}: it has none of Spark's types, so column {column.name!r}, "
                    f"{kind.simpleString()}, would be read as its encoding says, {encoding}; cast it to what it is "
                    "stored as (days, microseconds, 0 or 1, text), or write to another path"
                )

    def _clean(self, storage: Storage, named: set[str]) -> None:
        """Delete what this write left behind and no index names: files of failed and speculative attempts."""
        storage.remove_staging(self.staging)  # first: no task of this write can add a file afterwards
        for name in storage.list():
            if name.startswith(f"shard.{self.write_id}.") and name not in named:
                storage.delete(name)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what this write left behind; sibling tasks that still run fail at their next shard."""
        if not self.ignored:
            with contextlib.suppress(OSError, FormatError):
                storage = open_storage(self.options.path, self.options.storage)
                # The commit may have published before it failed: then its shards stay.
                data = storage.read(INDEX)
                named = {s.stored.basename for s in read_index(storage).shards} if data is not None else set()
                self._clean(storage, named)


@dataclass(frozen=True)
class _Column:
    """What a task needs to know of a column, looked up once."""

    name: str
    position: int
    kind: DataType
    encoding: Encoding


def _columns(schema: StructType, layout: Layout) -> list[_Column]:
    positions = {name: position for position, name in enumerate(schema.names)}
    return [
        _Column(name, positions[name], schema.fields[positions[name]].dataType, get_encoding(encoding))
        for name, encoding in layout.columns.items()
    ]


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    step = max(1, batch.num_rows * _BYTES_AT_ONCE // max(1, batch.nbytes))
    for first in range(0, batch.num_rows, step):
        yield batch.slice(first, step)


def _delete_dangling(storage: Storage, deleted: set[str]) -> None:
    """Delete the indexes of merged data sets whose shards are all deleted: merge_index would name them again."""
    for folder in {str(folder) for name in deleted for folder in PurePosixPath(name).parents} - {"."}:
        name = f"{folder}/{INDEX}"
        data = storage.read(name)
        if data is None:
            continue
        with contextlib.suppress(FormatError):  # what is broken may be anything
            shards = parse_index(data, storage.describe(name)).shards
            if shards and all(f"{folder}/{shard.stored.basename}" in deleted for shard in shards):
                storage.delete(name)


def _check_stored(storage: Storage, shards: list[Shard]) -> None:
    for shard in shards:
        info = storage.info(shard.stored.basename)
        found = None if info is None else info.size
        if found is None:
            raise FileNotFoundError(
                f"a task wrote {shard.stored.basename}, but the driver does not see it in {storage.root}: the path "
                "must be shared by all machines (a mounted volume, a network share), not a disk of each"
            )
        if found != shard.stored.bytes:
            raise OSError(
                f"{storage.describe(shard.stored.basename)}: a task wrote {shard.stored.bytes} bytes, the driver sees "
                f"{found}; the file system lost data, write again"
            )


def _differ(path: str, what: str, existing: dict[str, Any], new: dict[str, Any]) -> str:
    words = [f"column {n!r} is missing in the DataFrame" for n in existing if n not in new]
    words += [f"column {n!r} is not in the data set" for n in new if n not in existing]
    words += [
        f"column {n!r} is {what}{existing[n]} in the data set and {new[n]} in the DataFrame"
        for n in existing
        if n in new and existing[n] != new[n]
    ]
    return f"can't append to {path}: {'; '.join(words)}"
