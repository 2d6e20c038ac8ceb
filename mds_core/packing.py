"""Packing token sequences of different lengths into rows of one length."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mds_core.errors import describe

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows of tokens of several documents each, as `pack_tokens` gives them; all three are int64[rows, length].

    Args:
        tokens: the tokens, and padding.
        documents: which document each token is of: its number in what was packed, -1 for padding. Two tokens of a row
            may attend to each other where these are equal, which is what a block-diagonal mask says.
        positions: where in its document each token is, from 0, also in a part that was cut off; 0 for padding.

    Example:
        >>> packed = pack_tokens([[5, 6, 7], [8, 9]], 4)
        >>> own = packed.documents[:, :, None] == packed.documents[:, None, :]  # bool[rows, length, length]
    """

    tokens: Ints
    documents: Ints
    positions: Ints


def pack_tokens(
    sequences: Sequence[Any], length: int, *, split: bool = True, pad: int = 0, end: int | None = None
) -> Packed:
    """Pack documents, token sequences of any lengths, into rows of one length: each token once, none lost.

    The same documents give the same rows, always and everywhere.

    Args:
        sequences: the documents, a 1-D array or list of integers each, which may be empty.
        length: tokens a row.
        split: lay the documents one after another and cut them where a row ends, so that only the last row has padding.
            Without, a document stays whole: the longest first, each goes to the row with the least room in which it
            fits. One that is longer than a row is cut into parts of `length`, and its last part is placed like a
            document. Rows, and documents in a row, are in the order of `sequences`, and padding is at the rows' ends.
        pad: the token that fills rows; the model needn't know it, as `documents` tells where it is.
        end: a token to append to each document, also to an empty one.

    Raises:
        ValueError: `length` is no length, a sequence no 1-D array of integers, `pad` or `end` no token.

    Example:
        >>> packed = pack_tokens([[5, 6, 7], [8, 9]], 4, end=1)
        >>> packed.tokens
        array([[5, 6, 7, 1],
               [8, 9, 1, 0]])
        >>> packed.documents
        array([[ 0,  0,  0,  0],
               [ 1,  1,  1, -1]])
    """
    _check_int("length", length, 1)
    length = int(length)  # of numpy, it would be too narrow for what is counted with it
    _check_int("pad", pad, -(1 << 63))
    if end is not None:
        _check_int("end", end, -(1 << 63))
    documents = [_document(sequence, number) for number, sequence in enumerate(sequences)]
    sizes = np.array([len(document) for document in documents], np.int64)
    tokens = np.concatenate([np.empty(0, np.int64), *documents])
    if end is not None:
        sizes += 1
        tokens = np.insert(tokens, np.cumsum(sizes - 1), end)
    numbers, positions = np.repeat(np.arange(len(sizes)), sizes), _counted(sizes)
    places = np.arange(len(tokens)) if split else _whole_places(sizes, numbers, positions, length)
    rows = -(-(int(places.max()) + 1) // length) if len(places) else 0

    def laid_out(values: Ints, padding: int) -> Ints:
        out = np.full(rows * length, padding, np.int64)
        out[places] = values
        return out.reshape(rows, length)

    return Packed(laid_out(tokens, pad), laid_out(numbers, -1), laid_out(positions, 0))


def _check_int(name: str, value: Any, least: int) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not least <= value < 1 << 63:
        bound = "that int64 holds" if least < 0 else f"of at least {least}"
        raise ValueError(f"pack_tokens: {name}: expected a whole number {bound}, found {describe(value)}")


def _document(sequence: Any, number: int) -> NDArray[Any]:
    try:
        array = np.asarray(sequence)
    except (TypeError, ValueError) as error:  # numpy's, of lists of different lengths
        raise ValueError(f"{_wrong_document(number)} {describe(sequence)}") from error
    if array.ndim == 1 and not array.size and isinstance(sequence, list | tuple):
        return array.astype(np.int64)  # numpy takes an empty list for floats
    if array.ndim == 0:
        raise ValueError(f"{_wrong_document(number)} {describe(sequence)}")
    if array.ndim > 1 or array.dtype.kind not in "iu" or not np.can_cast(array.dtype, np.int64):
        shape = ", ".join(map(str, array.shape))
        raise ValueError(f"{_wrong_document(number)} {array.dtype}[{shape}]")
    return array


def _wrong_document(number: int) -> str:
    return f"pack_tokens: sequences[{number}]: expected a 1-D array of integers that int64 holds, found"


def _counted(sizes: Ints) -> Ints:
    """Count from 0 in each of some runs: sizes 2 and 3 give 0, 1, 0, 1, 2."""
    starts = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) - np.repeat(starts, sizes)


def _whole_places(sizes: Ints, numbers: Ints, positions: Ints, length: int) -> Ints:
    """Give the place of each token, in all rows one after another, where documents stay whole."""
    # A document is one part; a long one has parts of a whole row each, and a last one.
    counts = -(-sizes // length)
    part = (np.cumsum(counts) - counts)[numbers] + positions // length  # of each token
    part_sizes = np.bincount(part, minlength=counts.sum())
    rows = _best_fit(part_sizes, length)
    # In a row, each part begins where those before it end.
    order = np.argsort(rows, kind="stable")
    starts = np.cumsum(part_sizes[order]) - part_sizes[order]
    before = np.empty_like(starts)
    before[order] = starts - starts[np.searchsorted(rows[order], rows[order])]
    places: Ints = rows[part] * length + before[part] + positions % length
    return places


def _best_fit(sizes: Ints, length: int) -> Ints:
    """Give each of some sizes a row, the largest first and where there is least room, numbered as they come."""
    rows = np.empty(len(sizes), np.int64)
    rooms: list[int] = []  # that some rows have, each room once
    rows_of: defaultdict[int, list[int]] = defaultdict(list)  # by their room
    opened = 0
    for i in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[i])
        at = bisect_left(rooms, size)
        if at == len(rooms):
            row, room, opened = opened, length, opened + 1
        else:
            room = rooms[at]
            row = rows_of[room].pop()
            if not rows_of[room]:
                del rooms[at]
        rows[i] = row
        left = room - size
        if left:
            if not rows_of[left]:
                insort(rooms, left)
            rows_of[left].append(row)
    # Numbered by the first size that each has.
    first = np.unique(rows, return_index=True)[1]
    number = np.empty(opened, np.int64)
    number[np.argsort(first)] = np.arange(opened)
    return number[rows]
