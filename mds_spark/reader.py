"""A read: the schema, the partitions, and the batches of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from mds_core.columnar import decode_columns
from mds_core.encodings import get_encoding
from mds_core.errors import FormatError
from mds_core.index import Index, Shard, read_index
from mds_core.reader import open_shard
from mds_core.shard import ShardReader
from mds_core.storage import Storage, open_storage
from mds_spark.options import ReadOptions
from mds_spark.types import arrow_schema, kept_schema, spark_column, spark_type

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
    storage = open_storage(options.path)
    index = read_index(storage)
    schema = kept_schema(index, options.path)
    if schema is not None:
        return schema
    arrays = _array_types(index, storage, options.validate_hash)
    return StructType([StructField(name, spark_type(e, arrays.get(name)), False) for name, e in index.columns.items()])


def _array_types(index: Index, storage: Storage, validate_hash: str | None) -> dict[str, pa.DataType]:
    """Give the Arrow type of each ndarray column whose values in the first shard share dtype and dimensions."""
    names = [name for name, encoding in index.columns.items() if encoding.startswith("ndarray")]
    entry = next((shard for shard in index.shards if shard.samples), None)
    if entry is None or not names:
        return {}
    shard = open_shard(storage, entry, validate_hash)
    types = {}
    for name in names:
        with contextlib.suppress(FormatError):
            types[name] = decode_columns(shard, 0, len(shard), [name])[name].type
    return types


class MDSDataSourceReader(DataSourceReader):
    """Reads a data set as Arrow batches, the columns of the schema only.

    Raises:
        FileNotFoundError, FormatError: there is no data set, or it is broken.
        ValueError: the schema asks for columns that the data set does not have.
    """

    def __init__(self, options: ReadOptions, schema: StructType):
        self.options = options
        self.schema = schema
        index = read_index(open_storage(options.path))
        missing = [name for name in schema.names if name not in index.columns]
        if missing:
            raise ValueError(f"no column {', '.join(missing)} in {options.path}; it has {', '.join(index.columns)}")
        self._shards = [shard for shard in index.shards if shard.samples]
        kept = kept_schema(index, options.path) or StructType()
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
        storage = open_storage(self.options.path)
        for entry in partition.shards:
            shard = open_shard(storage, entry, self.options.validate_hash)
            step = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * len(shard) // len(shard.data)))
            for first in range(0, len(shard), step):
                yield self._batch(shard, first, min(first + step, len(shard)))

    def _batch(self, shard: ShardReader, first: int, last: int) -> pa.RecordBatch:
        target = arrow_schema(self.schema)
        as_stored = [field.name for field in self.schema.fields if isinstance(field.dataType, BinaryType)]
        try:
            stored = decode_columns(shard, first, last, self.schema.names, as_stored)
        except FormatError as error:
            raise FormatError(
                f'{error}; to read such a column as its stored bytes, name it binary in spark.read.schema("...")'
            ) from None
        columns = []
        for field, to in zip(self.schema.fields, target, strict=True):
            encoding = get_encoding(shard.layout.columns[field.name])
            try:
                was_text = field.name in self._texts
                columns.append(
                    spark_column(stored[field.name], field.dataType, encoding, to.type, field.nullable, was_text)
                )
            except (pa.ArrowException, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{shard.where}: column {field.name!r}, encoding {encoding.name}, can't be read as "
                    f"{field.dataType.simpleString()}: {error}"
                ) from None
        if not columns:  # from no array, Arrow would make no rows
            return pa.RecordBatch.from_arrays([pa.nulls(last - first)], ["row"]).select([])
        return pa.RecordBatch.from_arrays(columns, schema=target)
