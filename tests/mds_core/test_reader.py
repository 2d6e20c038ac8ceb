"""MDSReader: a data set as a sequence of samples."""

import operator
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mds_core import FormatError, MDSReader
from mds_core.index import INDEX

COLUMNS = {"n": "int64", "s": "str"}
ROWS = [{"n": n, "s": "x" * n} for n in range(30)]
Make = Callable[..., Path]
COMPRESSIONS = pytest.mark.parametrize("compression", [None, "zstd", "gz", "snappy"])


@pytest.fixture
def folder(make: Make) -> Path:
    """Thirty samples in several shards."""
    return make(COLUMNS, ROWS, size_limit=400, hashes=["md5", "xxh64"])


# A sequence


@COMPRESSIONS
def test_samples_are_read_by_number_in_any_order(compression: str | None, make: Make) -> None:
    reader = MDSReader(str(make(COLUMNS, ROWS, size_limit=400, compression=compression)))
    assert len(reader.shards) > 3
    assert len(reader) == 30
    assert [reader[i] for i in reversed(range(30))] == ROWS[::-1]
    assert [reader[-i] for i in range(1, 31)] == ROWS[::-1]
    assert list(reader) == ROWS
    assert list(reader) == ROWS


@pytest.mark.parametrize(
    "at",
    [slice(None), slice(3, 7), slice(-3, None), slice(None, None, -4), slice(20, 2, -3), slice(7, 3), slice(28, 99)],
    ids=str,
)
def test_slices_are_those_of_a_list(at: slice, folder: Path) -> None:
    assert MDSReader(str(folder))[at] == ROWS[at]


@pytest.mark.parametrize(
    "at", [[], [3], [5, -1, 5, 0], (29, 0), range(3, 9, 2), np.array([4, -30, 4]), np.array([7], np.uint8)], ids=str
)
def test_sequences_of_numbers_give_their_samples_in_order(at: Any, folder: Path) -> None:
    assert MDSReader(str(folder))[at] == [ROWS[i] for i in at]


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32, np.array])
def test_numpy_numbers_are_numbers(kind: Any, folder: Path) -> None:
    assert MDSReader(str(folder))[kind(3)] == ROWS[3]


@pytest.mark.parametrize("at", [30, -31, 10**30, np.int64(30), [0, 30], [-31]], ids=str)
def test_a_number_outside_is_an_index_error_that_says_how_many_there_are(at: Any, folder: Path) -> None:
    with pytest.raises(IndexError, match=r"sample -?\d+ of a data set of 30 samples at "):
        MDSReader(str(folder))[at]


@pytest.mark.parametrize("at", [[True, False], (False,), np.array([True] * 30), [0, np.bool_(True)]], ids=str)
def test_booleans_are_no_numbers(at: Any, folder: Path) -> None:
    with pytest.raises(TypeError, match=r"found the boolean (True|False); of a mask, give np.flatnonzero\(mask\)"):
        MDSReader(str(folder))[at]


@pytest.mark.parametrize("at", ["s", 1.0, None, [1.0], ["s"], np.array([0.5]), {}], ids=str)
def test_what_is_no_number_is_a_type_error_or_nothing(at: Any, folder: Path) -> None:
    if at == {}:
        assert MDSReader(str(folder))[at] == []
        return
    with pytest.raises(TypeError):
        MDSReader(str(folder))[at]


def test_an_empty_data_set_has_no_samples(make: Make) -> None:
    reader = MDSReader(str(make(COLUMNS, [])))
    assert (len(reader), list(reader), reader[:], reader[[]], reader.shards) == (0, [], [], [], ())
    assert reader.columns == COLUMNS
    for at in (0, -1):
        with pytest.raises(IndexError, match="of a data set of 0 samples"):
            reader[at]


def test_the_path_may_be_a_path_or_a_url(folder: Path) -> None:
    for path in (folder, str(folder), f"file://{folder}", f"file:{folder}", os.path.relpath(folder)):
        assert len(MDSReader(path)) == 30  # type: ignore[arg-type]


# Processes and files


@COMPRESSIONS
def test_a_reader_travels_to_another_process(compression: str | None, make: Make) -> None:
    reader = MDSReader(str(make(COLUMNS, ROWS, size_limit=400, compression=compression)))
    assert reader[3] == ROWS[3]
    copy = pickle.loads(pickle.dumps(reader))
    assert (len(copy), copy[3], copy[-1]) == (30, ROWS[3], ROWS[-1])
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(operator.getitem, reader, 3).result() == ROWS[3]


@COMPRESSIONS
def test_an_open_shard_is_read_and_unpacked_once(compression: str | None, make: Make) -> None:
    folder = make(COLUMNS, ROWS, compression=compression)
    reader = MDSReader(str(folder))
    first = reader[0]
    shutil.rmtree(folder)
    assert first == ROWS[0]
    assert reader[:] == ROWS
    assert list(reader) == ROWS


