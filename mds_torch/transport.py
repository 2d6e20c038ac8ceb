"""Batches on their way from a worker to the trainer: one block of shared memory for several, used again and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from mds_core.encodings import Text, get_encoding
from mds_torch.batches import Column, Ragged, collated, cuts, length
from mds_torch.shared import SharedArray

_ALIGNMENT = 64


class Slots:
    """Places for blocks on their way, a few for each worker: the trainer frees a slot as soon as it has read it.

    New memory for each block would cost more than all else: the kernel clears it page by page.

    Args:
        workers: how many there are.
        slots: how many blocks a worker can have on their way.
        size: bytes of a slot. Only what is used of it takes memory.
    """

    def __init__(self, workers: int, slots: int, size: int):
        self._memory = SharedArray((workers, slots, size), np.uint8)
        self._taken = SharedArray((workers, slots), np.uint8)

    def clear(self, worker: int) -> None:
        """Free a worker's slots."""
        self._taken.array[worker] = 0

    def take(self, worker: int, size: int) -> int | None:
        """Take one of a worker's slots; None if none is free, or large enough."""
        free = np.flatnonzero(self._taken.array[worker] == 0)
        if not len(free) or size > self._memory.array.shape[2]:
            return None
        self._taken.array[worker, free[0]] = 1
        return int(free[0])

    def memory(self, worker: int, slot: int) -> NDArray[np.uint8]:
        """Give a slot's bytes."""
        memory: NDArray[np.uint8] = self._memory.array[worker, slot]
        return memory

    def free(self, worker: int, slot: int) -> None:
        """Let a slot be used again."""
        self._taken.array[worker, slot] = 0


@dataclass
class Packed:
    """Some batches: where their bytes lie, and where each column lies in these.

    `where` is a (worker, slot), or a tensor in shared memory of its own. `places` holds, by name: start, dtype and
    shape of an array; or, for a `Ragged`, start of the data, start of the offsets, and the number of values.
    `others` holds what is no bytes, collated, a value a batch.
    """

    where: Any
    samples: int
    places: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    others: dict[str, list[Any]] = field(default_factory=dict)


def pack(columns: dict[str, Column], encodings: dict[str, str], size: int, slots: Slots, worker: int) -> Packed:
    """Put the columns of some batches of a size into one block.

    Raises:
        UnicodeError: a text is not UTF-8.
    """
    packed = Packed(None, length(columns))
    writes: list[tuple[int, int, Callable[[NDArray[np.uint8]], Any]]] = []
    end = 0

    def place(nbytes: int, write: Callable[[NDArray[np.uint8]], Any]) -> int:
        nonlocal end
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        writes.append((start, nbytes, write))
        end = start + nbytes
        return start

    for name, column in columns.items():
        if isinstance(column, Ragged):
            offsets = np.concatenate([[0], np.cumsum(column.sizes)])
            is_text = isinstance(get_encoding(encodings[name]), Text)
            data = place(int(offsets[-1]), _ragged_writer(column, offsets if is_text else None))
            packed.places[name] = (data, place(offsets.nbytes, _array_writer(offsets)), len(column))
        elif isinstance(column, np.ndarray):
            packed.places[name] = (place(column.nbytes, _array_writer(column)), column.dtype.str, column.shape)
        else:
            packed.others[name] = [collated(column, *cut) for cut in cuts(packed.samples, size)]
    slot = slots.take(worker, end)
    if slot is None:
        block = _shared(end)
        packed.where = torch.from_numpy(block)
    else:
        block = slots.memory(worker, slot)
        packed.where = worker, slot
    for start, nbytes, write in writes:
        write(block[start : start + nbytes])
    return packed


def _array_writer(array: NDArray[Any]) -> Callable[[NDArray[np.uint8]], Any]:
    return lambda block: np.copyto(block, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _ragged_writer(column: Ragged, text: NDArray[np.int64] | None) -> Callable[[NDArray[np.uint8]], Any]:
    def write(block: NDArray[np.uint8]) -> None:
        np.concatenate(column.pieces, out=block)
        if text is not None and not _is_utf8(block, text):
            raise UnicodeError("not UTF-8")

    return write


def _is_utf8(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bool:
    """Tell whether each of some values back to back is UTF-8."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    try:
        pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _shared(size: int) -> NDArray[np.uint8]:
    # As torch's default collation allocates in workers: straight in shared memory, so that sending copies nothing.
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    shared: NDArray[np.uint8] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return shared


def unpack(packed: Packed, encodings: dict[str, str], size: int, slots: Slots, pin: bool) -> Iterator[dict[str, Any]]:
    """Cut what a worker packed into its batches, columns in the data set's order.

    Args:
        packed: what came.
        encodings: of the columns, by name.
        size: samples a batch.
        slots: where it may lie; its slot is free when this returns.
        pin: give tensors in pinned memory.
    """
    in_slot = isinstance(packed.where, tuple)
    raw = slots.memory(*packed.where) if in_slot else packed.where.numpy()
    columns: dict[str, list[Any]] = dict(packed.others)
    batches = cuts(packed.samples, size)
    for name, (start, *rest) in packed.places.items():
        if isinstance(rest[0], str):
            dtype, shape = np.dtype(rest[0]), rest[1]
            nbytes = math.prod(shape) * dtype.itemsize
            column = torch.from_numpy(raw[start : start + nbytes].view(dtype).reshape(shape))
            parts = [column[first:last] for first, last in batches]
            columns[name] = [part.pin_memory() if pin else part.clone() for part in parts]
        else:
            ends = raw[rest[0] : rest[0] + 8 * (rest[1] + 1)].view(np.int64).tolist()
            view, decode = raw[start : start + ends[-1]].data, get_encoding(encodings[name]).decode
            values = [decode(view[a:b]) for a, b in pairwise(ends)]
            columns[name] = [values[first:last] for first, last in batches]
    if in_slot:
        slots.free(*packed.where)
    return ({name: columns[name][number] for name in encodings} for number in range(len(batches)))
