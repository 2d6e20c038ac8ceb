"""MDSWriter: what it leaves in the folder, and when it leaves nothing."""

import json
import subprocess
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest

from mds_core import EncodeError, MDSReader, MDSWriter
from mds_core import writer as writer_module
from mds_core.index import INDEX, Layout
from mds_core.storage import open_storage
from mds_core.writer import ShardWriter, check_options

COLUMNS = {"n": "int64", "s": "str"}
ROWS = [{"n": n, "s": "x" * n} for n in range(30)]
Make = Callable[..., Path]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def sizes(folder: Path) -> list[int]:
    return [shard.samples for shard in MDSReader(str(folder)).shards]


# The folder


def test_a_data_set_is_an_index_and_shards(make: Make) -> None:
    folder = make(COLUMNS, ROWS, size_limit=400, hashes=["xxh64", "md5"])
    shards = MDSReader(str(folder)).shards
    assert files(folder) == {INDEX, *(f"shard.{i:05d}.mds" for i in range(len(shards)))}
    assert all((folder / shard.stored.basename).stat().st_size == shard.stored.bytes <= 400 for shard in shards)
    for algorithm in ("xxh64", "md5"):
        assert MDSReader(str(folder), validate_hash=algorithm)[:] == ROWS


@pytest.mark.parametrize("name", ["a file", ".hidden", "sub/folder/file"])
def test_a_folder_that_is_not_empty_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=rf"is not empty: it holds {name}; choose a new folder.*exist_ok=True"):
        MDSWriter(out=str(tmp_path), columns=COLUMNS)
    assert (tmp_path / name).read_text() == "mine"


def test_an_empty_folder_is_used(tmp_path: Path, make: Make) -> None:
    (tmp_path / "data" / "empty").mkdir(parents=True)
    assert MDSReader(str(make(COLUMNS, ROWS)))[:] == ROWS


def test_a_file_in_the_place_of_the_folder_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/below"):
        with pytest.raises(NotADirectoryError, match="file"):
            MDSWriter(out=str(tmp_path / out), columns=COLUMNS)


def test_exist_ok_replaces_what_the_index_names_and_nothing_else(make: Make) -> None:
    folder = make(COLUMNS, ROWS, size_limit=300, compression="gz")
    (folder / "notes.txt").write_text("mine")
    shards = len(sizes(folder))
    make({"a": "int8"}, [{"a": 1}], exist_ok=True)
    assert files(folder) == {INDEX, f"shard.{shards:05d}.mds", "notes.txt"}
    assert MDSReader(str(folder))[:] == [{"a": 1}]


def test_exist_ok_keeps_the_old_data_set_until_the_new_one_stands(make: Make) -> None:
    folder = make(COLUMNS, ROWS, size_limit=300)
    with MDSWriter(out=str(folder), columns={"a": "int8"}, size_limit=1, exist_ok=True) as writer:
        for _ in range(10):
            writer.write({"a": 1})
            assert MDSReader(str(folder))[:] == ROWS
    assert MDSReader(str(folder))[:] == [{"a": 1}] * 10


def test_exist_ok_on_a_new_folder_names_shards_from_zero(make: Make) -> None:
    assert files(make(COLUMNS, ROWS, exist_ok=True)) == {INDEX, "shard.00000.mds"}


def test_a_hostile_index_makes_exist_ok_delete_nothing_but_shards(make: Make, tmp_path: Path) -> None:
    folder = make(COLUMNS, ROWS)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("mine")
    (folder / "sub").symlink_to(tmp_path / "outside", target_is_directory=True)
    index = (folder / INDEX).read_text()
    (folder / INDEX).write_text(index.replace("shard.00000.mds", "sub/precious"))
    with pytest.warns(UserWarning, match=r"the new data set is in place, .*/sub/precious: expected a file inside"):
        make(COLUMNS, ROWS[:3], exist_ok=True)
    assert (tmp_path / "outside" / "precious").read_text() == "mine"
    for name in (INDEX, "../outside/precious"):
        (folder / INDEX).write_text(index.replace("shard.00000.mds", name))
        make(COLUMNS, ROWS[:3], exist_ok=True)
        assert MDSReader(str(folder))[:] == ROWS[:3]
    assert (tmp_path / "outside" / "precious").read_text() == "mine"


