"""A data set's folder on a file system."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mds_core.storage import open_storage
from mds_core.storage.local import LocalStorage


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "data"))


def test_what_is_put_is_read_listed_and_deleted(storage: LocalStorage) -> None:
    assert (storage.list(), storage.read("a"), storage.size("a")) == ([], None, None)
    storage.put("a", [b"one", memoryview(b"two"), bytearray(b"")])
    storage.put("sub/folder/b", [])
    assert sorted(storage.list()) == ["a", "sub/folder/b"]
    assert (storage.read("a"), storage.size("a")) == (b"onetwo", 6)
    assert (storage.read("sub/folder/b"), storage.size("sub/folder/b")) == (b"", 0)
    assert (storage.read("a/below"), storage.size("a/below")) == (None, None)
    storage.delete("a")
    storage.delete("a")
    assert storage.list() == ["sub/folder/b"]


def test_a_put_replaces_a_file_in_one_step(storage: LocalStorage) -> None:
    storage.put("a", [b"old"])

    class Parts(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield b"new"
            assert storage.read("a") == b"old"
            yield b"er"

    storage.put("a", Parts())
    assert storage.read("a") == b"newer"


def test_a_put_that_fails_leaves_nothing(storage: LocalStorage) -> None:
    class Parts(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield b"half"
            raise OSError("the disk is full")

    storage.put("a", [b"old"])
    with pytest.raises(OSError, match="the disk is full"):
        storage.put("a", Parts())
    with pytest.raises(OSError, match="the disk is full"):
        storage.put("b", Parts())
    assert storage.list() == ["a"]
    assert storage.read("a") == b"old"


def test_a_put_fails_once_its_staging_folder_is_gone(storage: LocalStorage) -> None:
    storage.make_staging(".staging")
    storage.make_staging(".staging")
    storage.put("a", [b"a"], staging=".staging")
    assert storage.list() == ["a"]
    storage.remove_staging(".staging")
    storage.remove_staging(".staging")
    with pytest.raises(FileNotFoundError):
        storage.put("b", [b"b"], staging=".staging")
    assert storage.list() == ["a"]
    assert [path.name for path in Path(storage.root).iterdir()] == ["a"]


def test_a_staging_folder_is_removed_with_what_is_in_it(storage: LocalStorage) -> None:
    storage.make_staging(".staging")
    storage.put(".staging/half", [b"x"])
    storage.remove_staging(".staging")
    assert list(Path(storage.root).iterdir()) == []


def test_replace_needs_what_was_expected(storage: LocalStorage) -> None:
    assert not storage.replace("a", b"1", expected=b"0")
    assert storage.replace("a", b"1", expected=None)
    assert not storage.replace("a", b"2", expected=None)
    assert not storage.replace("a", b"2", expected=b"0")
    assert storage.replace("a", b"2", expected=b"1")
    assert storage.read("a") == b"2"
    assert storage.list() == ["a"]


def test_of_replacements_at_once_exactly_one_wins(storage: LocalStorage) -> None:
    storage.put("a", [b"0"])
    start, won = threading.Barrier(8), []

    def replace(data: bytes) -> None:
        start.wait()
        if storage.replace("a", data, expected=b"0"):
            won.append(data)

    threads = [threading.Thread(target=replace, args=(bytes([65 + i]),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [storage.read("a")] == won


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError):
        LocalStorage(str(tmp_path / "file")).list()


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "file://localhost"])
def test_a_path_is_a_folder_or_a_file_url(prefix: str, tmp_path: Path) -> None:
    assert open_storage(f"{prefix}{tmp_path}").root == str(tmp_path)


def test_a_path_may_be_relative_or_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        open_storage("a/../b").root == open_storage("~/b").root == open_storage(Path("b")).root == str(tmp_path / "b")
    )


BACKENDLESS = [
    ("s3://bucket/x", "expected a folder"),
    ("hdfs://x", "expected a folder"),
    ("://", "expected a folder"),
    ("dbfs:/x", "use its mounted folder, /x or /dbfs/"),
    ("dbfs:///Volumes/x", "use its mounted folder, /Volumes/x or /dbfs/"),
    ("s3:/bucket/x", "lost a slash .* write './s3:/bucket/x'"),
    ("S3A:/bucket", "lost a slash"),
    ("az+x.y-z:/b", "lost a slash"),
    (Path("gs://bucket/x"), "lost a slash"),
    ("file://server/x", "a folder of the machine 'server'; .* file:///FOLDER"),
    ("file://localhost", "a folder of the machine 'localhost'; .* file:///FOLDER"),
    ("file://x", "a folder of the machine 'x'"),
]


@pytest.mark.parametrize(("path", "message"), BACKENDLESS)
def test_a_path_without_a_backend_is_refused(
    path: str | Path, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"no storage backend for '{re.escape(str(path))}'.*{message}"):
        open_storage(path)


@pytest.mark.parametrize("path", ["./s3:/x", "C:/x", "a:b", "a/b:/c", "1s:/x", "s3:"])
def test_a_path_with_a_colon_may_be_a_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage(path).root == str(tmp_path / path)


def test_a_folder_that_is_there_may_look_like_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s3:/x").mkdir(parents=True)
    assert open_storage("s3:/x").root == str(tmp_path / "s3:" / "x")


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ValueError, match="found an empty text"):
        open_storage("")
