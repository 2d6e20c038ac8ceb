"""Stream: one of several data sets that are mixed."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from mds_core.index import Shard
from mds_core.reader import MDSReader
from mds_core.shard import ShardReader
from mds_torch.order.sampling import Weight


class Stream:
    """A data set, and how much of it each epoch takes; all of it unless said otherwise.

    Args:
        remote: where the data set is.
        local: the same: a folder is read where it lies. The one that is given counts, `remote` if both are.
        split: a subfolder of it that is the data set.
        proportion: how much of an epoch comes from it, relative to the other streams, which then have one, too.
        repeat: how many times an epoch takes it, 0.5 for half of it.
        choose: how many samples an epoch takes of it.
        validate_hash: the name of a hash in the index; each shard is checked against it when it is opened.
        download_retry: without meaning for folders.
        download_timeout: without meaning for folders.
        keep_zip: without meaning: what is compressed is unpacked to a file without a name, and stays as it is.

    What is not given is as the dataset has it.

    Raises:
        ValueError: no path; more than one of proportion, repeat and choose, or a negative one.

    Example:
        >>> StreamingDataset(streams=[Stream(local="/data/a", proportion=3), Stream(local="/data/b", proportion=1)])
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

    def folder(self, split: str | None) -> str:
        """Give the data set's folder, where a dataset has a split for streams without one."""
        path = self.remote or self.local or ""
        split = self.split or split
        return os.path.join(path, split) if split else path

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


class JoinedReader(MDSReader):
    """Several data sets as one: the samples of the first, then those of the second, and so on.

    Args:
        readers: of the data sets, at least one.
    """

    def __init__(self, readers: Sequence[MDSReader]):
        self._readers = list(readers)
        self._storage = readers[0]._storage
        self.index = readers[0].index
        self._columns = readers[0]._columns
        self._shards = tuple(shard for reader in readers for shard in reader.shards)
        self.first_shards: list[int] = np.cumsum([0, *(len(reader.shards) for reader in readers)]).tolist()
        self.starts = np.concatenate([[0], np.cumsum([shard.samples for shard in self._shards], dtype=np.int64)])
        self._ends = self.starts[1:].tolist()
        self._open: OrderedDict[int, ShardReader] = OrderedDict()

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
        reader = int(np.searchsorted(self.first_shards, number, side="right")) - 1
        return self._readers[reader].open_shard(number - self.first_shards[reader])
