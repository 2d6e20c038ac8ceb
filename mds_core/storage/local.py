"""Data sets in a folder of a file system: a disk, a network share, a mounted volume."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from mds_core.errors import FormatError
from mds_core.storage.info import Info, Version

if TYPE_CHECKING:
    from typing_extensions import Buffer


class LocalStorage:
    """A folder. See `mds_core.storage.Storage` for what each method does."""

    atomic_replace = True

    def __init__(self, root: str):
        if not root:
            raise ValueError("expected the path of a data set's folder, found an empty text")
        self.root = os.path.abspath(os.path.expanduser(root))

    def describe(self, name: str) -> str:
        """Give the full path of a file, for messages."""
        return os.path.join(self.root, name)

    def _path(self, name: str) -> str:
        """Give the full path of a file, which every access goes through: no symlink leads out of the data set.

        The root may be a symlink, and so may a file itself: it is read through the link, and deleted as a link.
        """
        path = self.describe(name)
        folder = os.path.dirname(path)
        if "/" in name:
            root, real = os.path.realpath(self.root), os.path.realpath(folder)
            if os.path.commonpath([root, real]) != root:
                raise FormatError(
                    f"{path}: expected a file inside of the data set {self.root}, but {folder} leads to {real}; put "
                    "the files themselves into the data set's folder, or remove the symlink"
                )
        return path

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            FileNotFoundError: there is none.
            FormatError: it is a FIFO or a device, or outside of the data set.
        """
        path = self._path(name)
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller closes it
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise FormatError(f"{path}: expected a file, found a FIFO or a device; write the data set again")
        return file

    def read(self, name: str) -> bytes | None:
        """Read a whole file; None if there is none."""
        try:
            with self.open(name) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_range(
        self, name: str, start: int, stop: int | None, deadline: float | None = None
    ) -> tuple[bytes, Version]:
        """Read a file's bytes from start to stop, or to its end; give them, and its version.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with self.open(name) as file:
            file.seek(start)
            return file.read(-1 if stop is None else stop - start), _version(os.fstat(file.fileno()))

    def fetch(self, name: str, file: BinaryIO, deadline: float | None = None) -> Version:
        """Write all of a file's bytes to an open one; give its version.

        Raises:
            FileNotFoundError: there is none.
            TimeoutError: the deadline, on `time.monotonic`'s clock, has passed: a network share may be slow.
        """
        with self.open(name) as source:
            while chunk := source.read(1 << 24):
                file.write(chunk)
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"{self.describe(name)}: out of time after {file.tell()} bytes")
            return _version(os.fstat(source.fileno()))

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""
        try:
            found = os.stat(self._path(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Info(found.st_size, _version(found))

    def list(self) -> list[str]:
        """List the names of all files, at any depth; empty if the folder is not there.

        Raises:
            OSError: it is not a folder, or one that can't be read.
        """

        def fail(error: OSError) -> None:  # `os.walk` passes over what it can't list, as if it were empty
            if not isinstance(error, FileNotFoundError):
                raise error

        return [
            os.path.relpath(os.path.join(folder, file), self.root)
            for folder, _, files in os.walk(self.root, onerror=fail)
            for file in files
        ]

    def put(self, name: str, parts: Sequence[Buffer], staging: str | None = None) -> None:
        """Store a new file made of parts, visible only when it is whole.

        Raises:
            FileExistsError: there is a file of this name.
            FileNotFoundError: the staging folder is gone.
            OSError: the disk is full, or what is stored has another size than what was written.
        """
        self._store(name, parts, _move_to_new, staging)

    def _store(
        self, name: str, parts: Sequence[Buffer], move: Callable[[str, str], None], staging: str | None = None
    ) -> None:
        path = self._path(name)
        folder = os.path.dirname(path)
        if staging is None:
            os.makedirs(folder, exist_ok=True)
        else:
            folder = self.describe(staging)
        temporary = os.path.join(folder, f".{uuid.uuid4().hex}.tmp")
        try:
            with open(temporary, "xb", buffering=0) as file:
                expected = 0
                for part in parts:
                    view = memoryview(part).cast("B")
                    expected += view.nbytes
                    while view.nbytes:
                        view = view[file.write(view) :]
            # Mounted object stores have been seen to keep an empty file without an error.
            found = os.stat(temporary).st_size
            if found != expected:
                raise OSError(f"{path}: wrote {expected} bytes, but the file system keeps {found}; write it again")
            move(temporary, path)
        except FileNotFoundError:
            if staging is None:
                raise
            raise FileNotFoundError(
                f"can't store {path}: the folder {folder}, made when the write began, is not there: either the "
                "write was aborted, or the path is a disk of each machine where it must be one that all share"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace a file in one atomic step if it still is what was expected (None: not there); tell whether."""
        folder = os.path.dirname(self._path(name))
        os.makedirs(folder, exist_ok=True)
        with _lock(folder):
            if self.read(name) != expected:
                return False
            self._store(name, [data], os.rename)
        return True

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def make_staging(self, staging: str) -> None:
        """Make a staging folder for `put`."""
        os.makedirs(self.describe(staging), exist_ok=True)

    def remove_staging(self, staging: str) -> None:
        """Remove a staging folder and what is in it; it is no error if there is none."""
        # A task may add a file between the listing and the removal of the folder: try again, but not for ever.
        for _ in range(20):
            shutil.rmtree(self.describe(staging), ignore_errors=True)
            if not os.path.isdir(self.describe(staging)):
                return
            time.sleep(0.05)


def _version(found: os.stat_result) -> Version:
    return Version(f"{found.st_ino} {found.st_mtime_ns}")  # anybody can set the time


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting, as opening a FIFO would for one who writes to it; regular files are read as ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _move_to_new(source: str, target: str) -> None:
    """Move a file to a new name, in one step; never over another file, as `os.rename` would.

    The source may stay, as a second name of the file.
    """
    try:
        try:
            os.link(source, target)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError:  # a file system without hard links, as many that mount object stores: take the name first
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            try:
                os.rename(source, target)
            except BaseException:
                os.unlink(target)
                raise
    except FileExistsError:
        raise FileExistsError(
            f"can't store {target}: there is a file of this name, so that another writer seems to write to this "
            "folder, too; let one end first, or choose another folder"
        ) from None


@contextlib.contextmanager
def _lock(folder: str) -> Iterator[None]:
    """Hold the folder's lock, which leaves no file behind and which the kernel frees if we die.

    Some network file systems have no locks: there, two writers that publish in the same instant can lose one.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
