"""What object stores have in common: keys below a prefix, one client a process, checked puts, clear errors."""

from __future__ import annotations

import gc
import io
import os
import random
import re
import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from mds_core.storage.info import Info, Version

if TYPE_CHECKING:
    from typing_extensions import Buffer

# How often a request is tried that may pass: connections that break, 429, 500, 502, 503, 504.
ATTEMPTS = 5
# A server that sends nothing for so long, in seconds, has stalled.
STALL = 20.0
# Pieces in which a file is fetched.
CHUNK = 1 << 20
# What it answers when it has too much to do.
BUSY = (408, 429, 500, 502, 503, 504)
# What a store answers when a condition of a write does not hold.
CHANGED = (409, 412)
# What may pass: None is a connection that broke.
PASSING = (None, *BUSY)
# Under this name a store keeps, beside a file, which write it is of.
MARK = "mds_write"

# Names of options and variables whose values no message shows; and users with passwords, in URLs.
_SECRET = re.compile("secret|token|key|password|sas|connection", re.IGNORECASE)
_PASSWORD = re.compile(r"(://[^/\s:@]+:)[^/\s@]+@")

# Options by name, as what can be compared.
Options = tuple[tuple[str, str], ...]

_clients: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def client_of(make: Callable[..., Any], arguments: tuple[Any, ...], *others: Any) -> Any:
    """Give this process's client of a store, made when it is first asked for: connections do not survive a fork.

    Args:
        make: what makes it.
        arguments: what it is made of.
        *others: what it also depends on: if that changes, there is another client.
    """
    key = (os.getpid(), make, arguments, *others)
    with _lock:
        if key not in _clients:
            # Libraries make so many objects that Python would look through all of torch's for garbage: 150 ms.
            collects = gc.isenabled()
            gc.disable()
            try:
                _clients[key] = make(*arguments)
            finally:
                if collects:
                    gc.enable()
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

    A store's module gives the class attributes, and `_status`, `_stream`, `info`, `list`, `delete`, and either
    `_write_if` and `_mark`, or `_create` and `replace`; all calls of its library stand in a `with self._errors(...)`.
    """

    # Names of the options that there are; None: it takes any.
    OPTIONS: tuple[str, ...] | None = ()
    # Where its users keep credentials, as an advice.
    HELP = ""
    # How the names of variables begin that its library reads: who sets one in a notebook gets another client.
    ENVIRONMENT: tuple[str, ...] = ()
    # What its library raises.
    ERRORS: tuple[type[Exception], ...] = ()
    atomic_replace = True

    @classmethod
    def open(cls, root: str, options: Mapping[str, str]) -> RemoteStorage:
        """Give the storage of a path; of another kind, where a store has several."""
        return cls(root, options)  # type: ignore[call-arg]  # the backends' own arguments

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

    def _client_of(self, make: Callable[..., Any], *more: Any) -> Any:
        """Give this process's client, of the options and the environment; `make` takes the options last."""
        variables = tuple(
            sorted((name, value) for name, value in os.environ.items() if name.startswith(self.ENVIRONMENT))
        )
        return client_of(make, (*more, self._options), variables)

    def _status(self, error: Exception) -> int | None:
        """Give the HTTP status of an error, 401 for credentials that are not there; None: there was no answer."""
        raise NotImplementedError

    def _repeats(self, error: Exception, passing: tuple[int | None, ...], attempt: int, deadline: float | None) -> bool:
        """Wait, if what failed is to be tried again, and tell whether it is."""
        error.attempts = attempt + 1  # type: ignore[attr-defined]
        pause = max(pause_after(attempt), getattr(error, "wait", 0.0))  # some servers say how long to wait
        late = deadline is not None and time.monotonic() + pause > deadline
        if late or attempt == ATTEMPTS - 1 or self._status(error) not in passing:
            return False
        time.sleep(pause)
        return True

    def _stream(self, name: str, start: int, stop: int | None, timeout: float) -> tuple[Iterable[bytes], Version]:
        """Ask, once, for a file's bytes from start to stop, or to its end; give them piece by piece, and its version.

        A server that sends nothing for `timeout` seconds has stalled.
        """
        raise NotImplementedError

    def _create(self, name: str, body: Parts) -> None:
        """Store a new file; an error of status 409 or 412 if there is one."""
        self._store_if(name, body, None)

    def _store_if(self, name: str, body: Parts, version: Version | None) -> None:
        mark = uuid.uuid4().hex
        try:
            self._write_if(name, body, version, mark)
        except self.ERRORS as error:
            # The answer to a first try may have been lost, and the next have found the file that it stored.
            if self._status(error) not in CHANGED or self._mark(name) != mark:
                raise

    def _write_if(self, name: str, body: Parts, version: Version | None, mark: str) -> None:
        """Store a file with a mark, if it has this version (None: is not there); else an error of status 409 or 412."""
        raise NotImplementedError

    def _mark(self, name: str) -> str | None:
        """Give a file's mark."""
        raise NotImplementedError

    def _again(self, call: Callable[[], Any]) -> Any:
        """Make a request, and again with growing pauses while it fails with what may pass; for libraries that don't."""
        for attempt in range(ATTEMPTS):
            try:
                return call()
            except self.ERRORS as error:
                if not self._repeats(error, PASSING, attempt, None):
                    raise
        raise AssertionError  # the last attempt returns or raises

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""
        raise NotImplementedError

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        raise NotImplementedError

    def read(self, name: str) -> bytes | None:
        """Read a whole file; None if there is none."""
        found = self._get(name, 0, None)
        return None if found is None else found[0]

    def read_range(
        self, name: str, start: int, stop: int | None, deadline: float | None = None
    ) -> tuple[bytes, Version]:
        """Read a file's bytes from start to stop, or to its end; give them, and its version.

        Raises:
            FileNotFoundError: there is no such file.
        """
        found = self._get(name, start, stop, deadline)
        if found is None:
            raise FileNotFoundError(f"{self.describe(name)}: not there")
        return found

    def _get(
        self, name: str, start: int, stop: int | None, deadline: float | None = None
    ) -> tuple[bytes, Version] | None:
        """Read bytes and version; None if there is no file. A body that breaks off is asked for again."""
        with suppress(FileNotFoundError), self._errors("read", name):
            for attempt in range(ATTEMPTS):
                try:
                    chunks, version = self._stream(name, start, stop, seconds_left(deadline))
                    return self._joined(name, chunks, None if stop is None else stop - start), version
                except self.ERRORS as error:
                    if not self._repeats(error, PASSING, attempt, deadline):
                        raise
        return None

    def _joined(self, name: str, chunks: Iterable[bytes], most: int | None) -> bytes:
        parts, size = [], 0
        for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if most is not None and size > most:
                raise OSError(f"{self.describe(name)}: asked for {most} bytes of it, and the store sends more")
        return b"".join(parts)

    def fetch(self, name: str, file: BinaryIO, deadline: float | None = None) -> Version:
        """Write all of a file's bytes to an open one, once, so that who calls it may try again; give its version.

        What a busy server refuses is asked for again.

        Raises:
            FileNotFoundError: there is none.
            TimeoutError: the deadline, on `time.monotonic`'s clock, has passed.
            OSError: it could not be read.
        """
        with self._errors("read", name):
            for attempt in range(ATTEMPTS):
                self._check_time(name, file, deadline)
                try:
                    chunks, version = self._stream(name, 0, None, seconds_left(deadline))
                    break
                except self.ERRORS as error:
                    if not self._repeats(error, BUSY, attempt, deadline):
                        raise
            for chunk in chunks:
                file.write(chunk)
                self._check_time(name, file, deadline)
            return version

    def _check_time(self, name: str, file: BinaryIO, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"{self.describe(name)}: out of time after {file.tell()} bytes")

    def put(self, name: str, parts: Sequence[Buffer], staging: str | None = None) -> None:
        """Store a new file made of parts, visible only when it is whole.

        A store has no folders to stage it in: a file that stands for the folder says that there still is one.

        Raises:
            FileExistsError: there is one already.
            FileNotFoundError: the staging is gone.
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
        # Who removes the staging lists the files after that: what came too late for the list goes here.
        if staging is not None and self.info(staging) is None:
            self.delete(name)
            raise FileNotFoundError(
                f"can't store {self.describe(name)}: {self.describe(staging)}, made when the write began, is not "
                "there: the write has ended or was aborted"
            )

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace a file in one atomic step if it still is what was expected (None: not there); tell whether."""
        contents, version = self._get(name, 0, None) or (None, None)
        if contents != expected:
            return False
        with self._errors("write", name):
            try:
                self._store_if(name, Parts([data]), version)
            except self.ERRORS as error:
                if self._status(error) in CHANGED:
                    return False
                raise
        return True

    def make_staging(self, staging: str) -> None:
        """Make a staging: an empty file, as a put to a store is whole or not there without a folder for it."""
        with suppress(FileExistsError):
            self.put(staging, [])

    def remove_staging(self, staging: str) -> None:
        """Remove a staging; it is no error if there is none."""
        self.delete(staging)

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        """Turn the library's errors into Python's, which say what happened where, and what to do."""
        try:
            yield
        except self.ERRORS as error:
            path, status, text = self.describe(name), self._status(error), self._text(error)
            cause = error if text == str(error) else None
            if status == 404:
                raise FileNotFoundError(f"{path}: not there ({text})") from cause
            if status in (401, 403):
                raise PermissionError(f"{path}: the store refuses to {what} it ({text}); {self.HELP}") from cause
            attempts = getattr(error, "attempts", ATTEMPTS)  # libraries do not say, but they have ours to make
            made = f" in {attempts} attempts" if attempts > 1 else ""
            raise OSError(f"{path}: could not {what} it{made}: {text}") from cause

    def _text(self, error: Exception) -> str:
        """Give what an error says, without secrets; if that is not all, tracebacks do not show the error itself."""
        return self._without_secrets(str(error))

    def _without_secrets(self, text: str) -> str:
        """Hide the values of options and variables that are secrets, and passwords in URLs."""
        variables = ((name, value) for name, value in os.environ.items() if name.startswith(self.ENVIRONMENT))
        for name, value in (*self._options, *variables):
            for secret in {value, value.strip(), repr(value)[1:-1]} if _SECRET.search(name) else ():
                if len(secret) > 3:
                    text = text.replace(secret, "***")
        return _PASSWORD.sub(r"\1***@", text)


def pause_after(attempt: int) -> float:
    """Give how long to wait before an attempt is repeated: up to 0.2, 0.4, 0.8 … seconds, but at most 5."""
    return random.uniform(0.5, 1) * min(5.0, 0.2 * float(2**attempt))


def seconds_left(deadline: float | None) -> float:
    """Give how long to wait for a server's next bytes: until it has stalled, or until the deadline if it is sooner."""
    return STALL if deadline is None else min(STALL, max(0.1, deadline - time.monotonic()))


class Parts(io.RawIOBase):
    """Buffers one after the other as a file that can be read, again from any place."""

    def __init__(self, parts: Sequence[Buffer]):
        self.views = [memoryview(part).cast("B") for part in parts]
        self._starts = [0]
        for view in self.views:
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
        while done < into.nbytes and part < len(self.views):
            offset = self._at - self._starts[part]
            piece = self.views[part][offset : offset + into.nbytes - done]
            into[done : done + piece.nbytes] = piece
            done += piece.nbytes
            self._at += piece.nbytes
            part += 1
        return done
