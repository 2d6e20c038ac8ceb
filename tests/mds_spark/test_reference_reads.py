"""The reference library reads what Spark wrote: every type of the table, the same rows in the same order."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.mds_spark.rows import index, named, plain
from tests.reference import run_reference

ROWS = 60
EPOCH = dt.datetime(1970, 1, 1)
MICROSECOND = dt.timedelta(microseconds=1)


def days(value: dt.date) -> int:
    return value.toordinal() - EPOCH.toordinal()


def micros(value: dt.datetime) -> int:
    return (value - EPOCH) // MICROSECOND


def array(dtype: str) -> Callable[[Any], Any]:
    return lambda values: np.array(values, dtype)


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


@dataclass(frozen=True)
class Column:
    """A type of the table: values, and what the reference must give for each."""

    spark: str | T.DataType
    encoding: str
    values: list[Any]
    stored: Callable[[Any], Any]


DATES = [dt.date.min, dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date.max]
TIMES = [dt.datetime(1, 1, 3), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(9999, 12, 29, 1, 2, 3, 4)]
INTERVALS = [dt.timedelta(days=-3, microseconds=1), dt.timedelta(0), dt.timedelta(days=106_751_990)]
DECIMALS = [Decimal("0.00000001"), Decimal("-1.50000000"), Decimal("9" * 30 + "." + "9" * 8)]
TEXTS = ["", "\0", "naïve 🙂 𝄞", 'a"b\\c', "x" * 200]
FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5]

COLUMNS = {
    "byte": Column("byte", "int8", [-128, 0, 127], np.int8),
    "short": Column("short", "int16", [-(2**15), 0, 2**15 - 1], np.int16),
    "int": Column("int", "int32", [-(2**31), 0, 2**31 - 1], np.int32),
    "long": Column("long", "int64", [-(2**63), 0, 2**63 - 1], np.int64),
    "float": Column("float", "float32", [*FLOATS, 2.0**-149], np.float32),
    "double": Column("double", "float64", [*FLOATS, 5e-324, 1.7976931348623157e308], np.float64),
    "boolean": Column("boolean", "uint8", [True, False], np.uint8),
    "string": Column("string", "str", TEXTS, str),
    "char": Column("char(3)", "str", ["abc", "d  "], str),
    "varchar": Column("varchar(3)", "str", ["abc", "d", ""], str),
    "binary": Column("binary", "bytes", [b"", b"\0\xff", bytes(range(256))], bytes),
    "decimal": Column("decimal(38,8)", "str_decimal", DECIMALS, Decimal),
    "date": Column("date", "int32", DATES, lambda value: np.int32(days(value))),
    "timestamp": Column("timestamp", "int64", TIMES, lambda value: np.int64(micros(value))),
    "timestamp_ntz": Column("timestamp_ntz", "int64", TIMES, lambda value: np.int64(micros(value))),
    "day_time": Column("interval day to second", "int64", INTERVALS, lambda value: np.int64(value // MICROSECOND)),
    "bytes_array": Column("array<byte>", "ndarray:int8", [[-128, 127], [3]], array("int8")),
    "shorts": Column("array<short>", "ndarray:int16", [[-(2**15)], [1, 2]], array("int16")),
    "ints": Column("array<int>", "ndarray:int32", [[-(2**31), 7], list(range(300))], array("int32")),
    "longs": Column("array<long>", "ndarray:int64", [[2**63 - 1], [0, -1]], array("int64")),
    "floats": Column("array<float>", "ndarray:float32", [FLOATS, [0.5]], array("float32")),
    "doubles": Column("array<double>", "ndarray:float64", [FLOATS, [], [0.1]], array("float64")),
    "booleans": Column("array<boolean>", "ndarray:uint8", [[True, False], [True]], array("uint8")),
    "vector": Column(
        VectorUDT(),
        "ndarray:float64",
        [Vectors.dense(1.0, -0.0), Vectors.sparse(4, {2: 3.0}), Vectors.dense([])],
        lambda value: value.toArray(),
    ),
    "struct": Column(
        "struct<a: long, b: binary, d: date>",
        "json",
        [(1, b"\0\xff", DATES[0]), (None, None, None), None],
        lambda v: v and {"a": v[0], "b": v[1] and text(v[1]), "d": v[2] and days(v[2])},
    ),
    "map": Column(
        "map<string, timestamp>",
        "json",
        [{"k": TIMES[0], "": None}, {}],
        lambda v: {key: at and micros(at) for key, at in v.items()},
    ),
    "map_of_ints": Column(
        "map<int, decimal(4,2)>",
        "json",
        [{-1: Decimal("0.10"), 2: None}, {}],
        lambda v: [[key, number and str(number)] for key, number in v.items()],
    ),
    "strings": Column("array<string>", "json", [TEXTS, [], [None]], list),
    "matrix": Column("array<array<double>>", "json", [[[0.5, -1.0], []], []], list),
    "structs": Column(
        "array<struct<x: map<string, array<binary>>>>",
        "json",
        [[({"k": [b"\1", None]},), None], []],
        lambda v: [s and {"x": {k: [b and text(b) for b in bs] for k, bs in s[0].items()}} for s in v],
    ),
    "variant": Column("string", "json", ['{"a":[1,2.5,null,"x"]}', "null", '"text"', "12"], json.loads),
}
if hasattr(T, "TimeType"):
    COLUMNS["time"] = Column(
        "time(6)",
        "int64",
        [dt.time.min, dt.time(23, 59, 59, 999999)],
        lambda v: np.int64(((dt.datetime.combine(EPOCH, v) - EPOCH) // MICROSECOND) * 1000),
    )

READ = """
import pickle, sys
from streaming import StreamingDataset

