"""Data sets on any other file system that fsspec knows: `hdfs://`, `hf://`, …"""

from __future__ import annotations

import contextlib
import json
import posixpath
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import fsspec
from fsspec.implementations.arrow import ArrowFSWrapper

from mds_core.storage.info import Info, Version
from mds_core.storage.remote import Parts, RemoteStorage, client_of

# Pieces in which a file is fetched: each is a request, after which some file systems have read ahead for nothing.
_PIECE = 1 << 25
# What file systems say of a file's contents and time, whichever they have.
_VERSIONS = (
    "ETag", "etag", "blob_id", "xet_hash", "checksum", "generation", "md5Hash", "Content-MD5", "Digest", "sha", "mtime",
    "modified", "modify", "LastModified", "last_modified", "Last-Modified", "modificationTime", "updated",
    "uploaded_at", "created", "ino",
)  # fmt: skip
_HADOOP = (
    "; hdfs:// runs Hadoop's own client: each process needs Java (JAVA_HOME), Hadoop's libhdfs (HADOOP_HOME, or "
    "ARROW_LIBHDFS_DIR for its folder) and CLASSPATH, as `hadoop classpath --glob` prints it"
)


def _make_filesystem(scheme: str, arguments: str) -> Any:
    # An instance of fsspec's own cache may be one that was made before a fork, or with stale listings.
    return fsspec.get_filesystem_class(scheme)(**json.loads(arguments), skip_instance_cache=True)


