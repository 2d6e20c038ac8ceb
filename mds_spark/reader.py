"""A read: the schema, the partitions, and the batches of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from mds_core.columnar import decode_columns
from mds_core.encodings import get_encoding
from mds_core.errors import FormatError
from mds_core.index import Index, Shard, read_index_version
from mds_core.reader import open_shard
from mds_core.shard import ShardReader
from mds_core.storage import Storage, open_storage
from mds_core.storage.info import Version
from mds_spark.options import ReadOptions
from mds_spark.types import arrow_schema, kept_schema, means_the_same, spark_column, spark_type

# Small shards share a partition, which costs Spark 28 ms, up to this size.
_PARTITION_BYTES = 1 << 26
# Larger batches were not faster; larger rows make smaller ones.
_ROWS_AT_ONCE = 100_000
_BYTES_AT_ONCE = 1 << 25


@dataclass
class Shards(InputPartition):
    """The shards of a partition, in order."""

    shards: tuple[Shard, ...]


def infer_schema(options: ReadOptions) -> StructType:
    """Give the schema of a data set: Spark's own where Spark wrote it, else from the encodings.

    Raises:
        FileNotFoundError: there is no data set.
        FormatError: its index is broken, or its schema is not that of its columns.
    """
    storage = open_storage(options.path, options.storage)
    index, _, version = read_index_version(storage)
    schema = kept_schema(index, options.path)
    if schema is not None:
        return schema
    arrays = _array_types(index, storage, version, options.validate_hash)
    return StructType([StructField(name, spark_type(e, arrays.get(name)), False) for name, e in index.columns.items()])


def _stored_names(wanted: list[str], columns: list[str], path: str) -> dict[str, str]:
    """Give the column of each name: the one of just this name, else in upper or lower case, as in Spark's queries."""
    found = {
        name: [c for c in columns if c == name] or [c for c in columns if c.lower() == name.lower()] for name in wanted
    }
    missing = [name for name, names in found.items() if len(names) != 1]
    if missing:
        raise ValueError(f"no column {', '.join(missing)} in {path}; it has {', '.join(columns)}")
    return {name: names[0] for name, names in found.items()}


def _check_type(kept: StructType, name: str, wanted: DataType, path: str) -> None:
    """Refuse to give a column another meaning than it was written with; as binary, it is what is stored."""
    if name not in kept.names or isinstance(wanted, BinaryType) or means_the_same(kept[name].dataType, wanted):
        return
    kind = kept[name].dataType.simpleString()
    raise ValueError(
        f"column {name!r} in {path} was written as {kind}, and can't be read as {wanted.simpleString()}; name it "
        f"{kind} in the schema, and cast it then"
    )


def _array_types(index: Index, storage: Storage, version: Version, validate_hash: str | None) -> dict[str, pa.DataType]:
    """Give the Arrow type of each ndarray column whose values in the first shard share dtype and dimensions."""
    names = [name for name, encoding in index.columns.items() if encoding.startswith("ndarray")]
    entry = next((shard for shard in index.shards if shard.samples), None)
    if entry is None or not names:
        return {}
    shard = open_shard(storage, version, entry, validate_hash)
    types = {}
    for name in names:
        with contextlib.suppress(FormatError):
            types[name] = decode_columns(shard, 0, len(shard), [name])[name].type
    return types


class MDSDataSourceReader(DataSourceReader):
    """Reads a data set as Arrow batches, the columns of the schema only.

    Raises:
        FileNotFoundError, FormatError: there is no data set, or it is broken.
        ValueError: the schema asks for columns that the data set does not have, or for other types than Spark wrote.
    """

    def __init__(self, options: ReadOptions, schema: StructType):
        self.options = options
        self.schema = schema
        index, _, self._version = read_index_version(open_storage(options.path, options.storage))
        self._stored = _stored_names(schema.names, list(index.columns), options.path)
        self._shards = [shard for shard in index.shards if shard.samples]
        kept = kept_schema(index, options.path) or StructType()
        for field in schema.fields:
            _check_type(kept, self._stored[field.name], field.dataType, options.path)
        self._texts = {field.name for field in kept.fields if isinstance(field.dataType, StringType)}

    def partitions(self) -> Sequence[InputPartition]:
        """Group neighbouring shards, so that each partition is worth a task."""
        groups: list[list[Shard]] = [[]]
        size = 0
        for shard in self._shards:
            if groups[-1] and size + shard.raw_data.bytes > _PARTITION_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(shard)
            size += shard.raw_data.bytes
        self._shards = []  # the partitions have them; the reader goes to every task
        return [Shards(tuple(group)) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the batches of a partition."""
        assert isinstance(partition, Shards)
        storage = open_storage(self.options.path, self.options.storage)
        for entry in partition.shards:
            shard = open_shard(storage, self._version, entry, self.options.validate_hash)
            step = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * len(shard) // len(shard.data)))
            for first in range(0, len(shard), step):
                yield self._batch(shard, first, min(first + step, len(shard)))

    def _batch(self, shard: ShardReader, first: int, last: int) -> pa.RecordBatch:
        target = arrow_schema(self.schema)
        names = [self._stored[name] for name in self.schema.names]
        as_stored = [n for n, f in zip(names, self.schema.fields, strict=True) if isinstance(f.dataType, BinaryType)]
        try:
            stored = decode_columns(shard, first, last, names, as_stored)
        except FormatError as error:
            raise FormatError(
                f'{error}; to read such a column as its stored bytes, name it binary in spark.read.schema("...")'
            ) from None
        columns = []
        for name, field, to in zip(names, self.schema.fields, target, strict=True):
            encoding = get_encoding(shard.layout.columns[name])
            try:
                was_text = name in self._texts
                columns.append(spark_column(stored[name], field.dataType, encoding, to.type, field.nullable, was_text))
            except (pa.ArrowException, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{shard.where}: column {name!r}, encoding {encoding.name}, can't be read as "
                    f"{field.dataType.simpleString()}: {error}"
                ) from None
        if not columns:  # from no array, Arrow would make no rows
            return pa.RecordBatch.from_arrays([pa.nulls(last - first)], ["row"]).select([])
        return pa.RecordBatch.from_arrays(columns, schema=target)