found = {}
for argument in sys.argv[2:]:
    path, _, validate_hash = argument.partition("?")
    dataset = StreamingDataset(local=path, batch_size=1, shuffle=False, validate_hash=validate_hash or None)
    found[path] = [dataset[i] for i in range(len(dataset))], [s["number"] for s in dataset]
with open(sys.argv[1], "wb") as file:
    pickle.dump(found, file)
"""


def value(column: Column, row: int) -> Any:
    return column.values[row % len(column.values)]


def table(spark: SparkSession) -> DataFrame:
    types = [T.StructField("number", T.LongType())]
    for name, column in COLUMNS.items():
        kind = column.spark if isinstance(column.spark, T.DataType) else T._parse_datatype_string(column.spark)
        types.append(T.StructField(name, T.StringType() if isinstance(kind, T.CharType | T.VarcharType) else kind))
    rows = [(row, *(value(column, row) for column in COLUMNS.values())) for row in range(ROWS)]
    df = spark.createDataFrame(rows, T.StructType(types)).repartitionByRange(3, "number").sortWithinPartitions("number")
    return df.withColumn("variant", F.parse_json("variant"))


@pytest.fixture(scope="module")
def read_back(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the reference reads from a data set of each compression, with and without hashes."""
    folder = tmp_path_factory.mktemp("reference")
    df = table(spark).cache()
    arguments = []
    for compression in ("none", "zstd", "br", "gz", "bz2", "snappy"):
        for hashes in ("", "sha1,xxh64"):
            name = f"{compression}-{'hashes' if hashes else 'plain'}"
            written = folder / "written" / name
            writer = df.write.format("mds").option("compression", compression).option("hashes", hashes)
            writer.option("size_limit", "12kb").save(str(written))
            assert len(named(written)) > 6, "several shards of each partition"
            # It unpacks shards beside the compressed ones, so that it gets a copy.
            shutil.copytree(written, folder / name)
            arguments.append(f"{folder / name}?{'xxh64' if hashes else ''}")
    df.unpersist()
    run_reference(READ, str(folder / "found.pkl"), *arguments)
    found = pickle.loads((folder / "found.pkl").read_bytes())
    return {Path(path).name: samples for path, samples in found.items()} | {"folder": folder / "written"}


@pytest.mark.parametrize("hashes", ["plain", "hashes"])
@pytest.mark.parametrize("compression", ["none", "zstd", "br", "gz", "bz2", "snappy"])
def test_the_reference_reads_every_type_in_the_dataframes_order(
    read_back: dict[str, Any], compression: str, hashes: str
) -> None:
    samples, iterated = read_back[f"{compression}-{hashes}"]
    assert [sample["number"] for sample in samples] == list(range(ROWS))
    assert sorted(iterated) == list(range(ROWS))
    for row, sample in enumerate(samples):
        assert sample.keys() == {"number", *COLUMNS}
        for name, column in COLUMNS.items():
            assert_same(sample[name], column.stored(value(column, row)), f"row {row}, column {name}")


def test_the_index_has_the_tables_encodings(read_back: dict[str, Any]) -> None:
    for shard in index(read_back["folder"] / "none-plain")["shards"]:
        found = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
        assert found == {"number": "int64", **{name: column.encoding for name, column in COLUMNS.items()}}


def assert_same(found: Any, expected: Any, where: str) -> None:
    """The same type, and the same value bit by bit."""
    assert type(found) is type(expected), where
    if isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        assert found.tobytes() == expected.tobytes() or np.isnan(found).any(), where
        np.testing.assert_array_equal(found, expected, where)
    else:
        assert plain(found) == plain(expected), where
