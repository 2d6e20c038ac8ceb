"""Where data sets are kept: one interface, one module a backend."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, BinaryIO, Protocol

from mds_core.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


class Storage(Protocol):
    """A data set's folder. Names are relative to it, with `/` between folders."""

    root: str

    def describe(self, name: str) -> str:
        """Give the full path of a file, for messages."""

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading; FileNotFoundError if there is none."""

    def read(self, name: str) -> bytes | None:
        """Read a whole file; None if there is none."""

    def size(self, name: str) -> int | None:
        """Give a file's size in bytes; None if there is none."""

    def list(self) -> list[str]:
        """List the names of all files, at any depth."""

    def put(self, name: str, parts: Sequence[Buffer], staging: str | None = None) -> None:
        """Store a new file made of parts, visible only when it is whole; FileExistsError if there is one already.

        With `staging`, the file is made in that folder, which must be there: who removes it (`remove_staging`)
        stops all puts through it.
        """

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace a file in one atomic step if it still is what was expected (None: not there); tell whether."""

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""

    def make_staging(self, staging: str) -> None:
        """Make a staging folder for `put`."""

    def remove_staging(self, staging: str) -> None:
        """Remove a staging folder and what is in it; it is no error if there is none."""


def open_storage(path: str | os.PathLike[str]) -> Storage:
    """Give the storage of a data set's path: a folder, `file:` and a folder, or `s3://BUCKET/PREFIX`.

    Raises:
        ModuleNotFoundError: the store's library is not installed.
        ValueError: the path's scheme has no backend.
    """
    path = os.fspath(path)
    if path.startswith("dbfs:/"):
        raise ValueError(f"no storage backend for {path!r}; use its mounted folder, /{path[6:].lstrip('/')} or /dbfs/…")
    if path.startswith("file:/"):
        return LocalStorage(_folder_of(path))
    if path.startswith("s3://"):
        try:
            from mds_core.storage.s3 import S3Storage
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{path} needs boto3: pip install 'mds-spark[s3]' ({error})") from None
        return S3Storage(path)
    if "://" in path:
        raise ValueError(
            f"no storage backend for {path!r}; expected a folder on a disk or a mounted file system, file://FOLDER, "
            "or s3://BUCKET/PREFIX"
        )
    # A drive of Windows has one letter; a folder of such a name can be made, but hardly on purpose.
    if re.match(r"[a-z][a-z0-9+.-]+:/", path, re.IGNORECASE) and not os.path.isdir(path):
        raise ValueError(
            f"no storage backend for {path!r}, which looks like a URL that lost a slash (pathlib.Path takes one away); "
            f"for a new folder of this name, write './{path}'"
        )
    return LocalStorage(path)


def _folder_of(url: str) -> str:
    if not url.startswith("file://"):
        return url.removeprefix("file:")
    host, slash, folder = url.removeprefix("file://").partition("/")
    if host not in ("", "localhost") or not slash:
        raise ValueError(
            f"no storage backend for {url!r}, a folder of the machine {host!r}; for one of this machine write "
            "file:///FOLDER, with three slashes"
        )
    return slash + folder
