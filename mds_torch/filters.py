"""Filters: which samples to leave in, asked shard by shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mds_core.encodings import Number
from mds_core.progress import progress
from mds_core.reader import MDSReader

# Asked for ids, or for a column's values.
Filter = Callable[[Any], Any] | tuple[str, Callable[[Any], Any]]


def evaluate(filter: Filter, reader: MDSReader) -> list[NDArray[np.uint8]]:
    """Ask a filter for each shard: give a bit a sample, packed.

    Raises:
        ValueError: it does not answer with a bool for each sample; there is no such column.
    """
    column, keeps = filter if isinstance(filter, tuple) else (None, filter)
    masks = []
    for number, entry in enumerate(progress(reader.shards, "filtering", "shards")):
        ids = np.arange(reader.starts[number], reader.starts[number + 1])
        values = ids if column is None else _values(reader, number, column)
        mask = np.asarray(keeps(values))
        if mask.shape != ids.shape or mask.dtype != bool:
            raise ValueError(
                f"filter: expected bool[{len(ids)}] for the samples of {entry.stored.basename}, "
                f"found {mask.dtype}[{', '.join(map(str, mask.shape))}]"
            )
        masks.append(np.packbits(mask))
    return masks


def _values(reader: MDSReader, number: int, column: str) -> Any:
    shard = reader.open_shard(number)
    names = shard.layout.column_names
    if column not in names:
        raise ValueError(f"filter: expected a column from {list(names)} of {shard.where}, found {column!r}")
    place = shard.column(column)
    rows = np.arange(len(shard))
    encoding = shard.encodings[place]
    values = shard.values(rows, [place])[0]
    return np.array(values, encoding.dtype) if isinstance(encoding, Number) else values
