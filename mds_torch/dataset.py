"""StreamingDataset: a data set for training."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.ma  # np.unique does so when it is first called: 10 ms in each worker
from torch.utils.data import IterableDataset, get_worker_info

from mds_core.sizes import parse_count, parse_size
from mds_torch.ahead import read_ahead
from mds_torch.cache import Fetching
from mds_torch.filters import Filter, evaluate
from mds_torch.order.batching import BATCHINGS
from mds_torch.order.deal import Deal
from mds_torch.order.epoch import EpochOrder
from mds_torch.order.permutations import Positions
from mds_torch.order.plan import Plan
from mds_torch.order.sampling import check_weights
from mds_torch.order.shuffles import SHUFFLES
from mds_torch.quarantine import Quarantine
from mds_torch.state import Epoch, Epochs, Progress, from_state, to_state
from mds_torch.stream import JoinedReader, Stream
from mds_torch.world import World, data_world, find_worker, find_world, mesh_world

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

log = logging.getLogger("mds_torch")

# Decoding more at once makes it no faster, and more rows make no call cheaper.
_BYTES_AT_ONCE = 1 << 22
_MOST_ROWS_AT_ONCE = 2048


class StreamingDataset(IterableDataset[Any]):
    """An MDS data set for training: each sample once an epoch, over all ranks and all DataLoader workers.

    Iterating it gives this rank's samples, dicts of a value for each column; `len(dataset)` is their number, and
    `dataset[i]` is sample i of the whole data set. Each iteration is an epoch of its own, in an order that seed and
    epoch decide, and neither ranks nor workers.

    Args:
        streams: several data sets to mix, instead of `remote` and `local`.
        remote: where the data set is: a path of a store, or a folder.
        local: the folder of this machine to which its shards are fetched, which all processes of the machine share.
            Without `remote`, the data set itself, which is read where it lies, and never changed. Without `local`, what
            is in a store gets a folder below the user's cache directory (`stream.cache_folder`; `clean_cache()` empties
            it), and a folder is read where it lies.
        split: a subfolder of both that is the data set.
        download_retry: how often a shard is tried again that may come at last.
        download_timeout: seconds that a shard may take, with all tries, and a second more for each MiB.
        validate_hash: the name of a hash in the index; each shard is checked against it when it is opened.
        keep_zip: keep compressed shards beside what they unpack to.
        epoch_size: samples an epoch, as a number or as text such as "10m"; for streams with proportions, or without
            weights. The sum of the streams' samples unless given.
        predownload: how many samples ahead of what is read, of this process, shards are fetched in the background; as
            many as have 16 shards to fetch, unless given.
        cache_limit: the most bytes on disk of what was fetched, of all streams together, as a number or as text such as
            "100gb". The least recently used shards go first, and none that a process reads as long as there is another.
        sampling_method: for streams of which an epoch takes a part: "balanced" chooses anew each epoch, "fixed" the
            same each time.
        sampling_granularity: how many samples to choose of one shard at a time.
        partition_algo: without meaning: "relaxed" and "orig" are the same here, and any number of nodes resumes.
        num_canonical_nodes: into how many pieces the shuffled shards are cut. The order depends on it. Unless given,
            the number of nodes, or 64 times that for "py1s" and "py2s".
        batch_size: a rank's; the order in which samples are dealt to ranks depends on it. StreamingDataLoader's own
            counts where it is used.
        shuffle: shuffle shards and samples, anew each epoch.
        shuffle_algo: "py1e", "py1br", "py1s", "py2s" or "naive".
        shuffle_seed: of the shuffle; the same seed gives the same order on any number of ranks and workers.
        shuffle_block_size: about how many samples of a piece "py1e" and "py1br" shuffle together, as a number or as
            text; 4,000,000 shared out to the canonical nodes, but at least 262,144, unless given.
        batching_method: "random" mixes the samples of all streams; "stratified" gives each stream its share of any
            stretch of samples; "per_stream" makes each global batch of one stream, "device_per_stream" each rank's
            batch. The last two leave out what of a stream fills no batch.
        allow_unsafe_types: read `pkl` columns, too, which runs code of the data set's writer.
        replication: so many ranks in a row read the same samples, as in tensor and sequence parallelism.
        stream_name: "stream"; there are no others.
        stream_config: arguments of the stream that `remote` and `local` stand for, such as `{"repeat": 2}`.
        columns: the names of the columns to read, all unless given; the others are not decoded.
        transform: a function from a sample to what to give instead of it. It runs in the workers.
        filter: which samples to leave in: a function from ids, int64[n], to bool[n], or a pair of a column's name and
            a function from its values in a shard (an array, or a list of other values) to bool[n]. It is asked for all
            shards, and a column is read in whole for it, once in the process that needs it first; each worker of
            torch's own DataLoader may be such a process: it must answer the same each time.
        pad: repeat up to ranks-1 samples at the end of an epoch, so that all ranks have as many. Without it each
            sample comes exactly once, as evaluation needs it, and some ranks may have a sample, or a batch, less.
        rank: this process's; with `world_size`, instead of asking torch.distributed and the environment.
        world_size: how many ranks read the data set together.
        local_world_size: how many of them share a node.
        device_mesh: the mesh whose dimensions are all of data parallelism, such as `mesh["dp"]`: its places are ranks.
        data_rank: a function from a rank to its data rank, from 0 without gaps; ranks of one data rank read the same.
        on_error: what to do with a shard that can't be read, after all tries: "raise", or "quarantine": log it, and
            read samples of the next shard instead, on all ranks alike (`dataset.quarantined` tells them). Not with a
            filter.
        storage_options: of the store, for streams that have none, such as `{"endpoint": "http://localhost:9000"}`.

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
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | str | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: dict[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        filter: Filter | None = None,
        pad: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
        device_mesh: DeviceMesh | None = None,
        data_rank: Callable[[int], int] | None = None,
        storage_options: dict[str, str] | None = None,
        on_error: str = "raise",
    ):
        wrong = []
        if bool(streams) == bool(remote or local):
            wrong.append("expected streams, or a path in remote or local; found " + ("both" if streams else "neither"))
        if not streams and (remote or local):
            streams = [Stream(remote=remote, local=local, split=split, **(stream_config or {}))]
        self.streams = list(streams or [])
        if not all(isinstance(stream, Stream) for stream in self.streams):
            kinds = [type(stream).__name__ for stream in self.streams]  # values may hold secrets
            raise TypeError(f"StreamingDataset: streams: expected a list of Stream objects, found {kinds}")
        if filter is not None and not callable(filter[1] if isinstance(filter, tuple) and len(filter) == 2 else filter):
            wrong.append(f"filter: expected a function, or a pair of a column's name and one, found {filter!r}")
        functions: dict[str, Any] = {"transform": transform, "data_rank": data_rank}
        for name, function in functions.items():
            if function is not None and not callable(function):
                wrong.append(f"{name}: expected a function, found {function!r}")
        size = _count("epoch_size", epoch_size, wrong)
        block = _count("shuffle_block_size", shuffle_block_size, wrong)
        wrong += check_weights([stream.weight for stream in self.streams], size)
        for name, number, least in (
            ("shuffle_seed", shuffle_seed, 0),
            ("num_canonical_nodes", num_canonical_nodes, 0),
            ("sampling_granularity", sampling_granularity, 1),
            ("batch_size", batch_size, 1),
            ("replication", replication, 1),
            ("rank", rank, 0),
            ("world_size", world_size, 1),
            ("local_world_size", local_world_size, 1),
            ("predownload", predownload, 0),
            ("download_retry", download_retry, 0),
        ):
            wrong += _wrong_number(name, number, least)
        for name, text, known in (
            ("shuffle_algo", shuffle_algo, tuple(SHUFFLES)),
            ("batching_method", batching_method, BATCHINGS),
            ("sampling_method", sampling_method, ("balanced", "fixed")),
            ("partition_algo", partition_algo, ("relaxed", "orig")),
            ("stream_name", stream_name, ("stream",)),
            ("on_error", on_error, ("raise", "quarantine")),
        ):
            if text not in known:
                wrong.append(f"{name}: expected one of {', '.join(known)}, found {text!r}")
        if on_error == "quarantine" and filter is not None:
            wrong.append("on_error: expected raise where there is a filter, which is asked for whole shards")
        if data_rank is not None and replication is not None:
            wrong.append("expected data_rank or replication, found both")
        if device_mesh is not None and (rank is not None or world_size is not None):
            wrong.append("expected device_mesh, or rank and world_size; found both")
        limit = None
        if cache_limit is not None:
            try:
                limit = parse_size(cache_limit)
            except ValueError as error:
                wrong.append(f"cache_limit: {error}")
        if wrong:
            raise ValueError("StreamingDataset: " + "\n".join(wrong))
        self.predownload = predownload
        self._cache_limit = limit
        self._epoch_size = size
        self.sampling_method = sampling_method
        self.sampling_granularity = sampling_granularity
        self.num_canonical_nodes = num_canonical_nodes
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.shuffle_algo = shuffle_algo
        self.shuffle_seed = shuffle_seed
        self.shuffle_block_size = block
        self.batching_method = batching_method
        self.replication = replication
        self.transform = transform
        self.pad = pad
        self._filter = filter
        self._given_world = (rank, world_size, local_world_size)
        self._device_mesh = device_mesh
        self._data_rank = data_rank
        self._world: World | None = None
        if rank is not None or world_size is not None:
            self._world = self._find_world()
        fetching = Fetching(limit, keep_zip, validate_hash, download_retry, download_timeout)
        readers = [
            stream.reader(
                split,
                fetching,
                allow_unsafe_types=allow_unsafe_types,
                columns=columns,
                storage_options=storage_options,
            )
            for stream in self.streams
        ]
        # Streams of other columns can't share a batch that is read column by column.
        self.is_uniform = all(list(reader.columns.items()) == list(readers[0].columns.items()) for reader in readers)
        self.reader = JoinedReader(readers)
        for stream, reader in zip(self.streams, readers, strict=True):
            place = f"fetched to {stream.cache_folder}" if stream.cache_folder else "read where it lies"
            log.info("%s: %d samples in %d shards, %s", reader.storage.root, len(reader), len(reader.shards), place)
        self._quarantine = Quarantine(self.reader) if on_error == "quarantine" else None
        self._stream_shards = [len(reader.shards) for reader in readers]
        self._epochs = Epochs(Epoch(0, 0, num_canonical_nodes or 0, shuffle_seed))
        self.progress: Progress | None = None
        self._told: Epoch | None = None

    # What there is

    @property
    def world(self) -> World:
        """This process's place among the data ranks, found when it is needed: it may be set after this is made."""
        return self._world or self._find_world()

    def _find_world(self) -> World:
        mesh = self._device_mesh
        world = find_world(*self._given_world) if mesh is None else mesh_world(mesh)
        if self._data_rank is not None:
            return data_world(world, self._data_rank)
        if self.replication is None:
            return world
        together = self.replication
        if world.ranks % together:
            raise ValueError(
                f"StreamingDataset: replication: expected a divisor of the {world.ranks} ranks, found {together}"
            )
        return data_world(world, lambda rank: rank // together)

    @property
    def size(self) -> int:
        """The number of samples of all data sets, whatever a filter or the streams' weights leave of them."""
        return len(self.reader)

    num_samples = size

    @property
    def num_streams(self) -> int:
        """The number of streams."""
        return len(self.streams)

    @property
    def columns(self) -> dict[str, str]:
        """The encoding of each column that is read, by name."""
        return self.reader.columns

    @cached_property
    def mean_bytes(self) -> float:
        """How many bytes a sample has, on average."""
        return sum(shard.raw_data.bytes for shard in self.reader.shards) / max(1, self.size)

    def __getitem__(self, at: Any) -> Any:
        found = self.reader[at]
        if self.transform is None:
            return found
        return [self.transform(sample) for sample in found] if isinstance(found, list) else self.transform(found)

    def __getitems__(self, ids: Sequence[int]) -> list[Any]:
        """Give many samples; torch asks a Subset for them."""
        if type(self).__getitem__ is not StreamingDataset.__getitem__:
            return [self[i] for i in ids]
        samples: list[Any] = self[list(ids)]
        return samples

    def get_item(self, sample_id: int) -> Any:
        """Give a sample, as `dataset[sample_id]` does."""
        return self[sample_id]

    # The order

    @cached_property
    def plan(self) -> Plan:
        """What the epochs are made of. A filter is asked when it is first needed."""
        return Plan(
            np.diff(self.reader.starts),
            self._stream_shards,
            [stream.weight for stream in self.streams],
            self._epoch_size,
            self.shuffle_algo if self.shuffle else None,
            self.shuffle_block_size,
            self.batching_method,
            self.sampling_method == "balanced",
            self.sampling_granularity,
            None if self._filter is None else evaluate(self._filter, self.reader),
        )

    def _group(self, batch_size: int | None) -> int:
        """Give how many samples in a row come of one stream; 1 if that does not matter."""
        if not self.plan.has_groups:
            return 1
        if batch_size is None:
            raise ValueError(f"StreamingDataset: batching_method {self.batching_method!r} needs a batch_size")
        return batch_size * (self.world.ranks if self.batching_method == "per_stream" else 1)

    @property
    def epoch_size(self) -> int:
        """How many samples an epoch has, on all ranks together."""
        return self.plan.samples(self._group(self.batch_size))

    def __len__(self) -> int:
        return self.deal(self.batch_size).samples(self.world.rank)

    @property
    def length(self) -> int:
        """How many samples this rank has, `len(dataset)`."""
        return len(self)

    def deal(self, batch_size: int | None, drop_last: bool = False, epoch: Epoch | None = None) -> Deal:
        """Give how an epoch is dealt to the ranks, as far as numbers go: how many samples and batches each has."""
        group, start = (epoch.group, epoch.start) if epoch is not None else (0, 0)
        samples = self.plan.samples(group or self._group(batch_size))
        return Deal(samples, batch_size or 1, self.world.ranks, 1, min(start, samples), drop_last, self.pad)

    def _complete(self, epoch: Epoch) -> Epoch:
        """Give an epoch with its canonical nodes, if they were not known yet."""
        return replace(epoch, pieces=epoch.pieces or self.world.nodes * self.plan.pieces_per_node)

    def epoch_order(self, epoch: int) -> EpochOrder:
        """Give the order of an epoch: `order[a:b]` are the ids of the samples at positions a to b.

        Example:
            >>> dataset.epoch_order(0)[:4]
            array([7, 2, 9, 4])
        """
        return self.order(replace(self._epochs.next.next(), number=epoch), self.batch_size)

    def order(self, epoch: Epoch, batch_size: int | None, drop_last: bool = False) -> EpochOrder:
        """Give the order of an epoch, and how it is dealt to ranks in batches of a size."""
        epoch = self._complete(epoch)
        group = epoch.group or self._group(batch_size)
        sequence = self.plan.sequence(epoch.pieces, epoch.seed, epoch.number, group)
        deal = replace(
            self.deal(batch_size, drop_last, epoch),
            nodes=self.world.nodes,
            group=group if self.batching_method == "device_per_stream" else 1,
            pieces=epoch.pieces,
            pieces_of=sequence.pieces,
        )
        return EpochOrder(sequence, deal, self.world.rank)

    # Reading it

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads, counted from 0."""
        return self._epochs.next.number

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, counted from 0, from its first sample on.

        Raises:
            ValueError: no such number.
        """
        if wrong := _wrong_number("epoch", -1 if epoch is None else epoch, 0):
            raise ValueError(f"set_epoch: {wrong[0]}")
        self._epochs.next = replace(self._epochs.next.next(), number=epoch)
        self.progress = None

    def begin(self, batch_size: int | None, drop_last: bool = False, in_batches: bool = False) -> Progress:
        """Begin an epoch, and count on: give what it is, and that nothing of it was delivered yet.

        Args:
            batch_size: a rank's.
            drop_last: leave a last global batch that is not full out.
            in_batches: it is read in whole batches only.

        Raises:
            ValueError: it is to go on within a batch of others; nothing has begun then.
        """
        world = self.world

        def complete(epoch: Epoch) -> Epoch:
            epoch.check_goes_on(world.ranks, 0 if in_batches else find_worker()[1], batch_size or 1)
            return replace(self._complete(epoch), group=epoch.group or self._group(batch_size))

        epoch = self._epochs.begin(complete, self._told)
        self._told = None
        self.progress = Progress(epoch, self.deal(batch_size, drop_last, epoch), world.rank, epoch.skip)
        if get_worker_info() is None:
            log.info("epoch %d begins at sample %d, rank %d of %d", epoch.number, epoch.start, world.rank, world.ranks)
        return self.progress

    def __iter__(self) -> Iterator[Any]:
        # Whoever only probes an iterator begins no epoch. In a worker, torch asks for one when an epoch begins, and
        # torchdata for a state before the first sample.
        return self._read(self.begin(self.batch_size) if get_worker_info() is not None else None)

    def _read(self, progress: Progress | None) -> Iterator[Any]:
        progress = self.begin(self.batch_size) if progress is None else progress
        worker, workers = find_worker()
        epoch = progress.epoch
        order = self.order(epoch, self.batch_size)
        turns = order.turns(worker, workers, self.rows_at_once(_BYTES_AT_ONCE), skip=epoch.skip)
        for ids in self.ahead(turns):
            progress.samples += len(ids)
            samples, progress.current = self.samples(ids)
            yield from samples
        progress.current, progress.finished = None, True

    def ahead(self, turns: Iterator[Positions]) -> Iterator[Positions]:
        """Give ids of samples as they are given, but for those in quarantine; what they need is fetched ahead."""
        if self.reader.is_cached:
            turns = read_ahead(turns, self.reader, self.predownload)
        return turns if self._quarantine is None else map(self._quarantine.readable, turns)

    @property
    def quarantined(self) -> dict[str, range]:
        """With `on_error="quarantine"`, the path of each shard that could not be read, and the ids of its samples."""
        return {} if self._quarantine is None else self._quarantine.shards

    def rows_at_once(self, size: int) -> int:
        """Give how many samples to read together that have about so many bytes."""
        if self._cache_limit is not None:
            # Workers that are ahead of others by much would need more shards at once than there is room for.
            size = min(size, self._cache_limit // (16 * find_worker()[1]))
        return min(_MOST_ROWS_AT_ONCE, int(size / max(1.0, self.mean_bytes)))

    def samples(self, ids: Positions) -> tuple[Iterator[Any], Iterator[Any]]:
        """Give samples, what `self[i]` gives of each; and what operator.length_hint tells how many are to come of."""
        if type(self).__getitem__ is not StreamingDataset.__getitem__:
            numbers = iter(ids.tolist())
            return _made(self.__getitem__, numbers, ids), numbers
        samples = iter(self.reader.samples(ids))
        return (samples if self.transform is None else _made(self.transform, samples, ids)), samples

    # Resuming

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """Give where to go on: plain numbers, and the same on every rank.

        Args:
            num_samples: how many samples of the epoch all ranks together have had; what was given to the trainer
                unless said, which iterating this dataset and StreamingDataLoader count.
            from_beginning: `num_samples` counts from the epoch's beginning, not from where it was resumed.

        Raises:
            RuntimeError: the samples went through the workers of a torch DataLoader, which tells nobody how many of
                them it has handed over.
        """
        latest, here = self._epochs.latest, self.progress
        if num_samples is not None:
            epoch = latest or self._epochs.next
            start = int(num_samples) + (0 if from_beginning else epoch.start)
            rest = epoch.rest(start)
        elif latest is None:
            rest = self._told or self._epochs.next
        elif here is not None and (get_worker_info() is not None or here.epoch == latest):
            rest = here.rest()
        else:
            raise RuntimeError(
                "state_dict: this epoch is read by the workers of a torch DataLoader, which prefetch, and only the "
                "trainer knows how many samples it has had: give num_samples, of all ranks together, or use "
                "StreamingDataLoader or torchdata's StatefulDataLoader"
            )
        return self.to_state(rest)

    def to_state(self, epoch: Epoch) -> dict[str, Any]:
        """Give what a checkpoint keeps of an epoch that is left to read."""
        return to_state(self._complete(epoch), str(self.plan))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next iteration is the rest of that epoch.

        Raises:
            ValueError: it is none of ours, or of a dataset of other arguments.
        """
        epoch = from_state(state, str(self.plan))
        if get_worker_info() is not None:
            # Each worker is told on its own, and the others may have begun.
            self._told = epoch
        else:
            self._epochs.next = epoch
        self.progress = None

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned, not forked, can't ask torch.distributed: it takes the trainer's place along. A
        # process that is alone may be about to spawn the ranks: those find their own.
        world = self.world if self._device_mesh is not None or self.world.ranks > 1 else self._world
        state = {**self.__dict__, "_world": world, "progress": None}
        if world is not None:
            state |= {"_device_mesh": None, "_data_rank": None}
        if self._filter is None:
            state.pop("plan", None)  # made again faster than sent
        return state


def _made(function: Callable[[Any], Any], given: Iterator[Any], ids: Positions) -> Iterator[Any]:
    """Give what a user's function makes of each of some samples; what it raises names the sample."""
    for one, number in zip(given, ids.tolist(), strict=True):
        try:
            yield function(one)
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"This was raised for sample {number}, which dataset.reader[{number}] gives as stored.")
            raise


def _wrong_number(name: str, number: Any, least: int) -> list[str]:
    if number is None or (isinstance(number, int | np.integer) and least <= number < 1 << 63):
        return []
    return [f"{name}: expected a whole number of at least {least}, found {number!r}"]


def _count(name: str, value: int | str | None, wrong: list[str]) -> int | None:
    if not value or value == "0":
        return None
    try:
        count = parse_count(value)
    except ValueError as error:
        wrong.append(f"{name}: {error}")
        return None
    wrong += _wrong_number(name, count, 1)
    return count
