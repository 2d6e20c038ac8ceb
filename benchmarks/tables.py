"""The four tables that the benchmarks write and read, and what both scripts share.

A row is a pure function of its number: each peer, in whatever process and environment, gets the same rows.
Runs under the reference library's interpreter too, so it imports nothing of ours.
"""

import datetime
import os
import platform
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Table:
    """A table of the benchmarks: its columns, and how many rows are written and read at scale 1."""

    schema: pa.Schema
    ddl: str  # for Spark
    encodings: dict[str, str]  # for the MDS writers
    rows: int
    reference_rows: int  # that the reference writes: half a second's work, and
    reference_long_rows: int  # some seconds' work
    block: int  # rows in a generated batch: some megabytes


NUMBERS = pa.schema([("id", pa.int64()), ("a", pa.float32()), ("b", pa.float64()), ("c", pa.int32())])
TABLES = {
    "numbers": Table(
        NUMBERS,
        "id bigint, a float, b double, c int",
        {"id": "int64", "a": "float32", "b": "float64", "c": "int32"},
        rows=10_000_000,
        reference_rows=20_000,
        reference_long_rows=600_000,
        block=10_000,
    ),
    "text": Table(
        pa.schema([("text", pa.string())]),
        "text string",
        {"text": "str"},
        rows=1_000_000,
        reference_rows=10_000,
        reference_long_rows=300_000,
        block=10_000,
    ),
    "tokens": Table(
        pa.schema([("tokens", pa.list_(pa.int32()))]),
        "tokens array<int>",
        {"tokens": "ndarray:int32"},
        rows=60_000,
        reference_rows=1_000,
        reference_long_rows=30_000,
        block=500,
    ),
    "images": Table(
        pa.schema([("image", pa.binary())]),
        "image binary",
        {"image": "bytes"},
        rows=10_000,
        reference_rows=300,
        reference_long_rows=5_000,
        block=100,
    ),
}
TOKENS = 2048


def make_batch(name: str, start: int, stop: int) -> pa.RecordBatch:
    """Return rows start to stop of a table."""
    columns = {"numbers": _numbers, "text": _text, "tokens": _tokens, "images": _images}[name](start, stop)
    schema = TABLES[name].schema
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def make_batches(name: str, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield rows start to stop of a table, block by block."""
    step = TABLES[name].block
    for first in range(start, stop, step):
        yield make_batch(name, first, min(first + step, stop))


def weights(name: str, rows: int) -> np.ndarray:
    """Return a number for each row that a reader can take from the row alone: it shows that it read the row.

    The id of a row of numbers; else the length of its text, tokens or image.
    """
    if name == "numbers":
        return np.arange(rows)
    if name == "tokens":
        return np.full(rows, TOKENS)
    return (_text_sizes if name == "text" else _image_sizes)(0, rows)


def _hash(numbers: np.ndarray) -> np.ndarray:
    """Return 64 random-looking bits for each number (splitmix64's finaliser)."""
    bits = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _numbers(start: int, stop: int) -> list[np.ndarray]:
    ids = np.arange(start, stop)
    bits = _hash(ids)
    unit = (bits >> np.uint64(11)) / 2.0**53
    return [ids, unit.astype(np.float32), unit, (bits >> np.uint64(32)).astype(np.int32)]


def _text_sizes(start: int, stop: int) -> np.ndarray:
    return (550 + _hash(np.arange(start, stop)) % np.uint64(101)).astype(np.int64)


def _text(start: int, stop: int) -> list[list[str]]:
    """Return pieces of one long text of made-up words."""
    starts = (_hash(np.arange(start, stop)) >> np.uint64(32)) % np.uint64(len(_WORDS) - 700)
    pairs = zip(starts.tolist(), _text_sizes(start, stop).tolist(), strict=True)
    return [[_WORDS[first : first + size] for first, size in pairs]]


def _make_words() -> str:
    choice = random.Random(1).choices
    words = ["".join(choice("etaoinshrdlu", k=size)) for size in choice(range(2, 10), k=5000)]
    return " ".join(choice(words, k=20_000))


_WORDS = _make_words()


def _tokens(start: int, stop: int) -> list[pa.Array]:
    values = _hash(np.arange(start * TOKENS, stop * TOKENS)) % np.uint64(50_000)
    offsets = np.arange(0, len(values) + 1, TOKENS, dtype=np.int32)
    return [pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(np.int32)))]


def _image_sizes(start: int, stop: int) -> np.ndarray:
    return (80_000 + _hash(np.arange(start, stop)) % np.uint64(40_001)).astype(np.int64)


def _images(start: int, stop: int) -> list[list[bytes]]:
    """Return random bytes: like an image file, nothing can compress them."""
    sizes = _image_sizes(start, stop).tolist()
    return [[random.Random(row).randbytes(size) for row, size in zip(range(start, stop), sizes, strict=True)]]


def make_spark(memory: str):
    """Return a Spark session on two cores with Spark's default settings."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark's Python workers import this module, and ours where it is not installed.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    settings = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def cached_frame(spark, name: str, rows: int):
    """Return a table as a DataFrame of two partitions, cached and there."""

    def generate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ids in batches:
            if ids.num_rows:
                start = ids.column(0)[0].as_py()
                yield from make_batches(name, start, start + ids.num_rows)

    frame = spark.range(0, rows, 1, 2).mapInArrow(generate, TABLES[name].ddl).cache()
    assert frame.count() == rows
    return frame


def scaled(rows: float, scale: float) -> int:
    """Return a number of rows at a scale: whole hundreds, and never none."""
    return max(100, round(rows * scale / 100) * 100)


def empty_folder(path: Path) -> Path:
    """Return a path with nothing there."""
    shutil.rmtree(path, ignore_errors=True)
    return path


def machine_line(*packages: str) -> str:
    """Return what the figures were taken on."""
    from importlib.metadata import version

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [
        f"{os.cpu_count()} cores ({_processor()})",
        f"{memory:.0f} GiB",
        f"Python {platform.python_version()}",
        *(f"{package} {version(package)}" for package in packages),
        datetime.date.today().isoformat(),
    ]
    return ", ".join(parts)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print rows under a header, in columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, len(row)))]
        print("  ".join(cells).rstrip())
