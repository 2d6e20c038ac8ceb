"""A data set's folder on a file system."""

import errno
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mds_core import FormatError
from mds_core.storage import open_storage
from mds_core.storage.local import LocalStorage


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "data"))


def size(storage: LocalStorage, name: str) -> int | None:
    info = storage.info(name)
    return None if info is None else info.size


def test_what_is_put_is_read_listed_and_deleted(storage: LocalStorage) -> None:
    assert (storage.list(), storage.read("a"), size(storage, "a")) == ([], None, None)
    storage.put("a", [b"one", memoryview(b"two"), bytearray(b"")])
    storage.put("sub/folder/b", [])
    assert sorted(storage.list()) == ["a", "sub/folder/b"]
    assert (storage.read("a"), size(storage, "a")) == (b"onetwo", 6)
    assert (storage.read("sub/folder/b"), size(storage, "sub/folder/b")) == (b"", 0)
    assert (storage.read("a/below"), size(storage, "a/below")) == (None, None)
    storage.delete("a")
    storage.delete("a")
    assert storage.list() == ["sub/folder/b"]


@pytest.fixture(params=["hard links", "no hard links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has hard links, and one that mounts an object store."""

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "no hard links here", source)

    if request.param == "no hard links":
        monkeypatch.setattr(os, "link", refuse)


def test_a_put_shows_a_file_in_one_step(storage: LocalStorage, links: None) -> None:
    class Parts(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield b"new"
            assert storage.read("a") is None
            yield b"er"

    storage.put("a", Parts())
    assert storage.read("a") == b"newer"
    assert storage.list() == ["a"]


@pytest.mark.parametrize("staging", [None, ".staging"])
def test_a_put_never_replaces_what_is_there(staging: str | None, storage: LocalStorage, links: None) -> None:
    root = Path(storage.root)
    storage.make_staging(".staging")
    storage.put("sub/file", [b"old"])
    (root / "sub" / "folder").mkdir()
    (root / "sub" / "link").symlink_to(root / "nowhere")
    for name in ("file", "folder", "link"):
        with pytest.raises(FileExistsError, match=rf"can't store .*/sub/{name}: there is a file .* another writer"):
            storage.put(f"sub/{name}", [b"new"], staging)
    assert storage.read("sub/file") == b"old"
    assert sorted(storage.list()) == ["sub/file", "sub/link"]


def test_of_puts_at_once_exactly_one_wins(storage: LocalStorage, links: None) -> None:
    start, won = threading.Barrier(8), []

    def put(data: bytes) -> None:
        start.wait()
        try:
            storage.put("a", [data])
        except FileExistsError:
            return
        won.append(data)

    run_at_once(put)
    assert [storage.read("a")] == won
    assert storage.list() == ["a"]


def test_a_put_that_fails_leaves_nothing(storage: LocalStorage) -> None:
    class Parts(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield b"half"
            raise OSError("the disk is full")

    storage.put("a", [b"old"])
    for name in ("a", "b"):
        with pytest.raises(OSError, match="the disk is full"):
            storage.put(name, Parts())
    assert storage.list() == ["a"]
    assert storage.read("a") == b"old"


def test_a_put_fails_once_its_staging_folder_is_gone(storage: LocalStorage, links: None) -> None:
    storage.make_staging(".staging")
    storage.make_staging(".staging")
    storage.put("a", [b"a"], staging=".staging")
    assert storage.list() == ["a"]
    storage.remove_staging(".staging")
    storage.remove_staging(".staging")
    with pytest.raises(FileNotFoundError):
        storage.put("b", [b"b"], staging=".staging")

    class Aborted(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield b"half"
            storage.remove_staging(".staging")

    storage.make_staging(".staging")
    with pytest.raises(FileNotFoundError):
        storage.put("b", Aborted(), staging=".staging")
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

    run_at_once(replace)
    assert [storage.read("a")] == won


def run_at_once(act: Callable[[bytes], None]) -> None:
    threads = [threading.Thread(target=act, args=(bytes([65 + i]),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# What is no file of the data set


@pytest.mark.parametrize("target", ["..", "../outside", "/", "sub/../../outside"])
def test_a_symlink_that_leads_out_of_the_data_set_is_not_followed(
    target: str, storage: LocalStorage, tmp_path: Path
) -> None:
    storage.put("sub/own", [b"own"])
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("mine")
    (tmp_path / "precious").write_text("mine")
    (Path(storage.root) / "link").symlink_to(target, target_is_directory=True)
    for use in (
        storage.read, storage.info, storage.open, storage.delete, lambda name: storage.put(name, [b""]),
        lambda name: storage.replace(name, b"", expected=None),
    ):  # fmt: skip
        for name in ("link/precious", "link/new/file"):
            message = rf"/link/\S+: expected a file inside of the data set {storage.root}, but \S+ leads to /"
            with pytest.raises(FormatError, match=message):
                use(name)
    assert (tmp_path / "outside" / "precious").read_text() == (tmp_path / "precious").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "outside", "precious"]


def test_symlinks_within_the_data_set_and_to_it_are_followed(storage: LocalStorage, tmp_path: Path) -> None:
    storage.put("sub/a", [b"a"])
    (Path(storage.root) / "link").symlink_to("sub", target_is_directory=True)
    (tmp_path / "alias").symlink_to(storage.root, target_is_directory=True)
    alias = open_storage(tmp_path / "alias")
    assert storage.read("link/a") == alias.read("sub/a") == alias.read("link/a") == b"a"
    alias.put("link/b", [b"b"])
    storage.delete("link/a")
    assert storage.list() == ["sub/b"]


def test_a_file_that_is_a_symlink_is_read_and_deleted_as_itself(storage: LocalStorage, tmp_path: Path) -> None:
    storage.put("other", [b""])
    (tmp_path / "kept").write_text("mine")
    (Path(storage.root) / "a").symlink_to(tmp_path / "kept")
    assert storage.read("a") == b"mine"
    storage.delete("a")
    assert (storage.list(), (tmp_path / "kept").read_text()) == (["other"], "mine")


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_refused_at_once(storage: LocalStorage) -> None:
    storage.put("a", [b""])
    root = Path(storage.root)
    os.mkfifo(root / "fifo")
    (root / "device").symlink_to("/dev/zero")
    (root / "folder").mkdir()
    for name in ("fifo", "device"):
        for use in (storage.read, storage.open):
            with pytest.raises(FormatError, match=rf"/{name}: expected a file, found a FIFO or a device"):
                use(name)
    with pytest.raises(IsADirectoryError, match="folder"):
        storage.read("folder")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(root / "socket"))
        with pytest.raises(OSError, match="socket"):
            storage.read("socket")


# Paths


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
    ("ftp://bucket/x", "expected a folder"),
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
