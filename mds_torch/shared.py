"""Memory that a process shares with the workers that it starts: without a name, so that nothing stays behind."""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray


class SharedArray:
    """An array, zeros at first, that travels to worker processes as the same memory.

    It reaches workers however they start: fork, spawn or forkserver. Any other copy, by pickle or deepcopy, is an
    array of its own.

    Args:
        shape: its shape.
        dtype: of its values.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.int64):
        dtype = np.dtype(dtype)
        self._open(_unnamed_file(max(1, math.prod(shape) * dtype.itemsize)), shape, dtype)

    def _open(self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._file = file
        self._threads = threading.RLock()
        self.array: NDArray[Any] = np.ndarray(shape, dtype, mmap.mmap(file.fileno(), 0))

    @contextlib.contextmanager
    def locked(self) -> Iterator[NDArray[Any]]:
        """Hold the array for oneself; a process that dies lets go of it."""
        with self._threads:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield self.array
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __getstate__(self) -> tuple[Any, ...]:
        layout = self.array.shape, self.array.dtype
        if get_spawning_popen() is None:
            return (*layout, self.array.tobytes(), None)
        return (*layout, None, reduction.DupFd(self._file.fileno()))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, values, descriptor = state
        if descriptor is None:
            SharedArray.__init__(self, shape, dtype)
            self.array[...] = np.frombuffer(values, dtype).reshape(shape)
        else:
            self._open(os.fdopen(descriptor.detach(), "r+b"), shape, dtype)


def _unnamed_file(size: int) -> BinaryIO:
    # Not in /dev/shm, of which containers often have 64 MB.
    memfd = hasattr(os, "memfd_create")
    file: Any = os.fdopen(os.memfd_create("mds"), "r+b") if memfd else tempfile.TemporaryFile()  # noqa: SIM115
    file.truncate(size)
    return file  # type: ignore[no-any-return]