MANY = """
import os, resource, sys
from mds_core import MDSReader
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
reader = MDSReader(sys.argv[1])
assert len(reader.shards) > 200
assert [int(sample["n"]) for sample in reader] == list(range(300))
assert [int(reader[i]["n"]) for i in range(299, -1, -1)] == list(range(299, -1, -1))
"""


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_open_shards_hold_no_file_descriptors(compression: str | None, make: Make) -> None:
    folder = make({"n": "int64"}, [{"n": n} for n in range(300)], size_limit=1, compression=compression)
    done = subprocess.run([sys.executable, "-c", MANY, str(folder)], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


def test_more_shards_than_stay_open_are_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mds_core.reader._MOST_OPEN_SHARDS", 3)
    reader = MDSReader(str(make({"n": "int64"}, [{"n": n} for n in range(10)], size_limit=1)))
    for _ in range(2):
        assert [sample["n"] for sample in reader] == list(range(10))
        assert [reader[i]["n"] for i in range(10)] == list(range(10))


# What is broken


def test_a_missing_index_says_what_to_do(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=r"no MDS data set at .*: there is no index.json.*merge_index\(\)"):
            MDSReader(str(path))


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "shard.00001.mds").unlink()
    reader = MDSReader(str(folder))
    assert reader[0] == ROWS[0]
    with pytest.raises(FileNotFoundError, match=r"shard .*/shard.00001.mds is missing: the index names it, with \d+ b"):
        list(reader)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_a_file_of_another_size_than_in_the_index_is_named(compression: str | None, size: int, make: Make) -> None:
    folder = make(COLUMNS, ROWS, compression=compression)
    path = next(path for path in folder.iterdir() if path.name != INDEX)
    found = path.stat().st_size
    path.write_bytes(bytes(size))
    with pytest.raises(FormatError, match=rf"{path.name}: bytes: expected {found} as in the index, found {size}"):
        MDSReader(str(folder))[0]


def test_a_folder_in_the_place_of_a_shard_is_named(folder: Path) -> None:
    (folder / "shard.00000.mds").unlink()
    (folder / "shard.00000.mds").mkdir()
    with pytest.raises(FormatError, match=r"shard.00000.mds: expected a shard of \d+ bytes, found a folder"):
        MDSReader(str(folder))[0]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", [INDEX, "shard.00000.mds"])
def test_a_fifo_or_device_in_the_place_of_a_file_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    for _ in range(2):
        with pytest.raises(FormatError, match=rf"{name}: expected a file, found a FIFO or a device"):
            MDSReader(str(folder))[0]
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")


def test_a_shard_of_another_data_set_is_named(make: Make) -> None:
    folder = make({"n": "int64"}, [{"n": 1}])
    other = make({"m": "int64"}, [{"m": 1}], "other")
    shutil.copy(other / "shard.00000.mds", folder / "shard.00000.mds")
    message = r"shard.00000.mds: config: column_names: expected \['n'\] as in the index, found \['m'\]"
    with pytest.raises(FormatError, match=message):
        MDSReader(str(folder))[0]


@pytest.mark.parametrize("compression", [None, "snappy"])
def test_a_damaged_shard_fails_its_hash_by_name(compression: str | None, make: Make) -> None:
    folder = make(COLUMNS, ROWS, compression=compression, hashes=["md5", "xxh64"])
    path = next(path for path in folder.iterdir() if path.name != INDEX)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for name in ("md5", "xxh64"):
        with pytest.raises(FormatError, match=rf"{path.name}: {name}: expected [0-9a-f]+, found [0-9a-f]+"):
            MDSReader(str(folder), validate_hash=name)[0]


def test_a_hash_that_the_data_set_does_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"validate_hash 'sha1': shard.00000.mds has only \['md5', 'xxh64'\]"):
        MDSReader(str(folder), validate_hash="sha1")
    with pytest.raises(ValueError, match="unknown hash 'crc'"):
        MDSReader(str(folder), validate_hash="crc")


def test_pickles_are_read_only_where_the_caller_allows_them(make: Make) -> None:
    folder = make({"p": "pkl"}, [{"p": {1, 2}}])
    with pytest.raises(ValueError, match=r"column 'p': encoding pkl runs code .*allow_unsafe_types=True"):
        MDSReader(str(folder))
    assert MDSReader(str(folder), allow_unsafe_types=True)[0] == {"p": {1, 2}}


def test_files_outside_of_the_data_set_are_not_read(make: Make, tmp_path: Path) -> None:
    folder = make(COLUMNS, ROWS)
    shutil.move(folder / "shard.00000.mds", tmp_path / "secret.mds")
    index = (folder / INDEX).read_text()
    for name in ("../secret.mds", str(tmp_path / "secret.mds"), "x/../../secret.mds"):
        (folder / INDEX).write_text(index.replace("shard.00000.mds", name))
        with pytest.raises(FormatError, match=r"index.json: shards\[0\].raw_data.basename: expected a path inside"):
            MDSReader(str(folder))
    (folder / "sub").symlink_to(tmp_path, target_is_directory=True)
    (folder / INDEX).write_text(index.replace("shard.00000.mds", "sub/secret.mds"))
    with pytest.raises(FormatError, match=r"sub/secret.mds: expected a file inside of the data set"):
        MDSReader(str(folder))[0]
