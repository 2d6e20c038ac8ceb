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
    """A compression: its codec in pyarrow, its default level and all levels."""

    codec: str
    default: int | None
    levels: range


# The default levels are those of the reference writer's libraries.
ALGORITHMS = {
    "br": Algorithm("brotli", 11, range(12)),
    "bz2": Algorithm("bz2", 9, range(1, 10)),
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
    name, colon, level = text.partition(":") if isinstance(text, str) else ("", "", "")
    algorithm = ALGORITHMS.get(name)
    if algorithm is None:
        raise ValueError(f"unknown compression {text!r}; expected one of {', '.join(ALGORITHMS)}")
    if not colon:
        return name, algorithm.default
    if not algorithm.levels:
        raise ValueError(f"compression {text!r}: {name} has no levels; write {name!r}")
    if not (level.isascii() and level.isdigit() and len(level) < 4 and int(level) in algorithm.levels):
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
    if codec == "bz2":  # pyarrow has it as a stream only
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
    # pyarrow's one-step `decompress` does not tell when the data is shorter, and gives memory that nobody wrote to.
    try:
        if name == "snappy":
            found = _snappy_size(data)
            raw: Buffer = pa.Codec(codec).decompress(pa.py_buffer(data), decompressed_size=size)
            more = b""
        else:
            stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec)
            raw, more = stream.read_buffer(size), stream.read(1)
            found = memoryview(raw).nbytes
    except (OSError, ValueError) as error:
        raise FormatError(f"{where}: not {name} data that unpacks to {size} bytes: {error}") from None
    if found != size or more:
        raise FormatError(f"{where}: {name} data unpacks to {'more' if more else found} bytes, expected {size}")
    return raw


def _snappy_size(data: Buffer) -> int:
    """Read what raw snappy data starts with: its unpacked size, 7 bits a byte, the lowest first."""
    size = 0
    for i, byte in enumerate(bytes(memoryview(data)[:5])):
        size |= (byte & 127) << 7 * i
        if byte < 128:
            break
    return size
