"""Compressing and unpacking whole shards, by the names that an index uses: `zstd`, `br:3`, …"""

from __future__ import annotations

import bz2
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from mds_core.errors import FormatError

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True)
class Algorithm:
    """A compression: the file ending's name, its codec in pyarrow (None: bz2) and its levels (default first)."""

    codec: str | None
    default: int | None
    levels: range


# The default levels are those of the reference writer's libraries.
ALGORITHMS = {
    "br": Algorithm("brotli", 11, range(12)),
    "bz2": Algorithm(None, 9, range(1, 10)),
    "gz": Algorithm("gzip", 9, range(1, 10)),
    "lz4": Algorithm("lz4", None, range(1, 13)),
    "snappy": Algorithm("snappy", None, range(0)),
    "zstd": Algorithm("zstd", 3, range(1, 23)),
}


def parse_compression(text: str) -> tuple[str, int | None]:
    """Split `ALGO` or `ALGO:LEVEL` into the algorithm and its level (None where it has none).

    Raises:
        ValueError: an unknown algorithm or level; the message lists what there is.
    """
    name, colon, level = text.partition(":")
    algorithm = ALGORITHMS.get(name)
    if algorithm is None:
        raise ValueError(f"unknown compression {text!r}; expected one of {', '.join(ALGORITHMS)}")
    if not colon:
        return name, algorithm.default
    if not algorithm.levels:
        raise ValueError(f"compression {text!r}: {name} has no levels; write {name!r}")
    if not (level.isascii() and level.isdigit() and int(level) in algorithm.levels):
        first, last = algorithm.levels[0], algorithm.levels[-1]
        raise ValueError(f"compression {text!r}: expected {name}:LEVEL with a level from {first} to {last}")
    return name, int(level)


def check_compression(text: str | None) -> None:
    """Refuse an unknown compression, and warn of one that only this library reads."""
    if text is not None and parse_compression(text)[0] == "lz4":
        warnings.warn("compression lz4: mosaicml-streaming cannot read it; use zstd if it has to", stacklevel=3)


def compress(data: Buffer, text: str) -> Buffer:
    """Compress a whole shard with `ALGO` or `ALGO:LEVEL`."""
    name, level = parse_compression(text)
    codec = ALGORITHMS[name].codec
    if codec is None:
        return bz2.compress(data, 9 if level is None else level)
    compressed: Buffer = pa.Codec(codec, compression_level=level).compress(pa.py_buffer(data))
    return compressed


def decompress(data: Buffer, text: str, size: int, where: str) -> Buffer:
    """Unpack a whole shard, which must have exactly `size` bytes.

    Never allocates more than `size`, whatever the compressed bytes say.

    Raises:
        FormatError: broken bytes or another size, naming `where`.
    """
    name, _ = parse_compression(text)
    codec = ALGORITHMS[name].codec
    raw: Buffer
    try:
        if codec is None:
            unpacker = bz2.BZ2Decompressor()
            raw = unpacker.decompress(data, max_length=size)
            found = len(raw) + (0 if unpacker.eof else len(unpacker.decompress(b"", max_length=1)))
            if not unpacker.eof and found <= size:
                raise EOFError("the data ends early")
        else:
            raw = pa.Codec(codec).decompress(pa.py_buffer(data), decompressed_size=size)
            found = memoryview(raw).nbytes
    except (OSError, ValueError, EOFError) as error:
        raise FormatError(f"{where}: not {name} data that unpacks to {size} bytes: {error}") from None
    if found != size:
        raise FormatError(f"{where}: {name} data unpacks to {found} bytes, expected {size}")
    return raw
