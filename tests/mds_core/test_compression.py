"""Whole shards, compressed and unpacked."""

import bz2
import gzip
import warnings
from contextlib import suppress
from typing import Any

import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds_core import FormatError
from mds_core.compression import ALGORITHMS, check_compression, compress, decompress, parse_compression

EACH = pytest.mark.parametrize("name", ALGORITHMS)
DATA = b"".join(b"%d, " % (i * i) for i in range(2000))


def unpack(data: Any, name: str, size: int) -> bytes:
    return bytes(memoryview(decompress(data, name, size, "the file")))


@EACH
@given(data=st.binary(min_size=1, max_size=2000).map(lambda data: data * 3))
def test_what_is_compressed_unpacks_to_the_same(name: str, data: bytes) -> None:
    assert unpack(compress(data, name), name, len(data)) == data


@pytest.mark.parametrize("text", [f"{n}:{level}" for n, a in ALGORITHMS.items() for level in a.levels if level < 20])
def test_each_level_unpacks_to_the_same(text: str) -> None:
    assert unpack(compress(DATA, text), text, len(DATA)) == DATA


@EACH
@pytest.mark.parametrize("size", [1, len(DATA) - 1, len(DATA) + 1, 10 * len(DATA)])
def test_data_that_unpacks_to_another_size_is_refused(name: str, size: int) -> None:
    with pytest.raises(FormatError, match=rf"the file: .*{name} data.* {size}"):
        unpack(compress(DATA, name), name, size)


@EACH
def test_truncated_data_is_refused(name: str) -> None:
    data = bytes(compress(DATA, name))
    for end in (0, 1, 5, len(data) // 2, len(data) - 1):
        with pytest.raises(FormatError, match=f"the file: .*{name} data"):
            unpack(data[:end], name, len(DATA))


@EACH
def test_data_with_something_behind_it_is_refused(name: str) -> None:
    data = bytes(compress(DATA, name))
    for more in (b"\0" * 20, b"garbage, and a good deal of it", data[: len(data) // 2]):
        with pytest.raises(FormatError, match=f"the file: .*{name} data"):
            unpack(data + more, name, len(DATA))


@EACH
def test_frames_end_to_end_unpack_whole_or_not_at_all(name: str) -> None:
    two = bytes(compress(DATA, name)) * 2
    with pytest.raises(FormatError):
        unpack(two, name, len(DATA))
    if name != "snappy":  # its raw blocks have no end to find
        assert unpack(two, name, 2 * len(DATA)) == DATA * 2


@EACH
@given(data=st.binary(max_size=200), size=st.integers(8, 1000))
def test_garbage_is_refused_or_has_the_size_that_was_asked_for(name: str, data: bytes, size: int) -> None:
    with suppress(FormatError):
        assert len(unpack(data, name, size)) == size


@EACH
@given(at=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_flipped_byte_never_gives_another_size_or_another_error(name: str, at: int, flip: int) -> None:
    data = bytearray(memoryview(compress(DATA, name)))
    data[at % len(data)] ^= flip
    with suppress(FormatError):
        assert len(unpack(data, name, len(DATA))) == len(DATA)


@EACH
def test_a_bomb_stops_at_the_size_of_the_index(name: str) -> None:
    bomb = compress(bytes(1 << 24), name)
    before = pa.total_allocated_bytes()
    with pytest.raises(FormatError):
        unpack(bomb, name, 1000)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_lying_size_of_4_gib_is_refused() -> None:
    with pytest.raises(FormatError, match=r"zstd data unpacks to \d+ bytes, expected 4294967295"):
        unpack(compress(DATA, "zstd"), "zstd", (1 << 32) - 1)


def test_files_of_common_tools_unpack() -> None:
    assert unpack(gzip.compress(DATA[:100]) + gzip.compress(DATA[100:]), "gz", len(DATA)) == DATA
    assert unpack(bz2.compress(DATA[:100]) + bz2.compress(DATA[100:]), "bz2", len(DATA)) == DATA
    assert unpack(lz4.frame.compress(DATA), "lz4", len(DATA)) == DATA


def test_common_tools_unpack_ours() -> None:
    assert gzip.decompress(compress(DATA, "gz")) == DATA
    assert bz2.decompress(compress(DATA, "bz2")) == DATA
    assert lz4.frame.decompress(bytes(memoryview(compress(DATA, "lz4:9")))) == DATA


@pytest.mark.parametrize(
    ("text", "parsed"), [("zstd", ("zstd", 3)), ("br:0", ("br", 0)), ("snappy", ("snappy", None)), ("gz", ("gz", 9))]
)
def test_an_algorithm_has_its_default_level(text: str, parsed: tuple[str, int | None]) -> None:
    assert parse_compression(text) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zip", "unknown compression 'zip'; expected one of br, bz2, gz, lz4, snappy, zstd"),
        ("", "unknown compression ''"),
        (5, "unknown compression 5"),
        ("snappy:1", "snappy has no levels; write 'snappy'"),
        ("zstd:23", "expected zstd:LEVEL with a level from 1 to 22"),
        ("zstd:", "a level from 1 to 22"),
        ("gz:0", "a level from 1 to 9"),
        ("br:-1", "a level from 0 to 11"),
        ("br:٣", "a level from 0 to 11"),
        ("bz2:1:1", "a level from 1 to 9"),
    ],
)
def test_a_wrong_compression_is_refused_with_what_there_is(text: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_compression(text)


def test_lz4_warns_that_the_reference_library_cannot_read_it() -> None:
    with pytest.warns(UserWarning, match="mosaicml-streaming cannot read it; use zstd"):
        check_compression("lz4:3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_compression("zstd")
        check_compression(None)