class FilesystemStorage(RemoteStorage):
    """A folder of a file system that fsspec knows. See `mds_core.storage.Storage` for what each method does.

    All options go to the file system's constructor; what is JSON (`true`, `9000`, `{"a": "b"}`) as what it means,
    all else as text. The file system tries again what may pass and gives up on stalled servers, as it is made to.

    Where it moves files by itself, a new file is written under another name and moved to its own; else it is written
    at once, and it depends on the file system whether it is seen before it is whole. That there is none of its name
    is looked up before; the file system may look again as it writes. `replace` looks first, and writes then.
    """

    OPTIONS = None
    ERRORS = (FileExistsError,)
    atomic_replace = False

    def __init__(self, root: str, options: Mapping[str, str]):
        self._scheme = root.partition("://")[0].lower()
        try:
            kind = fsspec.get_filesystem_class(self._scheme or "no name")  # for which fsspec would take a disk
        except ValueError:
            raise ValueError(
                f"no storage backend for {root!r}; expected a folder on a disk or a mounted file system, "
                f"file://FOLDER, or a path of s3:// or another store, and fsspec knows no {self._scheme}:// either; "
                "pip install the package that brings it to fsspec, if there is one"
            ) from None
        except ImportError as error:
            raise ImportError(f"{root} needs another library than fsspec; pip install it: {error}") from None
        super().__init__(root, "", options)
        self._base = kind._strip_protocol(root).rstrip("/")
        # Some take host, port and user from the path.
        given = {**kind._get_kwargs_from_urls(root), **{name: _meaning(text) for name, text in options.items()}}
        self._arguments = json.dumps(given, sort_keys=True)

    @property
    def _fs(self) -> Any:
        return client_of(_make_filesystem, (self._scheme, self._arguments))

    def _key(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _status(self, error: Exception) -> int | None:
        return 409  # the one that `put` waits for

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""
        try:
            with self._errors("look at", name):
                self._fs.invalidate_cache()
                found = self._fs.info(self._key(name))
        except FileNotFoundError:
            return None
        return None if found["type"] == "directory" else Info(found["size"], _version(found))

    def list(self) -> list[str]:
        """List the names of all files, at any depth."""
        try:
            with self._errors("list", ""):
                self._fs.invalidate_cache()
                self._fs.ls(self._key(""), detail=False)  # `find` passes over what it can't list, as if it were empty
                paths = self._fs.find(self._key(""))
                return [self._fs._strip_protocol(path)[len(self._base) :].lstrip("/") for path in paths]
        except FileNotFoundError:
            return []

    def _get(
        self, name: str, start: int, stop: int | None, deadline: float | None = None
    ) -> tuple[bytes, Version] | None:
        try:
            with self._errors("read", name):
                self._fs.invalidate_cache()
                found = self._fs.info(self._key(name))
                if found["type"] == "directory":
                    return None
                return self._bytes(name, start, stop), _version(found)
        except FileNotFoundError:
            return None

    def _bytes(self, name: str, start: int, stop: int | None) -> bytes:
        # Arrow's, without it, opens a stream to read from a file's start, and fails to tell how far it is.
        more = {"seekable": True} if isinstance(self._fs, ArrowFSWrapper) else {}
        data: bytes = self._fs.cat_file(self._key(name), start or None, stop, **more)
        return data

    def fetch(self, name: str, file: BinaryIO, deadline: float | None = None) -> Version:
        """Write all of a file's bytes to an open one, once, so that who calls it may try again; give its version.

        Raises:
            FileNotFoundError: there is none.
            TimeoutError: the deadline, on `time.monotonic`'s clock, has passed.
            OSError: it could not be read.
        """
        with self._errors("read", name):
            found = self._fs.info(self._key(name))
            size = found["size"]
        done = 0
        while done < size:
            with self._errors("read", name):
                piece = self._bytes(name, done, min(done + _PIECE, size))
            if not piece:
                raise OSError(f"{self.describe(name)}: expected {size} bytes, found {done}")
            file.write(piece)
            done += len(piece)
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{self.describe(name)}: out of time after {done} bytes")
        return _version(found)

    def _create(self, name: str, body: Parts) -> None:
        if self._fs.exists(self._key(name)):
            raise FileExistsError
        self._store(name, body, new=True)

    def _store(self, name: str, body: Parts, new: bool) -> None:
        fs, path = self._fs, self._key(name)
        if type(fs).mv is fsspec.AbstractFileSystem.mv:  # which copies, and deletes then
            if new:
                # Not all know the mode.
                with contextlib.suppress(NotImplementedError, TypeError, ValueError):
                    fs.pipe_file(path, body.read(), mode="create")
                    return
                body.seek(0)
            fs.pipe_file(path, body.read())
            return
        # The name begins as the file's own, so that who cleans up after a writer that was killed finds it.
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        fs.makedirs(posixpath.dirname(path), exist_ok=True)
        try:
            with fs.open(temporary, "wb") as file:
                while piece := body.read(_PIECE):
                    file.write(piece)
            fs.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):
                fs.rm_file(temporary)
            raise

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace a file if it still is what was expected (None: not there); tell whether.

        Of two replacements at once, the last one stands, and the other is told False if it looks late enough.
        """
        if self.read(name) != expected:
            return False
        with self._errors("write", name):
            self._store(name, Parts([data]), new=False)
        found = self.read(name)
        if found == expected != data:
            raise OSError(f"{self.describe(name)}: the file system did not replace it, and says nothing of why")
        return found == data

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        with contextlib.suppress(FileNotFoundError), self._errors("delete", name):
            self._fs.rm_file(self._key(name))

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        """Let errors say what happened where: libraries raise all kinds of them."""
        try:
            yield
        except FileExistsError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"{self.describe(name)}: not there ({error})") from error
        except Exception as error:
            kind = PermissionError if isinstance(error, PermissionError) else OSError
            said = (str(error) or type(error).__name__).splitlines()[0]
            text = self._without_secrets(said)
            help = _HADOOP if self._scheme == "hdfs" and "load lib" in text else ""
            raise kind(f"{self.describe(name)}: could not {what} it: {text}{help}") from (
                error if text == said else None
            )


def _meaning(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _version(found: Mapping[str, Any]) -> Version:
    return Version(" ".join(str(found[key]) for key in _VERSIONS if found.get(key) is not None) or str(found["size"]))
