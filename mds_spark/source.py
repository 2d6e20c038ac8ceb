"""The data source: what Spark calls."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from mds_spark.options import read_options, write_options


class MDSDataSource(DataSource):
    """`format("mds")`: reads and writes Mosaic Data Shard data sets.

    Spark finds it by itself where this package is installed; `mds_spark.register(spark)` also brings the save modes
    `errorifexists`, the default of `df.write`, and `ignore`.
    """

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "mds"

    def schema(self) -> StructType:
        """Give the schema of the data set at the path."""
        from mds_spark.reader import infer_schema

        return infer_schema(read_options(dict(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of the columns in a schema."""
        from mds_spark.reader import MDSDataSourceReader

        return MDSDataSourceReader(read_options(dict(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer, when all that can be checked before a row moves is right."""
        from mds_spark.writer import MDSDataSourceWriter

        return MDSDataSourceWriter(write_options(dict(self.options), schema, overwrite), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make a reader that says that there are no streaming reads."""
        return _NoStreams()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refuse: there are no streaming writes.

        Raises:
            ValueError: always; the message says what to do.
        """
        raise ValueError(
            "can't write a stream as MDS; use writeStream.foreachBatch(lambda df, i: "
            'df.write.format("mds").mode("append").save(path))'
        )


class _NoStreams(DataSourceStreamReader):
    """Raises when the stream starts: PySpark hides what `streamReader` itself raises behind an error of its own."""

    def initialOffset(self) -> NoReturn:
        raise ValueError("can't read MDS as a stream; use spark.read, again when there is more")

    def latestOffset(self, *args: Any) -> NoReturn:
        self.initialOffset()

    def read(self, partition: InputPartition) -> NoReturn:
        self.initialOffset()
