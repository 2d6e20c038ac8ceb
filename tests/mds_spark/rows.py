"""Helpers of these tests: what a folder holds, and rows that can be compared."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame


def files(folder: Path | str) -> set[str]:
    """All files and folders below a folder, hidden ones, too."""
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*")}


def contents(folder: Path | str) -> dict[str, bytes]:
    """The bytes of all files below a folder, hidden ones, too."""
    return {name: Path(folder, name).read_bytes() for name in files(folder) if Path(folder, name).is_file()}


def index(folder: Path | str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(folder, "index.json").read_text())
    return document


def named(folder: Path | str) -> list[str]:
    """The files that the index names, in order."""
    return [(shard["zip_data"] or shard["raw_data"])["basename"] for shard in index(folder)["shards"]]


def assert_nothing_left_over(folder: Path | str) -> None:
    """The folder holds the index and the shards that it names: no file and no folder more or less."""
    names = named(folder)
    assert len(set(names)) == len(names)
    assert files(folder) == {"index.json", *names}


def plain(value: Any) -> Any:
    """A value of a row as one that compares: NaN equals NaN, 0.0 is not -0.0, a variant is its JSON text."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else ("float", value, math.copysign(1, value))
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return "map", sorted(((plain(k), plain(v)) for k, v in value.items()), key=repr)
    if hasattr(value, "toJson"):
        return "variant", json.loads(value.toJson(), parse_float=str)
    if hasattr(value, "toArray"):
        return "vector", plain(value.toArray().tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def rows(df: DataFrame) -> list[Any]:
    """A DataFrame's rows, in order, as values that compare."""
    return [plain(row) for row in df.collect()]


def run_python(code: str, *args: str, timeout: float = 150, **environment: str) -> str:
    """Run a snippet in a Python of its own, and all that it starts in a group of its own; give its stdout."""
    process = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd="/",  # where nothing of ours lies: as installed
        env={**os.environ, **environment},
    )
    assert process.returncode == 0, process.stderr[-6000:]
    return process.stdout
