"""Whole batches, column by column: from shards to what torch's default collation gives, without making samples.

A batch is a dict: tensors for numbers and for arrays of one shape, lists for text and bytes, and what default
collation makes of everything else. From a worker to the trainer it travels as one block of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, default_collate

from mds_core.encodings import Array, Bytes, Encoding, Number, Text, get_encoding
from mds_core.errors import FormatError
from mds_core.reader import MDSReader
from mds_core.shard import Rows, scattered
from mds_torch.dataset import StreamingDataset
from mds_torch.world import find_worker


@dataclass(frozen=True)
class Ragged:
    """Values of different sizes back to back: bytes, and int64[n+1] offsets."""

    data: NDArray[np.uint8]
    offsets: Rows

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: slice) -> Ragged:
        first, last, _ = at.indices(len(self))
        offsets = self.offsets[first : last + 1]
        return Ragged(self.data[offsets[0] : offsets[-1]], offsets - offsets[0])

    def is_text(self) -> bool:
        """Tell whether each value is UTF-8."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        try:
            pa.Array.from_buffers(pa.large_binary(), len(self), buffers).cast(pa.large_string())
        except pa.ArrowInvalid:
            return False
        return True

    def values(self, encoding: Encoding) -> list[Any]:
        """Decode each value."""
        view, decode = self.data.data, encoding.decode
        ends = self.offsets.tolist()
        return [decode(view[a:b]) for a, b in pairwise(ends)]


# A column of some samples: an array, values as they are stored, or decoded values.
Column = NDArray[Any] | Ragged | list[Any]


def read_columns(reader: MDSReader, ids: Rows, ragged: bool) -> dict[str, Column]:
    """Read samples column by column.

    Args:
        reader: the data set.
        ids: sample numbers, int64[n], in any order.
        ragged: give text and bytes as `Ragged`, not as lists.
    """
    parts = [(places, _shard_columns(shard, rows, ragged)) for shard, rows, places in reader.by_shard(ids)]
    if len(parts) == 1:
        return parts[0][1]
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    return {name: _put_together([columns[name] for _, columns in parts], order) for name in reader.columns}


def _shard_columns(shard: Any, rows: Rows, ragged: bool) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    if not shard.variable:
        # One gather of whole samples, then a field of it for each column: 4 times as fast as a gather a column.
        records = shard.records()[rows]
        for name, encoding in zip(shard.layout.column_names, shard.encodings, strict=True):
            columns[name] = _typed(records[name], encoding)
        return columns
    for name, encoding, (starts, sizes) in zip(
        shard.layout.column_names, shard.encodings, shard.spans(rows), strict=True
    ):
        if isinstance(sizes, int):
            dtype = encoding.dtype if isinstance(encoding, Number) else f"V{sizes}"
            columns[name] = _typed(scattered(shard.data, dtype)[starts], encoding)
        elif isinstance(encoding, Array):
            stacked = _stacked(shard.data, starts, sizes, encoding)
            columns[name] = shard.values(rows, [shard.column(name)])[0] if stacked is None else stacked
        elif ragged and isinstance(encoding, Text | Bytes):
            pieces = [shard.data[a:b] for a, b in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]
            column = Ragged(np.concatenate(pieces), np.concatenate([[0], np.cumsum(sizes)]))
            if isinstance(encoding, Text) and not column.is_text():
                shard.values(rows, [shard.column(name)])  # raises, and names the sample, which the trainer could not
            columns[name] = column
        else:
            columns[name] = shard.values(rows, [shard.column(name)])[0]
    return columns


def _typed(values: NDArray[Any], encoding: Encoding) -> NDArray[Any]:
    if isinstance(encoding, Array):
        assert encoding.dtype is not None
        assert encoding.shape is not None
        return np.ascontiguousarray(values).view(encoding.dtype).reshape(len(values), *encoding.shape)
    return np.ascontiguousarray(values)


def _stacked(data: NDArray[np.uint8], starts: Rows, sizes: Rows, encoding: Array) -> NDArray[Any] | None:
    """Stack arrays that have one shape and dtype; None if they haven't, or are broken."""
    size = int(sizes[0])
    if (sizes != size).any():
        return None
    try:
        first = encoding.decode(data[starts[0] : starts[0] + size].data)
    except FormatError:
        return None
    head = size - first.nbytes
    blocks = scattered(data, f"V{size}")[starts].view(np.uint8).reshape(len(starts), size)
    if (blocks[:, :head] != blocks[0, :head]).any():
        return None
    values = np.ascontiguousarray(blocks[:, head:])
    return values.view(first.dtype).reshape(len(starts), *first.shape)


def _put_together(parts: list[Any], order: Rows) -> Column:
    """Put the columns of several shards together, in the order in which the samples were asked for."""
    if all(isinstance(part, np.ndarray) for part in parts) and len({(p.dtype, p.shape[1:]) for p in parts}) == 1:
        together: Column = np.concatenate(parts)[order]
        return together
    if all(isinstance(part, Ragged) for part in parts):
        pieces = [part.data[a:b] for part in parts for a, b in pairwise(part.offsets.tolist())]
        sizes = np.concatenate([np.diff(part.offsets) for part in parts])[order]
        return Ragged(np.concatenate([pieces[i] for i in order]), np.concatenate([[0], np.cumsum(sizes)]))
    values = [value for part in parts for value in part]
    return [values[i] for i in order]


def batches_of(columns: dict[str, Column], size: int) -> Iterator[dict[str, Any]]:
    """Cut columns into batches, in the process that trains."""
    for first, last in _cuts(_length(columns), size):
        yield {name: _collated(column, first, last) for name, column in columns.items()}


