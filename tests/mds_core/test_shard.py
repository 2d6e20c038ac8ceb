"""A shard's bytes: what is refused when it is opened or read."""

import gc
import json
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mds_core import FormatError, MDSReader, MDSWriter
from mds_core.columnar import decode_columns
from mds_core.compression import decompress
from mds_core.encodings import get_encoding
from mds_core.index import File, Layout, Shard, parse_index
from mds_core.shard import ShardReader, config_bytes, header_bytes

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FIXED = {"a": "int32", "b": "float64"}
ONE = {"a": "int32", "s": "str", "z": "int8"}
TWO = {"a": "int32", "s": "str", "t": "bytes", "z": "int8"}
LAYOUTS = pytest.mark.parametrize("columns", [FIXED, ONE, TWO], ids=["fixed", "one variable", "two variable"])
VALUES = {"a": 7, "b": 0.5, "s": "text", "t": b"raw", "z": -1}


def sample(columns: dict[str, str]) -> bytes:
    values = [get_encoding(encoding).encode(VALUES[name]) for name, encoding in columns.items()]
    variable = [len(v) for v, e in zip(values, columns.values(), strict=True) if get_encoding(e).size is None]
    return struct.pack(f"<{len(variable)}I", *variable) + b"".join(values)


def shard_of(columns: dict[str, str], samples: list[bytes]) -> bytes:
    sizes = np.array([len(data) for data in samples], np.int64)
    return header_bytes(config_bytes(Layout.of(columns)), sizes) + b"".join(samples)


def open_bytes(columns: dict[str, str], data: bytes, samples: int, size: int | None = None) -> ShardReader:
    entry = Shard(Layout.of(columns), samples, File("s.mds", len(data) if size is None else size, {}), None)
    return ShardReader(data, entry, "the/s.mds")


def read_in_every_way(shard: ShardReader) -> list[list[dict[str, Any]]]:
    rows = np.arange(len(shard))
    names = list(shard.layout.column_names)
    columns = decode_columns(shard, 0, len(shard), names)
    return [
        [shard.sample(row) for row in range(len(shard))],
        list(shard.iterate()),
        shard.read(rows),
        [dict(zip(names, row, strict=True)) for row in zip(*(columns[n].to_pylist() for n in names), strict=True)],
    ]


@LAYOUTS
def test_each_way_of_reading_gives_the_same_samples(columns: dict[str, str]) -> None:
    shard = open_bytes(columns, shard_of(columns, [sample(columns)] * 3), 3)
    assert len(shard) == 3
    for samples in read_in_every_way(shard):
        assert samples == [{name: VALUES[name] for name in columns}] * 3


@LAYOUTS
def test_a_shard_may_be_empty(columns: dict[str, str]) -> None:
    shard = open_bytes(columns, shard_of(columns, []), 0)
    assert read_in_every_way(shard) == [[]] * 4
    if columns is FIXED:
        assert len(shard.records()) == 0


def test_samples_may_have_no_bytes() -> None:
    columns = {"e": "ndarray:int8:0", "f": "ndarray:int32:2,0"}
    shard = open_bytes(columns, shard_of(columns, [b"", b""]), 2)
    assert shard.sample(1)["f"].shape == (2, 0)
    assert decode_columns(shard, 0, 2, ["e", "f"])["f"].to_pylist() == [[[], []]] * 2
    assert len(shard.records()) == 2


def test_records_are_a_view_of_the_numbers() -> None:
    shard = open_bytes(FIXED, shard_of(FIXED, [sample(FIXED)] * 3), 3)
    records = shard.records()
    assert records["b"].tolist() == [0.5] * 3
    assert records[np.array([2, 0])].tolist() == [(7, 0.5)] * 2


def test_some_columns_of_some_rows_are_read_in_the_order_asked_for() -> None:
    data = [struct.pack("<Ii", len(text), i) + text + b"\0" for i, text in enumerate([b"", b"one", "zwölf".encode()])]
    shard = open_bytes(ONE, shard_of(ONE, data), 3)
    texts, numbers = shard.values(np.array([2, 0, 2]), [shard.column("s"), shard.column("a")])
    assert texts == ["zwölf", "", "zwölf"]
    assert numbers == [2, 0, 2]


# What the header says


