"""StreamingDataset: a data set for training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from mds_core.reader import MDSReader
from mds_core.sizes import parse_count
from mds_torch.order import Deal, EpochOrder
from mds_torch.order.sequence import DEFAULT_BLOCK, Positions
from mds_torch.world import World, find_worker, find_world

# More rows a turn make no call cheaper.
_MOST_ROWS_AT_ONCE = 2048


class StreamingDataset(IterableDataset[dict[str, Any]]):
    """An MDS data set for training: each sample once an epoch, over all ranks and all DataLoader workers.

    Iterating it gives this rank's samples, dicts of a value for each column; `len(dataset)` is their number, and
    `dataset[i]` is sample i of the whole data set. Each iteration is an epoch of its own; DataLoader workers other
    than `StreamingDataLoader`'s need `set_epoch` for that.

    To change samples, subclass it and override `__getitem__`:

        class Images(StreamingDataset):
            def __getitem__(self, i):
                sample = super().__getitem__(i)
                return to_tensor(sample["image"]), sample["label"]

    Args:
        local: the data set's folder. It is read where it lies, and never changed.
        remote: the same; the one that is given counts, `remote` if both are.
        split: a subfolder of it that is the data set.
        shuffle: shuffle shards and samples, anew each epoch.
        shuffle_seed: of the shuffle; the same seed gives the same order on any number of ranks and workers.
        shuffle_block_size: about how many samples are shuffled together, 262,144 unless given.
        num_canonical_nodes: into how many pieces the shuffled shards are cut, the number of nodes unless given.
            The order depends on it: set it to go on with another number of nodes.
        batch_size: a rank's; the order in which samples are dealt to ranks depends on it. StreamingDataLoader's
            own counts where it is used.
        validate_hash: the name of a hash in the index; each shard is checked against it when it is opened.
        allow_unsafe_types: read `pkl` columns, too, which runs code of the data set's writer.
        rank: this process's; with `world_size`, instead of asking torch.distributed and the environment.
        world_size: how many ranks read the data set together.
        local_world_size: how many of them share a node.

    Raises:
        FileNotFoundError: there is no data set.
        FormatError: its index is broken.
        ValueError: wrong arguments.

    Example:
        >>> dataset = StreamingDataset(local="/data/reviews", shuffle=True, batch_size=64)
        >>> dataset[0]
        {'stars': np.int32(5), 'text': 'good'}
    """

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 9176,
        shuffle_block_size: int | str | None = None,
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        validate_hash: str | None = None,
        allow_unsafe_types: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
    ):
        path = remote or local
        if not path:
            raise ValueError("StreamingDataset: expected the data set's folder as `local` or `remote`, found neither")
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("num_canonical_nodes", num_canonical_nodes, 1),
            ("shuffle_seed", shuffle_seed, 0),
        ):
            if value is not None and value < least:
                raise ValueError(f"StreamingDataset: {name}: expected at least {least}, found {value}")
        try:
            block_size = DEFAULT_BLOCK if shuffle_block_size is None else parse_count(shuffle_block_size)
        except ValueError as error:
            raise ValueError(f"StreamingDataset: shuffle_block_size: {error}") from None
        self.path = os.path.join(path, split) if split else path
        self.reader = MDSReader(self.path, allow_unsafe_types=allow_unsafe_types, validate_hash=validate_hash)
        self.shuffle = shuffle
        self.shuffle_seed = shuffle_seed
        self.shuffle_block_size = block_size
        self.num_canonical_nodes = num_canonical_nodes
        self.batch_size = batch_size
        self.epoch = 0
        self._given_world = (rank, world_size, local_world_size)
        self._world: World | None = None
        if rank is not None or world_size is not None:
            self._world = find_world(*self._given_world)

    @property
    def world(self) -> World:
        """This process's place among the ranks, found when it is needed: it may be set after the dataset is made."""
        return self._world or find_world(*self._given_world)

    @property
    def size(self) -> int:
        """The number of samples of the whole data set."""
        return len(self.reader)

    @property
    def mean_bytes(self) -> float:
        """How many bytes a sample has, on average."""
        return sum(shard.raw_data.bytes for shard in self.reader.shards) / max(1, self.size)

    @property
    def columns(self) -> dict[str, str]:
        """The encoding of each column, by name."""
        return self.reader.columns

    def __len__(self) -> int:
        return self.deal(1).samples_per_rank

    def __getitem__(self, at: Any) -> Any:
        return self.reader[at]

    def __iter__(self) -> Iterator[Any]:
        epoch = self.next_epoch()
        worker, workers = find_worker()
        ids = self.rank_ids(epoch, self.batch_size or 1, worker, workers)
        return self.samples(ids)

    def samples(self, ids: Iterator[Positions]) -> Iterator[Any]:
        """Give the samples of ids, one by one: what `self[i]` gives of each."""
        if type(self).__getitem__ is not StreamingDataset.__getitem__:
            for some in ids:
                for i in some.tolist():
                    yield self[i]
            return
        for some in ids:
            yield from self.reader.samples(some)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, counted from 0."""
        self.epoch = epoch

    def next_epoch(self) -> int:
        """Begin an epoch: give its number, and count on."""
        epoch = self.epoch
        self.epoch += 1
        return epoch

    def epoch_order(self, epoch: int) -> EpochOrder:
        """Give the global sequence of an epoch: `order[a:b]` are the ids of the samples at positions a to b.

        Example:
            >>> dataset.epoch_order(0)[:4]
            array([7, 2, 9, 4])
        """
        sizes = np.diff(self.reader.starts)
        return EpochOrder(sizes, self._pieces, self.shuffle, self.shuffle_seed, epoch, self.shuffle_block_size)

    @property
    def _pieces(self) -> int:
        return self.num_canonical_nodes or self.world.nodes

    def deal(self, batch_size: int, drop_last: bool = False) -> Deal:
        """Give how the global sequence is dealt to the ranks in batches of a size."""
        return Deal(self.size, self._pieces, batch_size, self.world.ranks, self.world.nodes, drop_last)

    def rank_ids(
        self,
        epoch: int,
        batch_size: int,
        worker: int,
        workers: int,
        *,
        drop_last: bool = False,
        bytes_at_once: int = 1 << 22,
        long_turns: bool = False,
    ) -> Iterator[Positions]:
        """Give the sample ids of this rank's batches of an epoch that belong to a DataLoader worker.

        Args:
            epoch: whose order.
            batch_size: samples a batch.
            worker: this DataLoader worker.
            workers: how many there are.
            drop_last: leave a last global batch that is not full out.
            bytes_at_once: about how many bytes of samples to give the ids of together.
            long_turns: workers take turns of one batch, as torch's DataLoader asks them for; with this, of all the
                batches whose ids are given together.

        Returns:
            Arrays int64[n] of ids; n is a multiple of the batch size, but for the last.
        """
        order, deal, rank = self.epoch_order(epoch), self.deal(batch_size, drop_last), self.world.rank
        rows = min(_MOST_ROWS_AT_ONCE, int(bytes_at_once / max(1.0, self.mean_bytes)))
        # Few enough batches together that all workers have a like number of them.
        together = max(1, min(rows // batch_size, deal.batches // (8 * workers)))
        turn = together if long_turns else 1
        step = together // turn
        turns = range(worker * turn, deal.batches, workers * turn)
        for first in range(0, len(turns), step):
            batches = [number for start in turns[first : first + step] for number in range(start, start + turn)]
            yield order.at(deal.positions(rank, [number for number in batches if number < deal.batches]))

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned, not forked, can't ask torch.distributed: it takes the trainer's place along. A
        # process that is alone may be about to spawn the ranks: those find their own.
        return {**self.__dict__, "_world": self.world if self.world.ranks > 1 else self._world}
