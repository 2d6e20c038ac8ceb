"""The cache: shards of a remote data set on this machine's disk, each fetched once for all processes that read it.

A folder holds one data set's cache, below `.mds-cache`: for each index that the data set has had, a folder of its own
with the shards, uncompressed, and their books. Processes meet in files alone: a shard is fetched by who holds its lock,
to a temporary name, checked, and renamed. Nothing needs to be cleaned up after `kill -9`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mds_core.compression import decompress
from mds_core.errors import FormatError
from mds_core.fetch import check_hash, check_size, fetch_shard, map_file
from mds_core.index import INDEX, File, Shard, has_own_name, identity_of
from mds_core.reader import MDSReader
from mds_torch.books import Books, books_size, guard, is_used, wait_for

if TYPE_CHECKING:
    from typing_extensions import Buffer

log = logging.getLogger("mds_torch")

_FOLDER = ".mds-cache"
# What was fetched ahead is kept for its reader so long, in seconds; a reader that has died does not come.
_AHEAD = 600
# Who needs room and finds all shards in use evicts some of those after so many seconds: their readers still have them
# mapped, and fetch them again. Readers that wait for each other would wait for ever.
_GRACE = 0.5
# How long to wait for room on a full disk: other processes may be about to let go of theirs.
_FULL = 2.0


@dataclass(frozen=True)
class Fetching:
    """How shards are fetched, and kept.

    Args:
        limit: the most bytes on disk, of all streams' caches together.
        keep_zip: keep compressed files beside what they unpack to.
        validate_hash: the name of a hash that files must have.
        retry: how often to try again what may pass.
        timeout: seconds that a shard may take, and a second more for each MiB.
    """

    limit: int | None = None
    keep_zip: bool = False
    validate_hash: str | None = None
    retry: int = 2
    timeout: float = 60.0


class Cache:
    """The cache of a data set in a folder.

    Args:
        source: the data set, at its remote place.
        local: the folder. Shards that lie in it as they lie in the data set, under the same index, are read there, and
            never deleted.
        fetching: how.

    Raises:
        ValueError: the folder holds another data set, or its cache; the limit is less than a shard.
        PermissionError: the folder is not this user's to write to.
    """

    def __init__(self, source: MDSReader, local: str, fetching: Fetching):
        self.storage, self.version = source.storage, source.version
        self.shards: Sequence[Shard] = source.index.shards
        self.local = os.path.abspath(os.path.expanduser(local))
        self.fetching = fetching
        self._not_mirrored: set[int] = set()
        # All caches that share the limit.
        self.together: list[Cache] = [self]
        self.check_limit()
        try:
            self._claim(source)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise PermissionError(
                f"can't keep a cache of {self.storage.root} in {self.local}: {error}; it seems to be another user's: "
                "choose another local, or none, which gives each user a folder"
            ) from error
        self.folder = os.path.join(self.local, _FOLDER, identity_of(source.identity.encode(), self.version.tag))
        self._books: Books | None = None
        self._remove_old()
        self._clean()

    def check_limit(self) -> None:
        """Raise ValueError if the largest shard does not fit into the limit."""
        limit = self.fetching.limit
        largest = max(self.shards, key=self._room_of, default=None)
        if limit is None or largest is None:
            return
        least = self._room_of(largest) + sum(books_size(len(cache.shards)) for cache in self.together)
        if least > limit:
            raise ValueError(
                f"cache_limit: expected at least {least} bytes, as {self.storage.describe(largest.stored.basename)} "
                f"needs, found {limit}"
            )

    def _claim(self, source: MDSReader) -> None:
        """Make sure that the folder is this data set's, or nobody's."""
        root = self.storage.root
        index = _read(os.path.join(self.local, INDEX))
        if index is not None and identity_of(index) != source.identity:
            raise ValueError(
                f"{self.local} holds another data set than {root}, or an older state of it: its {INDEX} is another "
                "one; choose an empty folder as local, or empty this one"
            )
        self._mirrors = index is not None
        folder = os.path.join(self.local, _FOLDER)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found_folder = os.lstat(folder)
        # What others may write could be a link to anywhere, or other data.
        if not stat.S_ISDIR(found_folder.st_mode) or found_folder.st_uid != os.getuid() or found_folder.st_mode & 0o022:
            raise PermissionError(
                errno.EPERM, f"{folder} is not a folder that only this user (uid {os.getuid()}) may write to"
            )
        owner = os.path.join(self.local, _FOLDER, "source")
        descriptor = os.open(owner, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = os.pread(descriptor, 1 << 16, 0).decode(errors="replace")
            if not found:
                os.write(descriptor, root.encode())
        finally:
            os.close(descriptor)
        if found not in ("", root):
            raise ValueError(
                f"{self.local} holds the cache of {found}, not of {root}; choose another folder as local, or delete "
                f"{os.path.join(self.local, _FOLDER)}"
            )

    def _remove_old(self) -> None:
        """Delete what is cached of an index that the data set no longer has, unless it is in use.

        Shards that it still has under a name that is theirs alone, as after an append, are taken over.
        """
        parent = os.path.dirname(self.folder)
        for name in os.listdir(parent):
            folder = os.path.join(parent, name)
            if folder == self.folder or not os.path.exists(f"{folder}/books"):
                continue
            for number, shard in enumerate(self.shards):
                if has_own_name(shard):
                    self._take_over(number, os.path.join(folder, "shards", shard.raw_data.basename))
            if not is_used(f"{folder}/books"):
                shutil.rmtree(folder, ignore_errors=True)

    def _take_over(self, number: int, path: str) -> None:
        target = self._path(self.shards[number].raw_data.basename)
        size = self.shards[number].raw_data.bytes
        if _size(path) == size and not os.path.exists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with contextlib.suppress(OSError):  # of a file system without links; or another process was faster
                os.link(path, target)
                self.books.held[number] = size

    @property
    def books(self) -> Books:
        """The books, opened in this process."""
        if self._books is None:
            with guard():
                self._books = self._books or Books(os.path.join(self.folder, "books"), len(self.shards))
        return self._books

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_books": None}

    # Files

    def _path(self, basename: str) -> str:
        return os.path.join(self.folder, "shards", basename)

    def _files(self, shard: Shard) -> list[str]:
        paths = [self._path(file.basename) for file in (shard.raw_data, shard.zip_data) if file is not None]
        return paths + [f"{path}.tmp" for path in paths]

    def _room_of(self, shard: Shard) -> int:
        """Give the bytes on disk that fetching a shard takes."""
        return shard.raw_data.bytes + (shard.zip_data.bytes if shard.zip_data is not None else 0)

    def _open(self, path: str, raw: File) -> Buffer | None:
        """Map an uncompressed shard if it is there, whole, and has its hash; else None."""
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                check_size(size, raw, path)
                data = map_file(file.fileno(), size)
            if self.fetching.validate_hash in raw.hashes:
                check_hash(self.fetching.validate_hash, raw.hashes, data, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except FormatError as error:
            log.warning("%s; it is fetched again", error)
            return None
        return data

    def get(self, number: int, let_go: Callable[[], None]) -> tuple[Buffer, int]:
        """Give a shard, fetched if it is not there: its bytes, mapped, and how often it was evicted before.

        With a limit, it is held, so that it is not evicted as long as there is another way, until `books.let_go`.

        Args:
            number: which.
            let_go: if there is no room, what lets go of all other shards that the reader holds.

        Raises:
            FileNotFoundError, PermissionError, FormatError, OSError: it can't be fetched, as `fetch_shard` says.
            RewrittenError: the data set is another one now.
        """
        raw, books = self.shards[number].raw_data, self.books
        mirrored = self._mirrored(number)
        if mirrored is not None and (data := self._open(mirrored, raw)) is not None:
            return data, int(books.evicted[number])
        if self.fetching.limit is not None:
            wait_for(lambda: books.try_hold(number), self._patience(number), self._where(number))
        evicted = int(books.evicted[number])
        data = self._open(self._path(raw.basename), raw)
        if data is None:
            try:
                found = self.fetch(number, let_go)
            except BaseException:
                books.let_go(number)
                raise
            assert found is not None
            data, evicted = found
            books = self.books  # they may have been opened again
        elif not books.held[number]:  # who put it there was killed before it was written down
            books.held[number] = raw.bytes
        books.used[number] = time.time_ns()
        books.ahead[number] = 0
        return data, evicted

    def is_there(self, number: int) -> bool:
        """Tell whether a shard is on disk, as far as its name says."""
        return os.path.exists(self._path(self.shards[number].raw_data.basename)) or self._mirrored(number) is not None

    def _mirrored(self, number: int) -> str | None:
        """Give the path of a shard that lies in `local` as in the data set, and was put there after its index."""
        if not self._mirrors or number in self._not_mirrored:
            return None
        path = os.path.join(self.local, self.shards[number].raw_data.basename)
        try:
            put_there = os.stat(path).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None
        return path if put_there >= (self.version.written or 0) else None

    def _where(self, number: int) -> str:
        return f"shard {self.storage.describe(self.shards[number].stored.basename)} in {self.folder}"

    def _patience(self, number: int) -> float:
        return 10 + 2 * (self.fetching.timeout + self._room_of(self.shards[number]) / (1 << 20))

    def fetch(self, number: int, let_go: Callable[[], None] | None = None) -> tuple[Buffer, int] | None:
        """Fetch a shard, unless another process has done so meanwhile.

        Args:
            number: which.
            let_go: as for `get`; without it, the shard is fetched ahead of its use, and only if there is room.

        Returns:
            Its bytes, and how often it was evicted before; None if there is no room to fetch it ahead.
        """
        shard = self.shards[number]
        self.books.renew()
        books = self.books
        with books.own(number, self._patience(number), self._where(number)):
            data = self._open(self._path(shard.raw_data.basename), shard.raw_data)
            if data is not None:
                return data, int(books.evicted[number])
            self._forget(number)  # what does not have its size or hash
            if not self._reserve(number, let_go):
                return None
            try:
                data = self._fetch_on_full_disk(shard, let_go)
                return None if data is None else (data, int(books.evicted[number]))
            finally:
                if books.fetching[number]:
                    if os.path.exists(self._path(shard.raw_data.basename)):
                        books.held[number] = sum(map(_size, self._files(shard)))
                        books.fetching[number] = 0
                    else:
                        self._forget(number)

    def _fetch_on_full_disk(self, shard: Shard, let_go: Callable[[], None] | None) -> Buffer | None:
        """Fetch a shard; if the disk is full, evict what nobody reads; None if it was to be fetched ahead only."""
        deadline = time.monotonic() + _FULL
        while True:
            try:
                return self._fetch(shard)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                for path in self._files(shard):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                if let_go is None:
                    return None
                let_go()
                if not self._free(self._room_of(shard)) and time.monotonic() > deadline:
                    raise OSError(
                        error.errno,
                        f"no space left for {self.storage.describe(shard.stored.basename)}, {self._room_of(shard)} "
                        f"bytes, in {self.folder}; give a cache_limit, or a local on a larger disk",
                    ) from error
                time.sleep(0.02)

    def _fetch(self, shard: Shard) -> Buffer:
        options, raw = self.fetching, shard.raw_data
        log.debug("fetching %s", self.storage.describe(shard.stored.basename))
        for path in self._files(shard):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        stored = self._path(shard.stored.basename)
        validate_hash = options.validate_hash if options.validate_hash in shard.stored.hashes else None
        with open(f"{stored}.tmp", "w+b", buffering=0) as file:
            fetch_shard(
                self.storage, self.version, shard, file, retry=options.retry, timeout=options.timeout,
                validate_hash=validate_hash,
            )  # fmt: skip
            data = map_file(file.fileno(), shard.stored.bytes)
            inode = os.fstat(file.fileno()).st_ino
        if shard.layout.compression is not None:
            unpacked = decompress(
                data, shard.layout.compression, raw.bytes, self.storage.describe(shard.stored.basename)
            )
            if options.validate_hash in raw.hashes:
                check_hash(options.validate_hash, raw.hashes, unpacked, self.storage.describe(raw.basename))
            with contextlib.suppress(FileNotFoundError):
                if options.keep_zip:
                    os.rename(f"{stored}.tmp", stored)
                else:
                    os.unlink(f"{stored}.tmp")
            os.makedirs(os.path.dirname(self._path(raw.basename)), exist_ok=True)
            with open(f"{self._path(raw.basename)}.tmp", "w+b") as file:
                file.write(unpacked)
                file.flush()
                data = map_file(file.fileno(), raw.bytes)
                inode = os.fstat(file.fileno()).st_ino
        temporary = f"{self._path(raw.basename)}.tmp"
        # Who empties the folder takes the name, not the data, and another may have begun to fetch it anew.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(temporary).st_ino == inode:
                os.rename(temporary, self._path(raw.basename))
        return data

    def discard(self, number: int) -> None:
        """Delete a shard that turned out to be broken; one of `local` itself is left there, and not read any more."""
        self._not_mirrored.add(number)
        with self.books.own(number, self._patience(number), self._where(number)):
            self._forget(number)

    def _forget(self, number: int) -> None:
        """Delete a shard's files, and take it out of the books. Who calls it owns it, or the books."""
        books = self.books
        for path in self._files(self.shards[number]):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
        if books.held[number]:
            books.evicted[number] += 1
        books.held[number] = books.fetching[number] = books.ahead[number] = 0

    def _clean(self) -> None:
        """Delete what a process left behind that was killed while it fetched, and what is more than the limit."""
        for number in np.flatnonzero(self.books.fetching).tolist():
            owned = self.books.try_own(number)
            if owned is not None:
                with owned:
                    if self.books.fetching[number]:
                        self._forget(number)
        if self.fetching.limit is not None:
            with self.books.locked():
                self._make_room(0, ahead=False, force=False)

    # Room

    def _reserve(self, number: int, let_go: Callable[[], None] | None) -> bool:
        """Make room for a shard, and put it down; tell whether there is room to fetch it ahead."""
        ahead = let_go is None
        books, need = self.books, self._room_of(self.shards[number])
        began = time.monotonic()

        def reserve() -> bool:
            waited = time.monotonic() - began
            with contextlib.ExitStack() as stack:
                for cache in sorted(self.together, key=lambda cache: cache.folder):
                    stack.enter_context(cache.books.locked())
                if not self._make_room(need, ahead, force=not ahead and waited > _GRACE):
                    books.pressed[0] = time.time_ns()
                    return False
                books.held[number], books.fetching[number] = need, 1
                books.used[number] = time.time_ns()
                books.ahead[number] = time.time_ns() if ahead else 0
                return True

        if self.fetching.limit is None:
            books.held[number], books.fetching[number] = need, 1
            return True
        if let_go is None:
            return reserve()
        if reserve():
            return True
        let_go()
        what = f"{need} bytes of the cache_limit of {self.fetching.limit}"
        wait_for(reserve, self._patience(number), what)
        return True

    def _make_room(self, need: int, ahead: bool, force: bool) -> bool:
        """Evict shards until there is room; tell whether there is. The books of all caches are locked.

        The least recently used go first; then, but not for what is fetched ahead itself, what was fetched ahead, the
        newest first: it is needed last. With `force`, also those that processes hold. What is fetched ahead takes up to
        half of the cache: the other half is for what slower processes still need.
        """
        limit, caches, soon = self.fetching.limit, self.together, time.time_ns() - _AHEAD * 10**9
        assert limit is not None
        if ahead and need + sum(int(c.books.held[c.books.ahead > soon].sum()) for c in caches) > limit // 2:
            return False
        over = need - limit + sum(int(c.books.held.sum()) + c.books.size for c in caches)
        if over <= 0:
            return True
        candidates: list[tuple[bool, int, Cache, int]] = []
        for cache in caches:
            books = cache.books
            for number in np.flatnonzero(books.held).tolist():
                awaited = int(books.ahead[number])
                if awaited > soon:
                    if not ahead:
                        candidates.append((True, -awaited, cache, number))
                else:
                    candidates.append((False, 0 if books.fetching[number] else int(books.used[number]), cache, number))
        candidates.sort(key=lambda candidate: candidate[:2])
        for forced in (False, True) if force else (False,):
            for _, _, cache, number in candidates:
                if over <= 0:
                    return True
                over -= cache._evict(number, forced)
        return over <= 0

    def _evict(self, number: int, force: bool = False) -> int:
        """Delete a shard if no process fetches it, nor reads it, unless forced; give its bytes."""
        books, size = self.books, int(self.books.held[number])
        owned = books.try_own(number)
        if owned is None:
            return 0
        with owned:
            if not books.try_keep_from_readers(owned, number) and not force:
                return 0
            self._forget(number)
        log.debug("evicted %s", self._where(number))
        return size

    def _free(self, need: int) -> bool:
        """Evict what is in use by nobody, as the disk is full; tell whether it was as much as is needed."""
        books, freed = self.books, 0
        with books.locked():
            for number in np.argsort(books.used).tolist():
                if freed >= need:
                    break
                if books.held[number] and not books.fetching[number]:
                    freed += self._evict(number)
        return freed >= need


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def cache_root() -> str:
    """Give the folder of this user's caches: `mds-spark` below XDG_CACHE_HOME, or below ~/.cache."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "mds-spark")


def default_folder(remote: str) -> str:
    """Give the folder of a data set's cache where none is given: the same for the same data set."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", remote.rstrip("/").rpartition("/")[2])[:60]
    return os.path.join(cache_root(), f"{name}-{hashlib.sha256(remote.encode()).hexdigest()[:16]}")


def clean_cache() -> None:
    """Delete this user's caches of data sets that were given no `local`; what a running process reads stays.

    Example:
        >>> mds_torch.clean_cache()
    """
    root = cache_root()
    for name in os.listdir(root) if os.path.isdir(root) else []:
        parent = os.path.join(root, name, _FOLDER)
        caches = [os.path.join(parent, cache) for cache in os.listdir(parent)] if os.path.isdir(parent) else []
        used = [cache for cache in caches if is_used(os.path.join(cache, "books"))]
        for cache in caches:
            if cache not in used and os.path.isdir(cache):
                shutil.rmtree(cache, ignore_errors=True)
        if used:
            log.warning("%s is in use, and stays", ", ".join(used))
        else:
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
