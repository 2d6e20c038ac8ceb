"""What object stores have in common: keys below a prefix, one client a process, checked puts, clear errors."""

from __future__ import annotations

import io
import os
import random
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from mds_core.storage.info import Info

if TYPE_CHECKING:
    from typing_extensions import Buffer

# How often a request is tried that may pass: connections that break, 429, 500, 502, 503, 504.
ATTEMPTS = 5
# A server that sends nothing for so long, in seconds, has stalled.
STALL = 20.0
# Pieces in which a file is fetched.
CHUNK = 1 << 20
# What a store answers when a condition of a write does not hold.
CHANGED = (409, 412)

# Options by name, as what can be compared.
Options = tuple[tuple[str, str], ...]

_clients: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def client_of(make: Callable[..., Any], options: Options, *others: Any) -> Any:
    """Give this process's client of a store, made when it is first asked for: connections do not survive a fork.

    Args:
        make: what makes it of the options.
        options: of the store.
        *others: what it also depends on: if that changes, there is another client.
    """
    key = (os.getpid(), make, options, *others)
    with _lock:
        if key not in _clients:
            _clients[key] = make(options)
        return _clients[key]


if hasattr(os, "register_at_fork"):

    def _renew_lock() -> None:
        global _lock
        _lock = threading.Lock()  # a thread that held it is not there any more

    os.register_at_fork(after_in_child=_renew_lock)


