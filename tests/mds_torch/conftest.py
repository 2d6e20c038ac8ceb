"""What the tests of mds_torch share: data sets with a sample of each kind of column."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from mds_core import MDSWriter

COLUMNS = {
    "id": "int",
    **{
        name: name for name in ("uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32", "float64")
    },
    "text": "str",
    "raw": "bytes",
    "static": "ndarray:float32:2,3",
    "dynamic": "ndarray:int64",
    "any": "ndarray",
    "json": "json",
    "str_int": "str_int",
    "str_float": "str_float",
}


def row(i: int) -> dict[str, Any]:
    numbers = {name: np.dtype(name).type(i % 100) for name in NUMERIC if name != "id"}
    return {
        "id": i,
        **numbers,
        "text": "" if i % 7 == 0 else f"tëxt {i}" * (i % 5),
        "raw": bytes(i % 11),
        "static": np.full((2, 3), i, np.float32),
        "dynamic": np.arange(i, i + 4),
        "any": np.full((2, 2), i, np.int16),
        "json": {"a": [i, i + 1], "b": str(i)},
        "str_int": i,
        "str_float": i / 3,
    }


NUMERIC = [n for n in COLUMNS if n not in ("text", "raw", "static", "dynamic", "any", "json", "str_int", "str_float")]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write a data set: `write(rows, columns=..., **options)` gives its folder."""

    def write(rows: list[dict[str, Any]], columns: dict[str, str], name: str = "data", **options: Any) -> str:
        with MDSWriter(out=str(tmp_path / name), columns=columns, **options) as writer:
            for one in rows:
                writer.write(one)
        return str(tmp_path / name)

    return write


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of 203 samples in several shards, with a column of each kind."""
    folder = tmp_path_factory.mktemp("everything") / "data"
    with MDSWriter(out=str(folder), columns=COLUMNS, size_limit=9000, hashes=["xxh64"]) as writer:
        for i in range(203):
            writer.write({name: row(i)[name] for name in COLUMNS})
    return str(folder)


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of 1,000 ids in compressed shards."""
    folder = tmp_path_factory.mktemp("numbers") / "data"
    with MDSWriter(out=str(folder), columns={"id": "int64"}, size_limit=2000, compression="zstd") as writer:
        for i in range(1000):
            writer.write({"id": i})
    return str(folder)


# Times on a shared machine say nothing; the same examples each run, so that a failure is the change's fault.
settings.register_profile(
    "mds", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("mds")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test runs as a rank of a launcher that happens to run the tests."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write a data set: `make(columns, rows, name="data", **options)` gives its folder."""

    def make(columns: dict[str, str], rows: Iterable[dict[str, Any]], name: str = "data", **options: Any) -> Path:
        with MDSWriter(out=str(tmp_path / name), columns=columns, **options) as writer:
            for one in rows:
                writer.write(one)
        return tmp_path / name

    return make


@pytest.fixture
def thirty(make: Callable[..., Path]) -> str:
    """Thirty samples, numbered, in several shards."""
    rows = ({"n": n, "s": "x" * n} for n in range(30))
    return str(make({"n": "int64", "s": "str"}, rows, name="thirty", size_limit=400, hashes=["xxh64"]))


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., Any]:
    """Run Python source as a program of its own: `run_script(source, *arguments, launcher=(), **environment)`.

    Ends when the program and every process that it started have ended: they hold the pipes.
    """

    def run(source: str, *arguments: Any, launcher: Iterable[str] = (), **environment: str) -> Any:
        path = tmp_path / "program.py"
        path.write_text(source)
        return subprocess.run(
            [sys.executable, *launcher, str(path), *map(str, arguments)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run
