"""What every backend does: the same tests for a folder and for object stores, over real servers."""

import io
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mds_core import FormatError, MDSReader, MDSWriter, merge_index
from mds_core.storage import Storage, open_storage, remote
from tests.mds_core.storage.servers import STORES


@pytest.fixture(scope="module", params=["folder", *STORES])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a backend: a folder, or a bucket of a server."""
    if request.param == "folder":
        yield str(tmp_path_factory.mktemp("storage"))
    else:
        remote._clients.clear()  # they are of another server
        with STORES[request.param]() as path:
            yield path


@pytest.fixture
def path(base: str) -> str:
    """A new data set's path."""
    return f"{base}/{uuid.uuid4().hex}"


@pytest.fixture
def storage(path: str) -> Storage:
    return open_storage(path)


def size(storage: Storage, name: str) -> int | None:
    info = storage.info(name)
    return None if info is None else info.size


def test_what_is_put_is_read_listed_and_deleted(storage: Storage) -> None:
    assert (storage.list(), storage.read("a"), size(storage, "a")) == ([], None, None)
    storage.put("a", [b"one", memoryview(b"two"), bytearray(b""), np.arange(3, dtype=np.uint16)])
    storage.put("sub/folder/b ä%20", [])
    assert sorted(storage.list()) == ["a", "sub/folder/b ä%20"]
    assert (storage.read("a"), size(storage, "a")) == (b"onetwo\0\0\1\0\2\0", 12)
    assert (storage.read("sub/folder/b ä%20"), size(storage, "sub/folder/b ä%20")) == (b"", 0)
    assert (storage.read("a/below"), size(storage, "a/below")) == (None, None)
    with tempfile.TemporaryFile() as file:
        storage.fetch("a", file)
        file.seek(0)
        assert file.read() == b"onetwo\0\0\1\0\2\0"
    storage.delete("a")
    storage.delete("a")
    assert storage.list() == ["sub/folder/b ä%20"]
    with pytest.raises(FileNotFoundError):
        storage.fetch("a", io.BytesIO())
    with pytest.raises(FileNotFoundError):
        storage.read_range("a", 0, 1)


def test_a_data_set_does_not_list_its_neighbour(path: str) -> None:
    open_storage(path + "-too").put("a", [b""])
    assert open_storage(path).list() == []


def test_ranges_are_read(storage: Storage) -> None:
    storage.put("a", [bytes(range(256))])
    assert [storage.read_range("a", *span)[0] for span in [(0, 1), (255, 256), (100, 103)]] == [b"\0", b"\xff", b"def"]


def test_a_version_changes_when_a_file_is_written_again(storage: Storage) -> None:
    assert storage.info("a") is None
    assert storage.replace("a", b"same", None)
    first = storage.info("a")
    assert first is not None
    assert storage.info("a") == first
    assert storage.read_range("a", 0, 1)[1] == first.version
    time.sleep(1.1)  # stores that only keep the time count in seconds
    assert storage.replace("a", b"same", b"same")
    assert storage.info("a") != first


def test_a_deadline_that_has_passed_ends_a_fetch(storage: Storage) -> None:
    storage.put("a", [bytes(1 << 20)])
    with pytest.raises(TimeoutError, match="a: out of time"):
        storage.fetch("a", io.BytesIO(), time.monotonic() - 1)


def test_unknown_options_are_named(path: str, storage: Storage) -> None:
    if getattr(storage, "OPTIONS", ()) is None:  # what a file system of fsspec's knows, it alone knows
        assert open_storage(path, {"profil": "x"}).list() == []
        return
    with pytest.raises(ValueError, match="no storage option profil"):
        open_storage(path, {"profil": "x"})


def test_large_files_of_many_parts_are_whole(storage: Storage) -> None:
    parts = [np.full(size, n, np.uint8) for n, size in enumerate([1, 0, 20_000_000, 7, 9_000_000])]
    storage.put("large", parts)
    assert storage.read("large") == b"".join(part.tobytes() for part in parts)
    assert size(storage, "large") == 29_000_008


