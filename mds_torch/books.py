"""The books of a cache: what all processes know of its shards, and a lock for each shard.

One small file, mapped by every process that uses the cache. Locks are on its bytes, a byte a shard (fcntl(2), open file
description locks): a million shards need no million files, a process that holds hundreds needs one descriptor, and the
kernel frees what a process held when it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

# Of each shard: bytes on disk, or reserved for it; when it was last used, when it was fetched ahead of its use (0: it
# was used since), both in ns; how often it was evicted; whether it is being fetched. The last row is about all shards.
_ROW = np.dtype([(name, np.int64) for name in ("held", "used", "ahead", "evicted", "fetching")])
T = TypeVar("T")

# Bytes to lock: a shard's own for who fetches it, another for who reads it, those of the books, and of who uses them.
_READ = 1 << 40
_BOOKS = 1 << 41
_ALIVE = _BOOKS + 1


def books_size(shards: int) -> int:
    """Give how many bytes the books of so many shards have."""
    return (shards + 1) * _ROW.itemsize


_guard = threading.RLock()


def guard() -> threading.RLock:
    """Give the lock of this process's threads on what they share of caches."""
    return _guard


def _renew_guard() -> None:
    global _guard
    _guard = threading.RLock()  # a thread that held it at a fork is not there any more


os.register_at_fork(after_in_child=_renew_guard)


class Books:
    """The rows of a cache's shards, as arrays int64[n]: `held`, `used`, `ahead`, `evicted` and `fetching`.

    Args:
        path: their file; it is made if there is none.
        shards: how many there are.

    Raises:
        OSError: the file system has no locks.
    """

    def __init__(self, path: str, shards: int):
        self.path = path
        self.shards = shards
        self._holding: tuple[int, BinaryIO] | None = None
        self._open()

    def _open(self) -> None:
        self.size = size = books_size(self.shards)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not os.fstat(descriptor).st_size:
                os.ftruncate(descriptor, size)  # to zeros; if others do it, too, it is the same
            found = os.fstat(descriptor)
            if found.st_size != size:
                raise OSError(f"{self.path}: expected {size} bytes, found {found.st_size}; delete the folder around it")
            rows = np.ndarray(self.shards + 1, _ROW, mmap.mmap(descriptor, size))
        finally:
            os.close(descriptor)
        self._inode = found.st_ino
        self.held: NDArray[np.int64] = rows["held"][:-1]
        self.used: NDArray[np.int64] = rows["used"][:-1]
        self.ahead: NDArray[np.int64] = rows["ahead"][:-1]
        self.evicted: NDArray[np.int64] = rows["evicted"][:-1]
        self.fetching: NDArray[np.int64] = rows["fetching"][:-1]
        # When a process last found no room.
        self.pressed: NDArray[np.int64] = rows["ahead"][-1:]
        # The process is known to use the cache as long as it lives.
        self._holding = None
        self._lock(self._holder(), _ALIVE, fcntl.F_RDLCK)

    def renew(self) -> None:
        """Open the books again if others have deleted the file, as who empties the folder does."""
        with guard():
            try:
                there = os.stat(self.path).st_ino == self._inode
            except FileNotFoundError:
                there = False
            if not there:
                self._open()

    def _holder(self) -> int:
        """Give this process's descriptor for the shards that it holds; a fork's child needs its own."""
        if self._holding is None or self._holding[0] != os.getpid():
            self._holding = os.getpid(), _opened(self.path)
        return self._holding[1].fileno()

    def _lock(self, descriptor: int, byte: int, kind: int) -> bool:
        """Lock a byte, or unlock it, without waiting; tell whether it could be."""
        try:
            _set_lock(descriptor, byte, kind)
        except BlockingIOError:
            return False
        except OSError as error:
            raise OSError(
                f"{self.path}: its file system has no locks ({error}); choose a local on a disk of this machine"
            ) from error
        return True

    def try_own(self, shard: int) -> BinaryIO | None:
        """Take a shard, to fetch or to delete it, if no other thread or process has it.

        Returns:
            An open file: closing it gives the shard back.
        """
        return self._try(shard)

    def _try(self, byte: int) -> BinaryIO | None:
        # A file of its own for each lock: threads exclude each other, too, and what is taken stays so when the books
        # are opened again.
        file = _opened(self.path)
        try:
            if self._lock(file.fileno(), byte, fcntl.F_WRLCK):
                return file
        except BaseException:
            file.close()
            raise
        file.close()
        return None

    @contextlib.contextmanager
    def own(self, shard: int, patience: float, what: str) -> Iterator[None]:
        """Take a shard, to fetch or to delete it, when others have given it back.

        Raises:
            TimeoutError: they have not, for `patience` seconds; it says what they hold.
        """
        with wait_for(lambda: self.try_own(shard), patience, what):
            yield

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the books, to change what is held."""
        with wait_for(lambda: self._try(_BOOKS), 60, f"the lock of {self.path}"):
            yield

    def try_hold(self, shard: int) -> bool:
        """Keep a shard from being evicted as long as this process reads it; unless that happens just now."""
        return self._lock(self._holder(), _READ + shard, fcntl.F_RDLCK)

    def let_go(self, shard: int) -> None:
        """Give back what `try_hold` took."""
        self._lock(self._holder(), _READ + shard, fcntl.F_UNLCK)

    def try_keep_from_readers(self, owned: BinaryIO, shard: int) -> bool:
        """Keep processes from beginning to read a shard that is owned, if none does, until it is given back."""
        return self._lock(owned.fileno(), _READ + shard, fcntl.F_WRLCK)


def is_used(path: str) -> bool:
    """Tell whether any process uses the cache of these books."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(path, "r+b", buffering=0) as file:
        try:
            _set_lock(file.fileno(), _ALIVE, fcntl.F_WRLCK)
        except OSError:
            return True
    return False


def _set_lock(descriptor: int, byte: int, kind: int) -> None:
    # A struct flock, whose lock is the open file's and not the process's.
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhxxxxqqixxxx", kind, os.SEEK_SET, byte, 1, 0))


def _opened(path: str) -> BinaryIO:
    # A file object is closed, and its locks end, with who has it.
    file: Any = open(path, "r+b", buffering=0)  # noqa: SIM115
    opened: BinaryIO = file
    return opened


def wait_for(ask: Callable[[], T | None], patience: float, what: str) -> T:
    """Ask again and again, at least every 10 ms, until the answer is one.

    Raises:
        TimeoutError: it was none for `patience` seconds.
    """
    deadline, pause = time.monotonic() + patience, 0.0005
    while not (found := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"waited {patience:.0f} s for {what}, which others hold or fetch; if a process of theirs is stopped, "
                "end it"
            )
        time.sleep(pause)
        pause = min(0.01, 2 * pause)
    return found
