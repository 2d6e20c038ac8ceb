"""File systems that fsspec knows: hf:// over a small Hub, those that are registered, and what is not there."""

import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations

from mds_core import MDSReader, MDSWriter
from mds_core.storage import open_storage
from tests.mds_core.storage.servers import Arrow


class Hub(BaseHTTPRequestHandler):
    """What HfFileSystem asks of the Hub to list and read a data set's files in `main`."""

    folder: Path
    asked: list[str]
    protocol_version = "HTTP/1.1"
    token = ""

    def entry(self, path: Path) -> dict[str, object]:
        name = path.relative_to(self.folder).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
        data = path.read_bytes()
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    def do_GET(self) -> None:
        path = urllib.parse.unquote(self.path.partition("?")[0])
        self.asked.append(f"{self.path} {self.headers.get('Range', '')}")
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            return self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if path in ("/api/datasets/org/name", "/api/datasets/org/name/revision/main"):
            return self.answer(200, json.dumps({"id": "org/name", "sha": "1" * 40, "siblings": []}).encode())
        tree = "/api/datasets/org/name/tree/main"
        if path.startswith(tree):
            folder = self.folder / path.removeprefix(tree).strip("/")
            if not folder.is_dir():
                return self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            found = folder.rglob("*") if "recursive=true" in self.path.lower() else folder.iterdir()
            return self.answer(200, json.dumps([self.entry(one) for one in found]).encode())
        file = self.folder / path.removeprefix("/datasets/org/name/resolve/main/")
        if not path.startswith("/datasets/org/name/resolve/main/") or not file.is_file():
            known = path.startswith("/datasets/org/name/")
            return self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound" if known else "RepoNotFound"})
        data = file.read_bytes()
        some = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not some:
            return self.answer(200, data)
        start, stop = int(some[1]), min(int(some[2] or len(data)) + 1, len(data))
        return self.answer(206, data[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, type[Hub]]]:
    """A Hub with a data set of 100 samples in the folder `train` of datasets/org/name."""
    kind = type("Hub", (Hub,), {"folder": tmp_path / "hub", "asked": []})
    write(str(tmp_path / "hub" / "train"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", kind
    server.shutdown()
    server.server_close()


def write(path: str) -> None:
    with MDSWriter(out=path, columns={"n": "int64", "s": "str"}, size_limit=500, hashes=["sha1"]) as writer:
        for n in range(100):
            writer.write({"n": n, "s": "x" * (n % 7)})


def numbers(reader: MDSReader) -> list[int]:
    return [int(sample["n"]) for sample in reader]


def test_a_data_set_on_the_hub_is_read(hub: tuple[str, type[Hub]]) -> None:
    reader = MDSReader("hf://datasets/org/name/train", validate_hash="sha1", storage_options={"endpoint": hub[0]})
    assert len(reader.shards) > 1
    assert numbers(reader) == list(range(100))
    paths = {path.partition("?")[0].partition(" ")[0] for path in hub[1].asked if "/resolve/" in path}
    names = ["index.json", *(shard.stored.basename for shard in reader.shards)]
    assert paths == {f"/datasets/org/name/resolve/main/train/{name}" for name in names}


def test_files_of_the_hub_are_listed_looked_at_and_read_in_part(hub: tuple[str, type[Hub]]) -> None:
    root = open_storage("hf://datasets/org/name", {"endpoint": hub[0]})
    storage = open_storage("hf://datasets/org/name/train", {"endpoint": hub[0]})
    files = sorted(os.listdir(hub[1].folder / "train"))
    assert sorted(storage.list()) == files
    assert sorted(root.list()) == [f"train/{name}" for name in files]
    index = hub[1].folder / "train" / "index.json"
    info = storage.info("index.json")
    assert info is not None
    assert info.size == index.stat().st_size
    assert storage.read_range("index.json", 1, 10) == (index.read_bytes()[1:10], info.version)
    assert (storage.info("no"), storage.read("no"), storage.info("no/no"), root.info("train")) == (None,) * 4
    index.write_bytes(b"new")
    assert storage.read("index.json") == b"new"
    changed = storage.info("index.json")
    assert changed is not None
    assert changed.version != info.version


def test_what_the_hub_does_not_have_or_show_is_named(hub: tuple[str, type[Hub]]) -> None:
    with pytest.raises(FileNotFoundError, match="no MDS data set at hf://datasets/org/name/test"):
        MDSReader("hf://datasets/org/name/test", storage_options={"endpoint": hub[0]})
    with pytest.raises(FileNotFoundError, match="no MDS data set at hf://datasets/org/other"):
        MDSReader("hf://datasets/org/other", storage_options={"endpoint": hub[0]})
    hub[1].token = "hf_a-made-up-token"
    options = {"endpoint": hub[0], "token": "hf_a-made-up-token"}
    assert len(MDSReader("hf://datasets/org/name/train", storage_options=options)) == 100
    assert "made-up" not in repr(open_storage("hf://datasets/org/name/train", options))


TRAIN = """
import sys
from mds_torch import StreamingDataLoader, StreamingDataset

dataset = StreamingDataset(remote=sys.argv[1], split="train", shuffle=True, batch_size=8)
print(sorted(i for batch in StreamingDataLoader(dataset, batch_size=8, num_workers=2) for i in batch["n"].tolist()))
"""


def test_training_reads_from_the_hub_that_the_environment_names(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py"), "hf://datasets/org/name"],
        env={**os.environ, "HF_ENDPOINT": hub[0]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == list(range(100))


def read_in_child(path: str) -> None:
    assert numbers(MDSReader(path)) == list(range(100))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_each_process_has_a_file_system_of_its_own(start: str, tmp_path: Path) -> None:
    fsspec.register_implementation("arrow", Arrow, clobber=True)
    path = f"{'arrow' if start == 'fork' else 'local'}://{tmp_path}/data"
    write(path)
    context = multiprocessing.get_context(start)
    children = [context.Process(target=read_in_child, args=(path,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(100)
    assert [child.exitcode for child in children] == [0, 0]


class Strict(MemoryFileSystem):
    """A file system that a user registers: of a store of its own, with options of some types."""

    protocol = "strict"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, user: str = "", port: int = 0, safe: bool = False, more: object = None, **cached: bool):
        if set(cached) - {"skip_instance_cache"}:
            raise TypeError(f"unexpected keyword argument {sorted(cached)}")
        super().__init__()
        self.pseudo_dirs.append(f"/{user} {port!r} {safe!r} {more!r}")

    def pipe_file(self, path: str, value: bytes) -> None:  # type: ignore[override]
        """Write a file; without a mode, as older file systems have it."""
        super().pipe_file(path, value)


@pytest.fixture
def strict() -> Iterator[type[Strict]]:
    fsspec.register_implementation("strict", Strict, clobber=True)
    yield Strict
    Strict.store.clear()
    Strict.pseudo_dirs[:] = [""]


def test_options_go_to_a_file_system_that_was_registered(strict: type[Strict]) -> None:
    options = {"user": "me", "port": "9000", "safe": "true", "more": '{"a": "b"}'}
    with MDSWriter(out="strict://x/data", columns={"n": "int64"}, storage_options=options) as writer:
        writer.write({"n": 7})
    assert "/me 9000 True {'a': 'b'}" in strict.pseudo_dirs
    assert [name.removeprefix("strict:/") for name in sorted(strict.store)] == [
        "/x/data/index.json",
        "/x/data/shard.00000.mds",
    ]
    assert numbers(MDSReader("strict://x/data", storage_options=options)) == [7]
    assert not MemoryFileSystem().exists("/x/data")
    with pytest.raises(FileExistsError):
        MDSWriter(out="strict://x/data", columns={"n": "int64"}, storage_options=options)


def test_what_a_file_system_raises_names_the_path(strict: type[Strict], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"strict://x/a: could not read it: .*unexpected keyword argument \['usr'\]"):
        open_storage("strict://x", {"usr": "me"}).read("a")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError("not yours")

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError

    storage = open_storage("strict://x")
    monkeypatch.setattr(strict, "pipe_file", refuse)
    with pytest.raises(PermissionError, match="strict://x/a: could not write it: not yours"):
        storage.put("a", [b"data"])
    monkeypatch.setattr(strict, "ls", fail)
    with pytest.raises(OSError, match="strict://x: could not list it: RuntimeError"):
        storage.list()


def test_a_move_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("arrow", Arrow, clobber=True)

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("the namenode is in safe mode")

    monkeypatch.setattr(Arrow, "mv", fail)
    with pytest.raises(OSError, match=r"arrow://.*/data/a: could not write it: the namenode is in safe mode"):
        open_storage(f"arrow://{tmp_path}/data").put("a", [b"data"])
    assert list((tmp_path / "data").iterdir()) == []


def test_a_file_system_that_does_not_replace_is_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("arrow", Arrow, clobber=True)
    storage = open_storage(f"arrow://{tmp_path}/data")
    assert storage.replace("a", b"1", None)
    monkeypatch.setattr(Arrow, "mv", lambda self, source, target: self.rm_file(source))
    with pytest.raises(OSError, match="a: the file system did not replace it"):
        storage.replace("a", b"2", b"1")


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no storage backend for 'nosuch://x'.*fsspec knows no nosuch://"):
        open_storage("nosuch://x")


def test_a_package_that_fsspec_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"class": "no_such_package.FileSystem", "err": "install no-such-package"}
    monkeypatch.setitem(known_implementations, "absent", known)
    with pytest.raises(ImportError, match=r"absent://x needs another library than fsspec.*: install no-such-package"):
        open_storage("absent://x")


def test_a_password_in_a_path_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match=r"a path of sftp:// holds a password.*storage options") as caught:
        open_storage("sftp://me:made-up@host/x")
    assert "made-up" not in str(caught.value)


def test_hdfs_without_hadoop_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        OSError, match=r"hdfs://host:9000/x/index.json: could not read it: .*JAVA_HOME.*HADOOP_HOME.*CLASSPATH"
    ):
        MDSReader("hdfs://host:9000/x")


@pytest.mark.parametrize("path", ["memory://x", "nosuch://x"])
def test_without_fsspec_the_extra_is_named(path: str) -> None:
    code = """
import sys
sys.modules["fsspec"] = None
from mds_core.storage import open_storage
open_storage("/tmp")
try:
    open_storage(sys.argv[1])
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert f"{path} needs a library where it is none of s3://" in done.stdout
    assert "pip install 'mds-spark[fsspec]'" in done.stdout
