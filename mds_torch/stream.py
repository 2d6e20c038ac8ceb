"""Stream: one of several data sets that are mixed."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mds_core.index import Shard
from mds_core.reader import MDSReader
from mds_core.shard import ShardReader
from mds_core.storage import open_storage
from mds_core.storage.local import LocalStorage
from mds_torch.cache import Cache, Fetching, default_folder
from mds_torch.cached import CachedReader
from mds_torch.order.permutations import Positions
from mds_torch.order.sampling import Weight


class Stream:
    """A data set, and how much of it each epoch takes; all of it unless said otherwise.

    Args:
        remote: where the data set is: a path of a store, or a folder.
        local: the folder of this machine to which its shards are fetched. Without `remote`, the data set itself, which
            is read where it lies. Without `local`, what is in a store gets a folder below the user's cache directory
            (`stream.cache_folder`), and a folder is read where it lies.
        split: a subfolder of both that is the data set.
        proportion: how much of an epoch comes from it, relative to the other streams, which then have one, too.
        repeat: how many times an epoch takes it, 0.5 for half of it.
        choose: how many samples an epoch takes of it.
        validate_hash: the name of a hash in the index; each shard is checked against it when it is opened.
        download_retry: how often a shard is tried again that may come at last.
        download_timeout: seconds that a shard may take, with all tries, and a second more for each MiB.
        keep_zip: keep compressed shards beside what they unpack to.
        storage_options: of the store, such as `{"endpoint": "http://localhost:9000"}`; see `open_storage`.

    What is not given is as the dataset has it.

    Raises:
        ValueError: no path; more than one of proportion, repeat and choose, or a negative one.

    Example:
        >>> streams = [Stream(local="/data/a", proportion=3), Stream(local="/data/b", proportion=1)]
        >>> dataset = StreamingDataset(streams=streams)
    """

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
        storage_options: dict[str, str] | None = None,
    ):
        if not (remote or local):
            raise ValueError("Stream: expected a path in local or remote, found neither")
        self.remote = remote
        self.local = local
        self.split = split
        self.weight = Weight(proportion, repeat, choose)
        if wrong := self.weight.wrong():
            raise ValueError(f"Stream {self.folder(split)}: {'; '.join(wrong)}")
        self.download_retry = download_retry
        self.download_timeout = download_timeout
        self.validate_hash = validate_hash
        self.keep_zip = keep_zip
        self.storage_options = storage_options
        # Where shards are fetched to, known when the dataset is made; None: the data set is read where it lies.
        self.cache_folder: str | None = None

    def folder(self, split: str | None) -> str:
        """Give the data set's path, where a dataset has a split for streams without one."""
        return _below(self.remote or self.local or "", self.split or split)

    def reader(
        self,
        split: str | None,
        fetching: Fetching,
        *,
        allow_unsafe_types: bool,
        columns: Sequence[str] | None,
        storage_options: dict[str, str] | None,
    ) -> MDSReader:
        """Open the data set; what the stream does not say is as given."""
        own: dict[str, Any] = {
            "validate_hash": self.validate_hash, "retry": self.download_retry, "timeout": self.download_timeout,
            "keep_zip": self.keep_zip,
        }  # fmt: skip
        fetching = replace(fetching, **{name: value for name, value in own.items() if value is not None})
        options = self.storage_options if self.storage_options is not None else storage_options
        path = self.folder(split)
        storage = open_storage(path, options)
        local = _below(self.local, self.split or split) if self.remote and self.local else None
        if isinstance(storage, LocalStorage):
            if local is None or os.path.realpath(local) == os.path.realpath(storage.root):
                return MDSReader(
                    path, allow_unsafe_types=allow_unsafe_types, validate_hash=fetching.validate_hash, columns=columns
                )
        elif local is None:
            local = default_folder(storage.root)
        assert local is not None
        self.cache_folder = local
        return CachedReader(
            path,
            local,
            fetching,
            allow_unsafe_types=allow_unsafe_types,
            columns=columns,
            storage_options=options,
        )

    @property
    def proportion(self) -> float | None:
        """How much of an epoch comes from it, relative to the other streams."""
        return self.weight.proportion

    @property
    def repeat(self) -> float | None:
        """How many times an epoch takes it."""
        return self.weight.repeat

    @property
    def choose(self) -> int | None:
        """How many samples an epoch takes of it."""
        return self.weight.choose


def _below(path: str, split: str | None) -> str:
    return os.path.join(path, split) if split else path


class JoinedReader(MDSReader):
    """Several data sets as one: the samples of the first, then those of the second, and so on.

    Args:
        readers: of the data sets, at least one.
    """

    def __init__(self, readers: Sequence[MDSReader]):
        self._readers = list(readers)
        self.storage = readers[0].storage
        self.index = readers[0].index
        self._columns = readers[0]._columns
        self._shards = tuple(shard for reader in readers for shard in reader.shards)
        self.first_shards: list[int] = np.cumsum([0, *(len(reader.shards) for reader in readers)]).tolist()
        self.starts = np.concatenate([[0], np.cumsum([shard.samples for shard in self._shards], dtype=np.int64)])
        self._ends = self.starts[1:].tolist()
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._by_range = {}
        # Streams of one folder share its cache.
        caches: dict[str, Cache] = {}
        for reader in readers:
            if isinstance(reader, CachedReader):
                reader.cache = caches.setdefault(reader.cache.folder, reader.cache)
        for cache in caches.values():
            cache.together = list(caches.values())
            cache.check_limit()

    @property
    def is_cached(self) -> bool:
        """Whether any of the data sets is fetched."""
        return any(isinstance(reader, CachedReader) for reader in self._readers)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards' entries in the indexes, in order."""
        return self._shards

    def open_shard(self, number: int) -> ShardReader:
        """Give a shard, opened and checked.

        Raises:
            FileNotFoundError: its file is missing.
            FormatError: its file is not what the index says.
        """
        reader, number = self._of(number)
        return reader.open_shard(number)

    def _of(self, number: int) -> tuple[MDSReader, int]:
        """Give the data set that a shard belongs to, and its number there."""
        reader = int(np.searchsorted(self.first_shards, number, side="right")) - 1
        return self._readers[reader], number - self.first_shards[reader]

    def path_of(self, number: int) -> str:
        """Give a shard's path, for messages."""
        reader, number = self._of(number)
        return reader.storage.describe(reader.shards[number].stored.basename)

    def stream_of(self, number: int) -> tuple[int, int]:
        """Give the first shard, and the one after the last, of the data set that a shard belongs to."""
        reader = int(np.searchsorted(self.first_shards, number, side="right")) - 1
        first: int = self.first_shards[reader]
        return first, self.first_shards[reader + 1]

    def sample_by_range(self, number: int, row: int) -> dict[str, Any] | None:
        """Read one sample of a shard in a store without fetching the shard; None where that is no use."""
        reader, number = self._of(number)
        return reader.sample_by_range(number, row)

    # Reading ahead

    def shards_of(self, ids: Positions) -> Positions:
        """Give the numbers of the shards that samples are in, each once."""
        return np.unique(np.searchsorted(self.starts[1:], ids, side="right"))

    def is_fetched(self, number: int) -> bool:
        """Tell whether a shard needs no fetching."""
        reader, number = self._of(number)
        return not isinstance(reader, CachedReader) or reader.is_fetched(number)

    def fetch_ahead(self, number: int) -> bool:
        """Fetch a shard before it is read; tell whether there was room for it."""
        reader, number = self._of(number)
        return not isinstance(reader, CachedReader) or reader.fetch_ahead(number)