class RemoteStorage:
    """Files below a prefix of a store. See `mds_core.storage.Storage` for what each method does.

    Args:
        root: the data set's path, for messages.
        prefix: of the names in the store.
        options: of the store, by name; checked by `open_storage`.

    A store's module gives the class attributes, and `_status`, `_stream`, `_create`, `info`, `list`, `replace` and
    `delete`; all calls of its library stand in a `with self._errors(...)`.
    """

    # Names of the options that there are.
    OPTIONS: tuple[str, ...] = ()
    # Where its users keep credentials, as an advice.
    HELP = ""
    # How the names of variables begin that its library reads: who sets one in a notebook gets another client.
    ENVIRONMENT: tuple[str, ...] = ()
    # What its library raises.
    ERRORS: tuple[type[Exception], ...] = ()

    def __init__(self, root: str, prefix: str, options: Mapping[str, str]):
        self.root = root.rstrip("/")
        self._prefix = prefix.strip("/")
        self._options: Options = tuple(sorted(options.items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"  # options may hold secrets

    def describe(self, name: str) -> str:
        """Give the full path of a file, for messages."""
        return f"{self.root}/{name}" if name else self.root

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _client_of(self, make: Callable[..., Any]) -> Any:
        """Give this process's client, of the options and the environment, made by a function of the options."""
        variables = tuple(
            sorted((name, value) for name, value in os.environ.items() if name.startswith(self.ENVIRONMENT))
        )
        return client_of(make, self._options, variables)

    def _status(self, error: Exception) -> int | None:
        """Give the HTTP status of an error, 401 for credentials that are not there; None: there was no answer."""
        raise NotImplementedError

    def _stream(self, name: str, start: int, stop: int | None, timeout: float) -> tuple[Iterable[bytes], str]:
        """Ask for a file's bytes from start to stop, or to its end; give them piece by piece, and its version.

        A server that sends nothing for `timeout` seconds has stalled.
        """
        raise NotImplementedError

    def _create(self, name: str, body: Parts) -> None:
        """Store a new file; an error of status 409 or 412 if there is one."""
        raise NotImplementedError

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""
        raise NotImplementedError

    def read(self, name: str) -> bytes | None:
        """Read a whole file; None if there is none."""
        found = self._get(name, 0, None)
        return None if found is None else found[0]

    def read_range(self, name: str, start: int, stop: int | None) -> tuple[bytes, str]:
        """Read a file's bytes from start to stop, or to its end; give them, and its version.

        Raises:
            FileNotFoundError: there is no such file.
        """
        found = self._get(name, start, stop)
        if found is None:
            raise FileNotFoundError(f"{self.describe(name)}: not there")
        return found

    def _get(self, name: str, start: int, stop: int | None) -> tuple[bytes, str] | None:
        """Read bytes and version; None if there is no file. A body that breaks off is asked for again."""
        try:
            for attempt in range(ATTEMPTS):
                with self._errors("read", name):
                    chunks, version = self._stream(name, start, stop, STALL)
                    try:
                        return b"".join(chunks), version
                    except self.ERRORS:
                        if attempt == ATTEMPTS - 1:
                            raise
                back_off(attempt)
        except FileNotFoundError:
            pass
        return None

    def fetch(self, name: str, file: BinaryIO, deadline: float | None = None) -> None:
        """Write all of a file's bytes to an open one; once, so that who calls it may try again.

        Raises:
            FileNotFoundError: there is none.
            TimeoutError: the deadline, on `time.monotonic`'s clock, has passed.
            OSError: it could not be read.
        """
        with self._errors("read", name):
            chunks, _ = self._stream(name, 0, None, seconds_left(deadline))
            for chunk in chunks:
                file.write(chunk)
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"{self.describe(name)}: out of time after {file.tell()} bytes")

    def put(self, name: str, parts: Sequence[Buffer], staging: str | None = None) -> None:
        """Store a new file made of parts, visible only when it is whole. A store has no folders to stage it in.

        Raises:
            FileExistsError: there is one already.
            OSError: what is stored has another size than what was sent.
        """
        body = Parts(parts)
        with self._errors("write", name):
            try:
                self._create(name, body)
            except self.ERRORS as error:
                if self._status(error) in CHANGED:
                    raise FileExistsError(
                        f"can't store {self.describe(name)}: there is a file of this name, of another writer; choose "
                        "another path, or write again when that writer has ended"
                    ) from None
                raise
        found = self.info(name)
        if found is None or found.size != body.size:
            keeps = "nothing" if found is None else found.size
            raise OSError(f"{self.describe(name)}: sent {body.size} bytes, but the store keeps {keeps}; write it again")

    def make_staging(self, staging: str) -> None:
        """Do nothing: a put to a store is whole or not there."""

    def remove_staging(self, staging: str) -> None:
        """Do nothing: there is none."""

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        """Turn the library's errors into Python's, which say what happened where, and what to do."""
        try:
            yield
        except self.ERRORS as error:
            path, status = self.describe(name), self._status(error)
            if status == 404:
                raise FileNotFoundError(f"{path}: not there ({error})") from error
            if status in (401, 403):
                raise PermissionError(f"{path}: the store refuses to {what} it ({error}); {self.HELP}") from error
            raise OSError(f"{path}: could not {what} it in {ATTEMPTS} attempts: {error}") from error


def back_off(attempt: int) -> None:
    """Wait before an attempt is repeated: up to 0.2, 0.4, 0.8 … seconds, but at most 5."""
    time.sleep(random.uniform(0.5, 1) * min(5.0, 0.2 * 2**attempt))


def seconds_left(deadline: float | None) -> float:
    """Give how long to wait for a server's next bytes: until it has stalled, or until the deadline if it is sooner."""
    return STALL if deadline is None else min(STALL, max(0.1, deadline - time.monotonic()))


class Parts(io.RawIOBase):
    """Buffers one after the other as a file that can be read, again from any place."""

    def __init__(self, parts: Sequence[Buffer]):
        self._views = [memoryview(part).cast("B") for part in parts]
        self._starts = [0]
        for view in self._views:
            self._starts.append(self._starts[-1] + view.nbytes)
        self.size = self._starts[-1]
        self._at = 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from any place."""
        return True

    def tell(self) -> int:
        """Give where it is."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as far as there are bytes."""
        into = memoryview(buffer).cast("B")
        done = 0
        part = bisect_right(self._starts, self._at) - 1
        while done < into.nbytes and part < len(self._views):
            offset = self._at - self._starts[part]
            piece = self._views[part][offset : offset + into.nbytes - done]
            into[done : done + piece.nbytes] = piece
            done += piece.nbytes
            self._at += piece.nbytes
            part += 1
        return done
