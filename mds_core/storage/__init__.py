"""Where data sets are kept: one interface, one module a backend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from mds_core.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


class Storage(Protocol):
    """A data set's folder. Names are relative to it, with `/` between folders."""

    root: str

    def describe(self, name: str) -> str:
        """Give the full path of a file, for messages."""

    def read(self, name: str) -> bytes | None:
        """Read a whole file; None if there is none."""

    def size(self, name: str) -> int | None:
        """Give a file's size in bytes; None if there is none."""

    def list(self) -> list[str]:
        """List the names of all files, at any depth."""

    def put(self, name: str, parts: Sequence[Buffer], staging: str | None = None) -> None:
        """Store a new file made of parts, visible only when it is whole.

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
    """Give the storage of a data set's path: a folder, or `file://` and a folder.

    Raises:
        ValueError: the path's scheme has no backend.
    """
    path = os.fspath(path)
    if path.startswith("file:/"):  # with one, two or three slashes, as Hadoop and browsers have them
        return LocalStorage(path.removeprefix("file:").removeprefix("//"))
    if "://" in path:
        raise ValueError(
            f"no storage backend for {path!r}; expected a folder on a disk or a mounted file system, or file://FOLDER"
        )
    if path.startswith("dbfs:/"):
        raise ValueError(f"no storage backend for {path!r}; use its mounted folder, /{path[6:].lstrip('/')} or /dbfs/…")
    return LocalStorage(path)