@LAYOUTS
def test_a_truncated_shard_is_refused(columns: dict[str, str]) -> None:
    data = shard_of(columns, [sample(columns)] * 3)
    for end in [*range(0, 24, 3), len(data) // 2, len(data) - 1]:
        with pytest.raises(FormatError, match=f"^the/s.mds: bytes of the file: expected {len(data)} as in the index"):
            open_bytes(columns, data[:end], 3, len(data))
        with pytest.raises(FormatError, match=r"^the/s.mds: (number of samples|offsets|config): "):
            open_bytes(columns, data[:end], min(3, max(0, end - 8) // 4))


Change = Callable[[bytearray, int], None]


def with_u32(position: int, value: int) -> Change:
    def change(data: bytearray, _: int) -> None:
        struct.pack_into("<I", data, position, value)

    return change


def with_config(old: bytes, new: bytes) -> Change:
    def change(data: bytearray, _: int) -> None:
        assert len(old) == len(new)
        assert old in data
        data[:] = data.replace(old, new)

    return change


HEADERS: list[tuple[str, Change, str]] = [
    ("count", with_u32(0, 4), "number of samples: expected 3 as in the index, found 4"),
    ("huge count", with_u32(0, 2**32 - 1), "number of samples: expected 3 as in the index, found 4294967295"),
    ("first offset into the header", with_u32(4, 8), r"offsets: expected rising numbers from 20 to \d+, found \[8, "),
    ("first offset zero", with_u32(4, 0), r"offsets: expected rising numbers from 20 to \d+, found \[0, "),
    ("first offset past the end", with_u32(4, 2**32 - 1), "offsets: expected rising numbers"),
    ("falling offset", with_u32(12, 21), "offsets: expected rising numbers"),
    ("offset outside", with_u32(12, 2**31), "offsets: expected rising numbers"),
    ("last offset inside", with_u32(16, 300), "offsets: expected rising numbers"),
    ("last offset outside", with_u32(16, 2**32 - 1), "offsets: expected rising numbers"),
    ("config not JSON", with_config(b'{"column_encodings"', b'["column_encodings"'), "config: not JSON"),
    ("config not UTF-8", with_config(b'"format"', b'"f\xffrmat"'), "config: not JSON"),
    ("config nested", with_config(b'{"column_encodings"', b"[" * 19), "config: not JSON"),
    ("other format", with_config(b'"mds"', b'"mdx"'), "config: format: expected 'mds' as in the index, found 'mdx'"),
    ("other encoding", with_config(b'"int32"', b'"int64"'), "config: column_encodings: expected .*'int32'.* found"),
    ("other key", with_config(b'"hashes"', b'"bashes"'), "config: hashes: expected .* as in the index, found None"),
    ("other limit", with_config(b"67108864", b"67108865"), "config: size_limit: expected 67108864 .*, found 67108865"),
    ("other version", with_config(b'"version": 2', b'"version": 3'), "config: version: expected 2"),
]


@pytest.mark.parametrize(("change", "message"), [h[1:] for h in HEADERS], ids=[h[0] for h in HEADERS])
@LAYOUTS
def test_a_header_that_lies_is_refused(columns: dict[str, str], change: Change, message: str) -> None:
    data = bytearray(shard_of(columns, [sample(columns)] * 3))
    change(data, 3)
    with pytest.raises(FormatError, match=f"^the/s.mds: {message}"):
        open_bytes(columns, bytes(data), 3)


@pytest.mark.parametrize(
    "config",
    [
        b"",
        b"null",
        b"[]",
        b"5",
        b"{}",
        b"[" * 50_000,
        b"9" * 5000,
        b'{"column_encodings": [' + b'"x",' * 10**5 + b'""]}',
    ],
)
def test_a_config_of_another_kind_is_refused_in_a_short_message(config: bytes) -> None:
    data = header_bytes(config, np.empty(0, np.int64))
    with pytest.raises(FormatError, match=r"^the/s.mds: config: ") as caught:
        open_bytes(FIXED, data, 0)
    assert len(str(caught.value)) < 300


def test_a_config_with_more_keys_is_refused() -> None:
    config = json.dumps({**Layout.of(FIXED).to_json(), "extra": 1}).encode()
    with pytest.raises(FormatError, match="config: keys: expected"):
        open_bytes(FIXED, header_bytes(config, np.empty(0, np.int64)), 0)


# What samples say


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


MOST = 2**32 - 1
LIES: list[tuple[str, dict[str, str], bytes]] = [
    ("fixed, too short", FIXED, bytes(11)),
    ("fixed, too long", FIXED, bytes(13)),
    ("fixed, empty", FIXED, b""),
    ("one, size too large", ONE, u32(5) + bytes(4) + b"text" + b"\0"),
    ("one, size too small", ONE, u32(3) + bytes(4) + b"text" + b"\0"),
    ("one, huge size", ONE, u32(MOST) + bytes(4) + b"text" + b"\0"),
    ("one, no room for the fixed", ONE, u32(0) + bytes(4)),
    ("one, no room for the size", ONE, b"\0\0"),
    ("one, empty", ONE, b""),
    ("two, sum too large", TWO, u32(4, 4) + bytes(4) + b"text" + b"raw" + b"\0"),
    ("two, sum too small", TWO, u32(4, 2) + bytes(4) + b"text" + b"raw" + b"\0"),
    ("two, huge first", TWO, u32(MOST, 3) + bytes(4) + b"text" + b"raw" + b"\0"),
    ("two, huge both", TWO, u32(MOST, MOST) + bytes(4) + b"text" + b"raw" + b"\0"),
    ("two, sum that would wrap", TWO, u32(MOST, 8) + bytes(4) + b"text" + b"raw" + b"\0"),
    ("two, no room for the sizes", TWO, u32(4)),
    ("two, empty", TWO, b""),
]


@pytest.mark.parametrize(("columns", "lie"), [case[1:] for case in LIES], ids=[case[0] for case in LIES])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_sizes_that_lie_are_refused_with_the_sample(columns: dict[str, str], lie: bytes, place: int) -> None:
    samples = [sample(columns)] * 3
    samples[place] = lie
    data = shard_of(columns, samples)
    message = rf"^the/s.mds: (sizes|bytes) of sample {place}: expected "
    if columns is FIXED:
        with pytest.raises(FormatError, match=message):
            open_bytes(columns, data, 3)
        return
    shard = open_bytes(columns, data, 3)
    reads: list[Callable[[], Any]] = [
        lambda: shard.sample(place),
        lambda: list(shard.iterate()),
        lambda: shard.read(np.arange(3)),
        lambda: shard.spans(np.array([place])),
        lambda: shard.values(np.array([2, place]), [0]),
        lambda: decode_columns(shard, 0, 3, ["z"]),
    ]
    for read in reads:
        with pytest.raises(FormatError, match=message):
            read()
    for other in {0, 1, 2} - {place}:
        assert shard.sample(other) == {name: VALUES[name] for name in columns}


def test_a_value_that_is_none_of_its_encoding_is_named() -> None:
    samples = [sample(ONE), u32(1) + bytes(4) + b"\xff" + b"\0"]
    shard = open_bytes(ONE, shard_of(ONE, samples), 2)
    for read in (lambda: shard.sample(1), lambda: list(shard.iterate()), lambda: shard.read(np.array([0, 1]))):
        with pytest.raises(FormatError, match=r"^the/s.mds: sample 1, column 's': str: not UTF-8 at byte 0"):
            read()


# Fuzz


def golden_shards() -> dict[str, tuple[bytes, Shard]]:
    shards = {}
    for folder in sorted(path.parent for path in GOLDEN.rglob("index.json")):
        if folder.name in ("17", "18", "19"):
            continue
        shard = parse_index((folder / "index.json").read_bytes(), "").shards[-1]
        data = (folder / shard.stored.basename).read_bytes()
        if shard.layout.compression is not None:
            data = bytes(memoryview(decompress(data, shard.layout.compression, shard.raw_data.bytes, "")))
        shards[folder.name] = data, shard
    return shards


GOLDEN_SHARDS = golden_shards()


@pytest.mark.parametrize("name", ["scalars", "ndarrays", "images", "one_shard", "hashes"])
@settings(max_examples=100)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 255)), min_size=1, max_size=6), near=st.booleans()
)
def test_a_shard_with_flipped_bytes_reads_or_is_a_format_error(
    name: str, flips: list[tuple[int, int]], near: bool
) -> None:
    data, entry = GOLDEN_SHARDS[name]
    damaged = bytearray(data)
    first = 8 + 4 * entry.samples
    for at, byte in flips:  # near: where samples, and the sizes in them, begin
        damaged[(first + at % 2000) % len(data) if near else at % len(data)] = byte
    with suppress(FormatError):
        shard = ShardReader(bytes(damaged), entry, name)
        safe = [n for n, encoding in entry.layout.columns.items() if encoding != "pkl"]
        places = [shard.column(n) for n in safe]
        for row in range(len(shard)):
            with suppress(FormatError):
                shard.values(np.array([row]), places)
        for column in safe:
            with suppress(FormatError):
                for array in decode_columns(shard, 0, len(shard), [column]).values():
                    array.validate(full=True)


def test_a_shard_is_unmapped_at_once_when_it_is_dropped(tmp_path: Path) -> None:
    """Evicting a shard from a cache must free its disk space, and collecting garbage may come late."""
    columns = {"n": "int64", "s": "str"}
    with MDSWriter(out=str(tmp_path / "text"), columns=columns) as writer:
        writer.write({"n": 1, "s": "text"})
    with MDSWriter(out=str(tmp_path / "numbers"), columns={"n": "int64"}) as writer:
        writer.write({"n": 1})
    gc.disable()
    try:
        for name in ("text", "numbers"):
            reader = MDSReader(str(tmp_path / name))
            assert reader[0]["n"] == 1
            shard = weakref.ref(reader.open_shard(0))
            del reader
            assert shard() is None
    finally:
        gc.enable()
