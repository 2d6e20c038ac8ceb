"""Where data sets are kept: one interface, one module a backend."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO, Protocol

from mds_core.storage.info import Info, Version
from mds_core.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer


class Storage(Protocol):
    """A data set's folder. Names are relative to it, with `/` between folders."""

    root: str
    # Whether `replace` is one step: of two at once, one gives False. Else it looks first, and writes then.
    atomic_replace: bool

    def describe(self, name: str) -> str:
        """Give the full path of a file, for messages."""

    def read(self, name: str) -> bytes | None:
        """Read a whole file; None if there is none."""

    def read_range(
        self, name: str, start: int, stop: int | None, deadline: float | None = None
    ) -> tuple[bytes, Version]:
        """Read a file's bytes from start to stop, or to its end; give them, and its version.

        FileNotFoundError if there is none; nothing is tried again after a deadline, on `time.monotonic`'s clock.
        """

    def fetch(self, name: str, file: BinaryIO, deadline: float | None = None) -> Version:
        """Write all of a file's bytes to an open one, once; give its version. FileNotFoundError if there is none.

        TimeoutError if a deadline, on `time.monotonic`'s clock, has passed.
        """

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""

    def list(self) -> list[str]:
        """List the names of all files, at any depth."""

    def put(self, name: str, parts: Sequence[Buffer], staging: str | None = None) -> None:
        """Store a new file made of parts, visible only when it is whole; FileExistsError if there is one already.

        With `staging`, the file is made in that folder, which must be there: who removes it (`remove_staging`)
        stops all puts through it. A store without folders has a file of that name.
        """

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace a file in one atomic step if it still is what was expected (None: not there); tell whether."""

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""

    def make_staging(self, staging: str) -> None:
        """Make a staging folder for `put`."""

    def remove_staging(self, staging: str) -> None:
        """Remove a staging folder and what is in it; it is no error if there is none."""


# How the paths of each backend begin: its module and class, and the extra that brings its library. The first that
# fits counts.
_BACKENDS = {
    "s3://": ("s3", "S3Storage", "s3"),
    "gs://": ("gcs", "GCSStorage", "gcs"),
    # Azure's containers have many names: Mosaic Streaming's two, and those that Hadoop and Databricks know.
    **dict.fromkeys(
        ("azure://", "azure-dl://", "abfss://", "abfs://", "wasbs://", "wasb://"), ("azure", "AzureStorage", "azure")
    ),
    "oci://": ("oci", "OCIStorage", "s3"),
    "dbfs:/Volumes/": ("databricks", "VolumeStorage", "databricks"),
    "dbfs:/": ("databricks", "DbfsStorage", "databricks"),
}


def open_storage(path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Storage:
    """Give the storage of a data set's path: a folder, `file:` and a folder, or a store's `scheme://…`.

    `dbfs:/…` is always read and written by Databricks' API, also where a folder is mounted: for that, write its own
    path, `/Volumes/…` or `/dbfs/…`.

    Args:
        path: the data set's path.
        options: of the store, by name, instead of what the environment says: `endpoint`, `profile`, …

    Raises:
        ImportError: the store's library is not installed.
        ValueError: the path's scheme has no backend, or the store no such option.
    """
    path = os.fspath(path)
    options = dict(options or {})
    if re.match(r"[a-z][a-z0-9+.-]*://[^/@]*:[^/@]*@", path, re.IGNORECASE) or re.search(
        r"[?&](sig|.*signature)=", path, re.I
    ):
        raise ValueError(
            f"a path of {path.partition('://')[0]}:// holds a password or a signature, which messages would show; give "
            "them as storage options, or in the environment"
        )
    spelled = re.sub("^dbfs:/+", "dbfs:/", path.lower())
    prefix = next((prefix for prefix in _BACKENDS if spelled.startswith(prefix.lower())), None)
    if prefix is not None or ("://" in path and not spelled.startswith("file://")):
        # A scheme that is not here is one of fsspec's, if it is any.
        module, kind, extra = _BACKENDS.get(prefix or "", ("filesystem", "FilesystemStorage", "fsspec"))
        try:
            backend = getattr(importlib.import_module(f"mds_core.storage.{module}"), kind)
        except ModuleNotFoundError as error:
            ours = "" if prefix else f" where it is none of {', '.join(_BACKENDS)}"
            raise ModuleNotFoundError(
                f"{path} needs a library{ours}: pip install 'mds-spark[{extra}]' ({error})"
            ) from None
        _check_options(path, options, backend.OPTIONS)
        storage: Storage = backend.open(path, options)
        return storage
    _check_options(path, options, ())
    if path.startswith("file:/"):
        return LocalStorage(_folder_of(path))
    # A drive of Windows has one letter; a folder of such a name can be made, but hardly on purpose.
    if re.match(r"[a-z][a-z0-9+.-]+:/", path, re.IGNORECASE) and not os.path.isdir(path):
        raise ValueError(
            f"no storage backend for {path!r}, which looks like a URL that lost a slash (pathlib.Path takes one away); "
            f"for a new folder of this name, write './{path}'"
        )
    return LocalStorage(path)


def _check_options(path: str, options: Mapping[str, str], known: tuple[str, ...] | None) -> None:
    unknown = [] if known is None else sorted(set(options) - set(known))
    if unknown:
        expected = ", ".join(known or ()) or "none for a folder"
        raise ValueError(f"{path}: no storage option {', '.join(unknown)}; expected {expected}")


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