def test_exist_ok_replaces_a_broken_data_set(make: Make) -> None:
    folder = make(COLUMNS, ROWS)
    (folder / INDEX).write_text("{")
    make(COLUMNS, ROWS[:3], exist_ok=True)
    assert MDSReader(str(folder))[:] == ROWS[:3]


def test_no_index_is_there_before_the_end(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns=COLUMNS, size_limit=300) as writer:
        for row in ROWS:
            writer.write(row)
        writer.write_batch(pa.RecordBatch.from_pylist(ROWS))
        assert not (tmp_path / INDEX).exists()
    assert MDSReader(str(tmp_path))[:] == ROWS * 2


def test_a_data_set_without_samples_keeps_its_columns(make: Make) -> None:
    folder = make(COLUMNS, [])
    assert files(folder) == {INDEX}
    assert MDSReader(str(folder)).columns == COLUMNS
    assert len(MDSReader(str(folder))) == 0


# When the body raises


def broken_off(out: Path, error: type[BaseException], **options: Any) -> None:
    with MDSWriter(out=str(out), columns=COLUMNS, size_limit=300, **options) as writer:
        for row in ROWS * 100:
            writer.write(row)
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_body_that_raises_leaves_nothing(error: type[BaseException], compression: str | None, tmp_path: Path) -> None:
    with pytest.raises(error):
        broken_off(tmp_path / "data", error, compression=compression)
    assert files(tmp_path / "data") == set()


def test_a_body_that_raises_leaves_the_data_set_that_it_would_replace(make: Make) -> None:
    folder = make(COLUMNS, ROWS, size_limit=300)
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    with pytest.raises(EncodeError):
        make(COLUMNS, [*ROWS * 100, {"n": "a", "s": ""}], exist_ok=True, size_limit=300)
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


# Two writers at once