def _collated(column: Any, first: int, last: int) -> Any:
    part = column[first:last]
    if isinstance(part, np.ndarray):
        # A copy, where a view would keep the samples of many batches alive.
        return torch.from_numpy(part.copy())
    return part if isinstance(part[0], str | bytes) else default_collate(part)


def _length(columns: dict[str, Column]) -> int:
    return len(next(iter(columns.values())))


def _cuts(samples: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, samples)) for first in range(0, samples, size)]


@dataclass
class Packed:
    """Some batches on their way from a worker: one block of bytes, and where each column lies in it.

    `places` holds, by name: start, dtype and shape of an array; or, for a `Ragged`, start of the data, start of the
    offsets, and the number of values. `others` holds what has no place in the block, collated, a value a batch.
    """

    block: Any
    samples: int
    places: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    others: dict[str, list[Any]] = field(default_factory=dict)

    def pin_memory(self) -> Packed:
        """Give the same batches in pinned memory; DataLoader calls it."""
        return Packed(torch.as_tensor(self.block).pin_memory(), self.samples, self.places, self.others)


# Decoding more at once makes it no faster; a message takes the trainer as long as unpacking this many bytes.
_BYTES_AT_ONCE = 1 << 22
_BYTES_A_MESSAGE = 1 << 18
# Up to this size a block goes through the worker's pipe, beyond it through shared memory, which costs more to set up.
_MOST_IN_PIPE = 1 << 16
_ALIGNMENT = 64


def pack(columns: dict[str, Column], size: int) -> Packed:
    """Put the columns of some batches into one block."""
    packed = Packed(None, _length(columns))
    arrays: list[tuple[int, NDArray[Any]]] = []
    end = 0

    def place(array: NDArray[Any]) -> int:
        nonlocal end
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        arrays.append((start, array))
        end = start + array.nbytes
        return start

    for name, column in columns.items():
        if isinstance(column, Ragged):
            packed.places[name] = (place(column.data), place(column.offsets), len(column))
        elif isinstance(column, np.ndarray):
            packed.places[name] = (place(column), column.dtype.str, column.shape)
        else:
            packed.others[name] = [_collated(column, *cut) for cut in _cuts(packed.samples, size)]
    block = np.empty(end, np.uint8) if end <= _MOST_IN_PIPE else _shared(end)
    for start, array in arrays:
        block[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    packed.block = block if end <= _MOST_IN_PIPE else torch.from_numpy(block)
    return packed


def _shared(size: int) -> NDArray[np.uint8]:
    # As torch's default collation allocates in workers: straight in shared memory, so that sending copies nothing.
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    shared: NDArray[np.uint8] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return shared


def unpack(packed: Packed, encodings: dict[str, str], size: int) -> Iterator[dict[str, Any]]:
    """Cut what a worker packed into its batches, columns in the data set's order."""
    raw = torch.as_tensor(packed.block).numpy()
    columns: dict[str, Any] = {}
    for name, (start, *rest) in packed.places.items():
        if isinstance(rest[0], str):
            dtype, shape = np.dtype(rest[0]), rest[1]
            nbytes = math.prod(shape) * dtype.itemsize
            columns[name] = torch.from_numpy(raw[start : start + nbytes].view(dtype).reshape(shape))
        else:
            offsets = raw[rest[0] : rest[0] + 8 * (rest[1] + 1)].view(np.int64)
            columns[name] = Ragged(raw[start : start + offsets[-1]], offsets).values(get_encoding(encodings[name]))
    cuts = _cuts(packed.samples, size)
    for number, (first, last) in enumerate(cuts):
        batch = {}
        for name in encodings:
            if name in packed.others:
                batch[name] = packed.others[name][number]
            else:
                part = columns[name][first:last]
                batch[name] = part.clone() if len(cuts) > 1 and isinstance(part, torch.Tensor) else part
        yield batch


class Samples(IterableDataset[Any]):
    """This rank's samples of an epoch, dealt in the loader's batches, as a dataset for a DataLoader.

    Args:
        dataset: whose samples.
        batch_size: samples a batch.
        drop_last: leave a last global batch that is not full out.

    `epoch` is a number, which travels to workers that start for this epoch; or, for workers that stay, a shared
    int64[1] tensor.
    """

    def __init__(self, dataset: StreamingDataset, batch_size: int, drop_last: bool):
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.epoch: int | torch.Tensor = 0

    def __iter__(self) -> Iterator[Any]:
        worker, workers = find_worker()
        epoch = int(self.epoch)
        ids = self.dataset.rank_ids(epoch, self.batch_size, worker, workers, drop_last=self.drop_last)
        return self.dataset.samples(ids)


class Batches(Samples):
    """This rank's batches of an epoch, for a DataLoader that does not collate: in a worker, packed, several together.

    Args:
        dataset: whose samples.
        batch_size: samples a batch.
        drop_last: leave a last global batch that is not full out.
        packed: for the way from a worker to the trainer.
    """

    def __init__(self, dataset: StreamingDataset, batch_size: int, drop_last: bool, packed: bool):
        super().__init__(dataset, batch_size, drop_last)
        self.packed = packed

    def __iter__(self) -> Iterator[Any]:
        worker, workers = find_worker()
        turns = self.dataset.rank_ids(
            int(self.epoch),
            self.batch_size,
            worker,
            workers,
            drop_last=self.drop_last,
            bytes_at_once=_BYTES_A_MESSAGE if self.packed else _BYTES_AT_ONCE,
            long_turns=True,
        )
        for ids in turns:
            columns = read_columns(self.dataset.reader, ids, self.packed)
            if self.packed:
                yield pack(columns, self.batch_size)
            else:
                yield from batches_of(columns, self.batch_size)