def test_no_file_comes_after_the_staging_folder_is_removed(storage: Storage) -> None:
    storage.make_staging(".write")
    storage.make_staging(".write")
    storage.put("a", [b"data"], ".write")
    storage.remove_staging(".write")
    storage.remove_staging(".write")
    with pytest.raises(FileNotFoundError, match=r"can't store .*b: .*was aborted"):
        storage.put("b", [b"data"], ".write")
    assert storage.list() == ["a"]


def test_a_put_never_replaces_what_is_there(storage: Storage) -> None:
    storage.put("a", [b"old"])
    with pytest.raises(FileExistsError, match="another writer"):
        storage.put("a", [b"new"])
    assert storage.read("a") == b"old"


def test_who_removes_the_staging_stops_all_puts_through_it(storage: Storage) -> None:
    storage.make_staging(".mds-1")
    storage.put("a", [b"data"], ".mds-1")
    storage.remove_staging(".mds-1")
    storage.remove_staging(".mds-1")
    with pytest.raises(FileNotFoundError, match=r"can't store .*b: .*\.mds-1.*made when the write began, is not there"):
        storage.put("b", [b"data"], ".mds-1")
    assert storage.list() == ["a"]


def test_a_file_is_replaced_only_if_it_is_as_expected(storage: Storage) -> None:
    assert not storage.replace("a", b"1", expected=b"0")
    assert storage.replace("a", b"1", expected=None)
    assert not storage.replace("a", b"2", expected=None)
    assert not storage.replace("a", b"2", expected=b"0")
    assert storage.replace("a", b"2", expected=b"1")
    assert storage.read("a") == b"2"


def test_of_replacements_at_once_one_wins(storage: Storage) -> None:
    """Where the store has no condition for it, more may be told so; but one stands, whole, and was told."""
    storage.replace("a", b"0", expected=None)
    start, won = threading.Barrier(8), []

    def replace(number: int) -> None:
        start.wait()
        if storage.replace("a", b"%d" % number * 5000, expected=b"0"):
            won.append(number)

    threads = [threading.Thread(target=replace, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won
    if storage.atomic_replace:
        assert len(won) == 1
    assert storage.read("a") in [b"%d" % number * 5000 for number in won]


@pytest.mark.parametrize("options", [{}, {"compression": "zstd", "hashes": ["xxh64", "sha1"]}], ids=str)
def test_a_data_set_is_written_and_read(options: dict[str, Any], path: str) -> None:
    with MDSWriter(out=path, columns={"n": "int64", "s": "str"}, size_limit=500, **options) as writer:
        for n in range(100):
            writer.write({"n": n, "s": "x" * (n % 7)})
    reader = MDSReader(path, validate_hash="xxh64" if options else None)
    assert len(reader.shards) > 1
    assert [(int(sample["n"]), sample["s"]) for sample in reader] == [(n, "x" * (n % 7)) for n in range(100)]
    assert reader[57]["n"] == 57
    with pytest.raises(FileExistsError):
        MDSWriter(out=path, columns={"n": "int64"})


def test_a_writer_that_fails_leaves_nothing(path: str) -> None:
    def write() -> None:
        with MDSWriter(out=path, columns={"n": "int64"}, size_limit=100) as writer:
            for n in range(100):
                writer.write({"n": n})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert open_storage(path).list() == []


def test_data_sets_are_merged(path: str) -> None:
    for part in range(2):
        with MDSWriter(out=f"{path}/{part}", columns={"n": "int64"}) as writer:
            writer.write({"n": part})
    merge_index(path)
    assert [int(sample["n"]) for sample in MDSReader(path)] == [0, 1]


def test_a_missing_or_broken_shard_is_named(path: str) -> None:
    with MDSWriter(out=path, columns={"n": "int64"}) as writer:
        writer.write({"n": 1})
    storage = open_storage(path)
    data = storage.read("shard.00000.mds")
    assert data is not None
    storage.delete("shard.00000.mds")
    with pytest.raises(FileNotFoundError, match=r"shard\.00000\.mds is missing"):
        MDSReader(path)[0]
    storage.put("shard.00000.mds", [data[:-1]])
    with pytest.raises(FormatError, match=r"shard\.00000\.mds: bytes"):
        MDSReader(path)[0]


def test_no_data_set_is_named(path: str) -> None:
    with pytest.raises(FileNotFoundError, match="no MDS data set at"):
        MDSReader(path)