def write_all(writer: MDSWriter, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        writer.write(row)


def two_writers(make: Make, folder: Path, exist_ok: bool, compression: str | None) -> tuple[MDSWriter, MDSWriter]:
    """Two that were opened before either stored anything."""
    if exist_ok:
        make(COLUMNS, ROWS[:3], folder.name)
    options: dict[str, Any] = {"out": str(folder), "columns": COLUMNS, "size_limit": 3000, "exist_ok": exist_ok}
    return MDSWriter(**options), MDSWriter(**options, compression=compression)


# With compression, names differ, so that only the index tells one from the other.
TWO_WRITERS = pytest.mark.parametrize(
    ("exist_ok", "compression"), [(a, b) for a in (False, True) for b in (None, "gz")]
)


@TWO_WRITERS
def test_of_two_writers_in_one_folder_the_second_fails_and_leaves_the_firsts_files(
    exist_ok: bool, compression: str | None, make: Make, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    first, second = two_writers(make, folder, exist_ok, compression)

    def write_at_once() -> None:
        with second:
            write_all(first, ROWS * 50)
            try:
                write_all(second, ROWS[::-1] * 50)
            finally:
                first.finish()

    with pytest.raises(FileExistsError, match="another"):
        write_at_once()
    assert MDSReader(str(folder))[:] == ROWS * 50
    assert files(folder) == {INDEX, *(shard.stored.basename for shard in MDSReader(str(folder)).shards)}


@TWO_WRITERS
def test_a_writer_that_is_aborted_leaves_anothers_files(
    exist_ok: bool, compression: str | None, make: Make, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    first, second = two_writers(make, folder, exist_ok, compression)
    write_all(first, ROWS * 50)
    if compression:
        write_all(second, ROWS * 50)
    first.finish()
    second.abort()
    assert MDSReader(str(folder))[:] == ROWS * 50
    assert files(folder) == {INDEX, *(shard.stored.basename for shard in MDSReader(str(folder)).shards)}


@pytest.mark.parametrize("exist_ok", [False, True])
def test_an_index_that_appeared_meanwhile_is_not_replaced(exist_ok: bool, make: Make, tmp_path: Path) -> None:
    folder = make(COLUMNS, ROWS[:3]) if exist_ok else tmp_path / "data"
    other = make(COLUMNS, ROWS, "other")
    writer = MDSWriter(out=str(folder), columns=COLUMNS, exist_ok=exist_ok)
    write_all(writer, ROWS)
    folder.mkdir(exist_ok=True)
    (other / INDEX).rename(folder / INDEX)
    before = files(folder)
    with pytest.raises(FileExistsError, match=r"index.json is not what it was when this writer began: another one"):
        writer.finish()
    assert files(folder) == before


def test_an_error_that_the_body_handles_leaves_the_good_samples(tmp_path: Path) -> None:
    bad = pa.RecordBatch.from_pydict({"n": [1, 2], "s": ["a", None]})
    with MDSWriter(out=str(tmp_path), columns=COLUMNS) as writer:
        writer.write(ROWS[0])
        with pytest.raises(EncodeError, match=r"column 'n', row 1: "):
            writer.write({"n": 0.5, "s": "a"})
        with pytest.raises(EncodeError, match=r"row 2: column 's': 1 null in 2 rows"):
            writer.write_batch(bad)
        writer.write(ROWS[1])
        with pytest.raises(EncodeError, match=r"column 's', row 2: expected a str for str, found 5 \(int\)"):
            writer.write({"n": 1, "s": 5})
    assert MDSReader(str(tmp_path))[:] == ROWS[:2]


def test_a_writer_that_has_ended_takes_no_more(make: Make, tmp_path: Path) -> None:
    for end in (MDSWriter.finish, MDSWriter.abort):
        writer = MDSWriter(out=str(tmp_path), columns=COLUMNS, exist_ok=True)
        end(writer)
        for use in (lambda: writer.write(ROWS[0]), lambda: writer.write_batch(None), writer.finish):  # noqa: B023
            with pytest.raises(ValueError, match="has ended; open another one"):
                use()


def test_an_abort_after_the_end_leaves_the_data_set(tmp_path: Path) -> None:
    writer = MDSWriter(out=str(tmp_path), columns=COLUMNS)
    write_all(writer, ROWS)
    writer.finish()
    writer.abort()
    assert MDSReader(str(tmp_path))[:] == ROWS


def test_no_thread_stays_behind(make: Make, tmp_path: Path) -> None:
    make(COLUMNS, ROWS, size_limit=300)
    MDSWriter(out=str(tmp_path / "b"), columns=COLUMNS).abort()
    with pytest.raises(EncodeError):
        make(COLUMNS, [*ROWS, {"n": "a", "s": ""}], "c", size_limit=300)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mds-store")]


# When the store fails


@pytest.mark.parametrize("shard", [0, 3])
def test_a_shard_that_cannot_be_stored_is_an_error_and_leaves_no_index(shard: int, make: Make, tmp_path: Path) -> None:
    (tmp_path / f"shard.{shard:05d}.mds").mkdir()  # no file can be moved to it
    with pytest.raises(FileExistsError, match=f"can't store .*/shard.{shard:05d}.mds: there is a file of this name"):
        make(COLUMNS, ROWS * 100, ".", size_limit=300)
    assert files(tmp_path) == {f"shard.{shard:05d}.mds"}


def test_an_index_that_cannot_be_stored_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / INDEX).mkdir()
    with pytest.raises(IsADirectoryError), MDSWriter(out=str(tmp_path), columns=COLUMNS) as writer:
        writer.write(ROWS[0])
    assert files(tmp_path) == {INDEX}


FULL_DISK = """
import resource, sys
import numpy as np
from mds_core import MDSWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with MDSWriter(out=sys.argv[1], columns={"b": "bytes"}, size_limit=60_000) as writer:
    for size in (1000, 1000, 50_000, 1000, 200_000, 1000):
        writer.write({"b": bytes(size)})
    print("all written")
"""


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "OSError: [Errno 27] File too large" in done.stderr
    assert files(tmp_path) == set()


# Sizes


def test_a_new_shard_starts_before_the_sample_that_would_pass_the_limit(make: Make) -> None:
    config = len(json.dumps(Layout.of({"b": "bytes"}, size_limit=1000).to_json()))
    room = 1000 - config - 8
    rows = [{"b": bytes(size - 8)} for size in (room, room - 20, 20, room - 20, 21, room + 1, 8)]
    assert sizes(make({"b": "bytes"}, rows, size_limit=1000)) == [1, 2, 1, 1, 1, 1]


def test_a_first_sample_larger_than_a_shard_comes_after_an_empty_one_as_the_reference_has_it(make: Make) -> None:
    folder = make(COLUMNS, ROWS[:3], size_limit=1)
    assert sizes(folder) == [0, 1, 1, 1]
    assert MDSReader(str(folder))[:] == ROWS[:3]
    numbers = make({"n": "int64"}, [{"n": 1}, {"n": 2}], "numbers", size_limit=1)
    assert MDSReader(str(numbers))[:] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(("text", "limit"), [("2kb", 2048), ("2048", 2048), (2048, 2048)])
def test_a_size_limit_may_be_text(text: int | str, limit: int, make: Make) -> None:
    shards = MDSReader(str(make({"b": "bytes"}, [{"b": bytes(500)}] * 10, size_limit=text))).shards
    assert [shard.layout.size_limit for shard in shards] == [limit] * len(shards)
    assert len(shards) > 2


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("memory", [1 << 28, 10_000, 1])
def test_without_a_limit_there_is_one_shard_in_memory_or_by_a_file(
    compression: str | None, memory: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_MEMORY_A_SHARD", memory)
    monkeypatch.setattr(writer_module, "_ROWS_AT_ONCE", 10)
    folder = make(COLUMNS, ROWS * 10, size_limit=None, compression=compression, hashes=["md5"])
    reader = MDSReader(str(folder), validate_hash="md5")
    assert [(shard.samples, shard.layout.size_limit) for shard in reader.shards] == [(300, None)]
    assert reader[:] == ROWS * 10


def test_a_shard_past_4_gib_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_MEMORY_A_SHARD", 1 << 40)  # views of one buffer, which nobody writes out
    shards = ShardWriter(open_storage(str(tmp_path)), Layout.of({"b": "bytes"}, size_limit=None), str)
    data = np.zeros(1 << 28, np.uint8)
    for _ in range(15):
        shards.append(data.data, np.array([1 << 28]))
    with pytest.raises(ValueError, match=r"a shard of 42949\d+ bytes: offsets .* at most 4294967295; set size_limit"):
        shards.append(data.data, np.array([1 << 28]))
    shards.abort()
    assert files(tmp_path) == set()


def test_a_sample_past_4_gib_is_refused(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={"b": "bytes", "n": "int8"}) as writer:
        with pytest.raises(EncodeError, match=r"row 0: values of \[4294967296\] bytes: .* at most 4294967295"):
            writer.write({"b": bytes(1 << 32), "n": 1})  # memory that is never touched
        writer.write({"b": b"", "n": 1})
    assert len(MDSReader(str(tmp_path))) == 1


def test_memory_stays_near_two_shards(tmp_path: Path) -> None:
    tracemalloc.start()
    with MDSWriter(out=str(tmp_path), columns={"b": "bytes"}, size_limit=8 << 20) as writer:
        for i in range(640):
            writer.write({"b": bytes([i % 256]) * 100_000})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(MDSReader(str(tmp_path)).shards) == 8
    assert peak < 3.5 * (8 << 20)


# Options and samples


def test_all_wrong_options_are_in_one_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^MDSWriter: ") as caught:
        MDSWriter(
            out=str(tmp_path),
            columns={"a": "int31", "b": "int8", 5: "int8", "d": None},  # type: ignore[dict-item]
            compression="zip:9",
            hashes=["crc", "md5"],
            size_limit="tiny",
        )
    for part in ("column 'a': unknown encoding 'int31'", "[5]", "column 'd': ", "compression: unknown compression",
                 "hashes: unknown hash 'crc'", "size_limit: expected a size such as 67108864"):  # fmt: skip
        assert part in str(caught.value)
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {}}, "columns: expected a dict of at least one column's encoding, found {}"),
        ({"columns": ["a"]}, "columns: expected a dict"),
        ({"compression": 5}, "compression: unknown compression 5"),
        ({"hashes": 5}, "hashes: "),
        ({"hashes": [None]}, "hashes: unknown hash None"),
        ({"size_limit": 0}, "size_limit: expected a size of at least 1 byte, found 0"),
        ({"size_limit": 1 << 32}, "size_limit: a shard holds at most 4294967295 bytes"),
        ({"size_limit": True}, "size_limit: expected a size"),
        ({"size_limit": "9" * 5000}, "size_limit: expected a size such as 67108864 or '64mb', found '999"),
        ({"size_limit": 10**5000}, "size_limit: expected a size such as 67108864 or '64mb', found a value too long"),
        ({"size_limit": "9" * 30}, "size_limit: a shard holds at most 4294967295 bytes"),
        ({"compression": "zstd:" + "9" * 5000}, "compression: compression 'zstd:999"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    layout, mistakes = check_options(**{"columns": COLUMNS, **options})
    assert layout is None
    assert [mistake[: len(message)] for mistake in mistakes] == [message]


def test_hashes_may_be_one_name() -> None:
    layout, mistakes = check_options(COLUMNS, hashes="md5")
    assert mistakes == []
    assert layout is not None
    assert layout.hashes == ("md5",)


@pytest.mark.parametrize("sample", [{}, {"n": 1}, {"n": 1, "s": "", "x": 1}, {"n": 1, 5: ""}])
def test_a_sample_of_other_columns_is_refused(sample: dict[str, Any], tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns=COLUMNS) as writer:
        writer.write(ROWS[0])
        with pytest.raises(ValueError, match=r"row 1: expected the columns \['n', 's'\], found"):
            writer.write(sample)


@pytest.mark.parametrize("sample", [None, 5, "ns", [1, "x"], ("n", "s")], ids=str)
def test_a_sample_that_is_no_dict_is_refused(sample: Any, tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns=COLUMNS) as writer:
        writer.write(ROWS[0])
        with pytest.raises(TypeError, match=r"row 1: expected a dict of the columns \['n', 's'\], found "):
            writer.write(sample)
    assert len(MDSReader(str(tmp_path))) == 1


@pytest.mark.parametrize("batch", [None, ROWS, ROWS[0], pa.Table.from_pylist(ROWS)], ids=lambda b: type(b).__name__)
def test_a_batch_that_is_none_is_refused(batch: Any, tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns=COLUMNS) as writer:
        message = rf"expected a pyarrow.RecordBatch, found {type(batch).__name__}; .* to_batches\(\)"
        with pytest.raises(TypeError, match=message):
            writer.write_batch(batch)


# Memory that the caller uses again

REUSED = {
    "numbers": ({"x": "int64"}, lambda a: {"x": pa.array(a)}),
    "two numbers": ({"x": "int64", "y": "int64"}, lambda a: {"x": pa.array(a), "y": pa.array(a)}),
    "arrays": ({"x": "ndarray:int64:2"}, lambda a: {"x": lists(a, 2)}),
    "dynamic arrays": ({"x": "ndarray:int64"}, lambda a: {"x": lists(a, 2)}),
    "large arrays": ({"x": "ndarray:int64:2000"}, lambda a: {"x": lists(a, 2000)}),
    "fixed bytes": ({"x": "int64"}, lambda a: {"x": in_bytes(a, 8)}),
    "bytes": ({"x": "bytes"}, lambda a: {"x": in_bytes(a, 8).cast(pa.binary())}),
    "large bytes": ({"x": "bytes", "y": "int8"}, lambda a: {"x": in_bytes(a, 32000), "y": pa.array([1], pa.int8())}),
}


def lists(array: np.ndarray, size: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(array), size)


def in_bytes(array: np.ndarray, size: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(size), array.nbytes // size, [None, pa.py_buffer(array)])


@pytest.mark.parametrize("kind", REUSED)
@pytest.mark.parametrize("size_limit", [1 << 26, 1000])
def test_a_batch_s_memory_may_be_used_again(kind: str, size_limit: int, tmp_path: Path) -> None:
    columns, batch_of = REUSED[kind]
    memory = np.zeros(4000, np.int64)
    for name, copies in (("reused", False), ("fresh", True)):
        with MDSWriter(out=str(tmp_path / name), columns=columns, size_limit=size_limit) as writer:
            for i in range(3):
                memory[:] = i
                writer.write_batch(pa.record_batch(batch_of(memory.copy() if copies else memory)))
            memory[:] = 9
    found, right = (sorted((tmp_path / name).iterdir()) for name in ("reused", "fresh"))
    assert [file.read_bytes() for file in found] == [file.read_bytes() for file in right]


def test_columns_are_sorted_by_code_point(make: Make) -> None:
    columns = {"é": "int8", "b": "int8", "B": "int8", "a": "int8", "": "int8"}
    folder = make(columns, [dict.fromkeys(columns, 1)])
    assert MDSReader(str(folder)).shards[0].layout.column_names == ("", "B", "a", "b", "é")
    assert MDSReader(str(folder))[0] == dict.fromkeys(columns, 1)


# lz4


def test_lz4_files_are_read_by_the_lz4_package(make: Make) -> None:
    with pytest.warns(UserWarning, match="lz4: mosaicml-streaming cannot read it") as caught:
        folder = make(COLUMNS, ROWS, compression="lz4:3")
    assert len(caught) == 1
    assert files(folder) == {INDEX, "shard.00000.mds.lz4"}
    plain = make(COLUMNS, ROWS, "plain")
    unpacked = lz4.frame.decompress((folder / "shard.00000.mds.lz4").read_bytes())
    samples = (plain / "shard.00000.mds").read_bytes()[-(30 * 12 + sum(range(30))) :]  # their headers differ
    assert unpacked.endswith(samples)
    assert MDSReader(str(folder))[:] == ROWS


def test_the_lz4_warning_comes_once(make: Make) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for name in "abc":
            make(COLUMNS, ROWS, name, compression="lz4")
    assert len(caught) == 1


def test_the_references_arguments_are_taken(tmp_path: Path) -> None:
    local, remote = str(tmp_path / "local"), str(tmp_path / "remote")
    others = {"keep_local": False, "progress_bar": True, "max_workers": 8, "retry": 2}
    with MDSWriter(out=(local, remote), columns={"n": "int64"}, **others) as writer:
        writer.write({"n": 1})
    assert [sample["n"] for sample in MDSReader(remote)] == [1]
    assert not Path(local).exists()
    with MDSWriter(out=tmp_path / "path", columns={"n": "int64"}, keep_local=True) as writer:
        writer.write({"n": 2})
    assert len(MDSReader(str(tmp_path / "path"))) == 1


def test_what_is_not_done_with_a_place_is_refused(tmp_path: Path) -> None:
    out: Any = (str(tmp_path / "local"), str(tmp_path / "remote"))
    with pytest.raises(ValueError, match=r"keep_local: nothing is kept in '.*local'"):
        MDSWriter(out=out, columns={"n": "int64"}, keep_local=True)
    with pytest.raises(TypeError, match=r"unknown arguments \['compresion'\]"):
        MDSWriter(out=out, columns={"n": "int64"}, compresion="zstd")
    for wrong in (("", ""), None, 5, ("a", "b", "c"), ("a", 5)):
        with pytest.raises(ValueError, match=r"expected out, the folder of the data set or \(local, remote\), found"):
            MDSWriter(out=wrong, columns={"n": "int64"})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
