"""Whole columns <-> samples: the same bytes as row by row, and the same errors."""

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mds_core import EncodeError, FormatError, MDSReader, MDSWriter
from mds_core.columnar import decode_columns, encode_batch, null_rows
from mds_core.encodings import NUMBERS, get_encoding
from mds_core.index import File, Layout, Shard
from mds_core.shard import ShardReader, config_bytes, header_bytes


def same(value: Any) -> Any:
    return value


@dataclass
class Case:
    """A column: its encoding, Arrow type and values, and what a row holds and a reader gives for one of them."""

    encoding: str
    kind: pa.DataType
    values: st.SearchStrategy[Any]
    to_row: Callable[[Any], Any] = same
    read: Callable[[Any], Any] | None = None  # from the row's value; None: the row's value itself


def numbers(name: str) -> st.SearchStrategy[Any]:
    if name == "float16":
        return st.floats(width=16).map(np.float16)
    if name.startswith("float"):
        return st.floats(width=32 if name == "float32" else 64)
    limits = np.iinfo(name)
    return st.integers(int(limits.min), int(limits.max))


def lists(values: st.SearchStrategy[Any], *sizes: int) -> st.SearchStrategy[Any]:
    for size in reversed(sizes):
        values = st.lists(values, min_size=size, max_size=size)
    return values


def tables(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists of lists of one length."""
    return st.tuples(st.integers(1, 3), st.integers(0, 3)).flatmap(lambda shape: lists(values, *shape))


def as_array(name: str, ndim: int = 1) -> Callable[[Any], Any]:
    return lambda value: np.array(value, name).reshape(np.shape(value) if value else (0,) * ndim)


def array(name: str) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(name))


def as_pickle(value: Any) -> bytes:
    return value if isinstance(value, bytes) else pickle.dumps(value)


INTS, FLOATS32, TEXTS = numbers("int32"), numbers("float32"), st.text(max_size=10)
DATES = st.dates()
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
SPANS = st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000))
EPOCH = datetime(1970, 1, 1)
MICROSECOND = timedelta(microseconds=1)


def in_unit(unit: str) -> Callable[[datetime], datetime]:
    return lambda time: time.replace(microsecond={"s": 0, "ms": time.microsecond // 1000 * 1000}[unit])


def decimals(digits: int, scale: int) -> st.SearchStrategy[Any]:
    whole = 10**digits - 1
    return st.integers(-whole, whole).map(lambda value: Decimal(f"{value}e{-scale}"))


CASES = {
    **{name: Case(name, array(name), numbers(name)) for name in NUMBERS},
    "int": Case("int", pa.int64(), numbers("int64")),
    "int of int8": Case("int", pa.int8(), numbers("int8")),
    "float64 of int32": Case("float64", pa.int32(), INTS, float),
    "int16 of float64": Case("int16", pa.float64(), numbers("int16").map(float), int),
    "float32 of float64": Case("float32", pa.float64(), FLOATS32),
    "uint8 of bool": Case("uint8", pa.bool_(), st.booleans(), int),
    "int32 of date": Case("int32", pa.date32(), DATES, lambda value: (value - date(1970, 1, 1)).days),
    "int64 of us": Case("int64", pa.timestamp("us"), TIMES, lambda value: (value - EPOCH) // MICROSECOND),
    "int64 of us, tz": Case(
        "int64",
        pa.timestamp("us", "Asia/Tokyo"),
        TIMES.map(lambda time: time.replace(tzinfo=timezone.utc)),
        lambda value: (value.astimezone(timezone.utc).replace(tzinfo=None) - EPOCH) // MICROSECOND,
    ),
    **{
        f"int64 of {unit}": Case(
            "int64", pa.timestamp(unit), TIMES.map(in_unit(unit)), lambda value: (value - EPOCH) // MICROSECOND
        )
        for unit in ("s", "ms")
    },
    "int64 of duration": Case("int64", pa.duration("us"), SPANS, lambda value: value // MICROSECOND),
    "int32 of decimal": Case("int32", pa.decimal128(12, 2), INTS.map(Decimal), int),
    "float64 of decimal": Case("float64", pa.decimal128(20, 2), decimals(15, 2), float),
    "str": Case("str", pa.string(), TEXTS),
    "large str": Case("str", pa.large_string(), TEXTS),
    "str of dictionary": Case("str", pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["", "a", "ü"])),
    "str of view": Case("str", pa.string_view(), TEXTS),
    "bytes": Case("bytes", pa.binary(), st.binary(max_size=10)),
    "large bytes": Case("bytes", pa.large_binary(), st.binary(max_size=10)),
    "fixed bytes": Case("bytes", pa.binary(3), st.binary(min_size=3, max_size=3)),
    "png": Case("png", pa.binary(), st.binary(max_size=10)),
    "int32 of bytes": Case("int32", pa.binary(4), INTS.map(lambda value: value.to_bytes(4, "little", signed=True))),
    "str_int": Case("str_int", pa.int64(), numbers("int64"), same, str),
    "str_int of uint64": Case("str_int", pa.uint64(), numbers("uint64"), same, str),
    "str_float": Case("str_float", pa.float64(), numbers("float64")),
    "str_float of float32": Case("str_float", pa.float32(), FLOATS32),
    "str_float of int": Case("str_float", pa.int32(), INTS, same, float),
    "str_decimal": Case("str_decimal", pa.decimal128(38, 10), decimals(38, 10), same, str),
    "str_decimal small": Case("str_decimal", pa.decimal128(5, 5), decimals(5, 5), same, str),
    "str_decimal whole": Case("str_decimal", pa.decimal128(9, 0), decimals(9, 0), same, str),
    "str_decimal negative scale": Case("str_decimal", pa.decimal128(5, -3), decimals(5, -3), same, str),
    "str_decimal 256": Case("str_decimal", pa.decimal256(50, 20), decimals(50, 20), same, str),
    "json of int": Case("json", pa.int64(), st.none() | numbers("int64"), same, json.dumps),
    "json of text": Case("json", pa.string(), st.none() | TEXTS, same, json.dumps),
    "json of list": Case("json", pa.list_(pa.int32()), st.none() | st.lists(st.none() | INTS), same, json.dumps),
    "json of struct": Case(
        "json",
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.none() | st.fixed_dictionaries({"a": st.none() | INTS, "b": TEXTS}),
        same,
        json.dumps,
    ),
    "pkl": Case("pkl", pa.int64(), st.none() | numbers("int64"), same, pickle.dumps),
    "pkl of bytes": Case("pkl", pa.binary(), st.none() | INTS.map(pickle.dumps), same, as_pickle),
    **{
        f"list<{name}>": Case(f"ndarray:{name}", pa.list_(array(name)), st.lists(numbers(name)), as_array(name))
        for name in NUMBERS
    },
    "large list": Case("ndarray:int32", pa.large_list(pa.int32()), st.lists(INTS), as_array("int32")),
    "list of long": Case("ndarray:int32", pa.list_(pa.int64()), st.lists(INTS), as_array("int32")),
    "list of bool": Case("ndarray:uint8", pa.list_(pa.bool_()), st.lists(st.booleans()), as_array("uint8")),
    "list of dates": Case(
        "ndarray:int32",
        pa.list_(pa.date32()),
        st.lists(DATES),
        lambda value: np.array([(day - date(1970, 1, 1)).days for day in value], np.int32),
    ),
    "fixed list": Case("ndarray:int32", pa.list_(pa.int32(), 3), lists(INTS, 3), as_array("int32")),
    "long lists": Case("ndarray:uint8", pa.list_(pa.uint8()), st.sampled_from([[], [7] * 255, [7] * 256, [7] * 65536]),
                       as_array("uint8")),
    "any list": Case("ndarray", pa.list_(pa.float32()), st.lists(FLOATS32), as_array("float32")),
    "any list of bool": Case("ndarray", pa.list_(pa.bool_()), st.lists(st.booleans()), as_array("uint8")),
    "any table": Case("ndarray", pa.list_(pa.list_(pa.int16())), tables(numbers("int16")), as_array("int16", 2)),
    "table": Case("ndarray:int16", pa.list_(pa.large_list(pa.int16())), tables(numbers("int16")), as_array("int16", 2)),
    "table or empty": Case(
        "ndarray:int16", pa.list_(pa.list_(pa.int16())), st.just([]) | tables(numbers("int16")), as_array("int16", 2)
    ),
    "ndarray of a number": Case("ndarray", pa.int16(), numbers("int16"), np.int16),
    "static": Case("ndarray:float32:3", pa.list_(pa.float32()), lists(FLOATS32, 3), as_array("float32")),
    "static 2d": Case(
        "ndarray:float32:2,3", pa.list_(pa.list_(pa.float32())), lists(FLOATS32, 2, 3), as_array("float32", 2)
    ),
    "static 2d fixed": Case(
        "ndarray:int8:2,3", pa.list_(pa.list_(pa.int8(), 3), 2), lists(numbers("int8"), 2, 3), as_array("int8", 2)
    ),
    "static 2d flat": Case(
        "ndarray:int32:2,3",
        pa.list_(pa.int32()),
        lists(INTS, 6),
        lambda value: np.array(value, np.int32).reshape(2, 3),
    ),
    "static 3d": Case(
        "ndarray:int32:1,2,2",
        pa.list_(pa.list_(pa.list_(pa.int32()))),
        lists(INTS, 1, 2, 2),
        as_array("int32", 3),
    ),
    "static empty": Case("ndarray:int32:0", pa.list_(pa.int32()), st.just([]), as_array("int32")),
    "static 2d empty": Case(
        "ndarray:int32:0,3", pa.list_(pa.list_(pa.int32())), st.just([]), lambda value: np.empty((0, 3), np.int32)
    ),
    "static bytes": Case("ndarray:uint8:2", pa.binary(), st.binary(min_size=2, max_size=2)),
}  # fmt: skip


@st.composite
def batches(draw: st.DrawFn, cases: list[Case]) -> tuple[list[Case], pa.RecordBatch, list[dict[str, Any]]]:
    """Columns of these cases, cut out of longer ones; and the same values as rows."""
    before, count = draw(st.integers(0, 2)), draw(st.integers(0, 6))
    columns, values = {}, {}
    for i, case in enumerate(cases):
        all_values = draw(st.lists(case.values, min_size=before + count + 1, max_size=before + count + 1))
        columns[f"c{i}"] = pa.array(all_values, case.kind)[before : before + count]
        values[f"c{i}"] = [case.to_row(value) for value in columns[f"c{i}"].to_pylist()]
    rows = [{name: column[row] for name, column in values.items()} for row in range(count)]
    return cases, pa.RecordBatch.from_pydict(columns), rows


def written(cases: list[Case], write: Callable[[MDSWriter], None], limit: int | None) -> dict[str, bytes]:
    columns = {f"c{i}": case.encoding for i, case in enumerate(cases)}
    with TemporaryDirectory() as folder:
        with MDSWriter(out=folder, columns=columns, size_limit=limit) as writer:
            write(writer)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def assert_batch_is_rows(cases: list[Case], batch: pa.RecordBatch, rows: list[dict[str, Any]], limit: Any) -> None:
    def write_rows(writer: MDSWriter) -> None:
        for row in rows:
            writer.write(row)

    assert written(cases, lambda writer: writer.write_batch(batch), limit) == written(cases, write_rows, limit)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@settings(max_examples=15)
@given(data=st.data())
def test_a_batch_gives_the_bytes_of_its_rows(case: Case, data: st.DataObject) -> None:
    assert_batch_is_rows(*data.draw(batches([case])), None)


@settings(max_examples=80)
@given(st.data(), st.sampled_from([None, 1, 300, 500]))
def test_a_batch_of_several_columns_gives_the_bytes_of_its_rows(data: st.DataObject, limit: int | None) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(CASES)), min_size=2, max_size=5))
    assert_batch_is_rows(*data.draw(batches([CASES[name] for name in names])), limit)


def shard_of(columns: dict[str, str], batch: pa.RecordBatch) -> ShardReader:
    layout = Layout.of(columns)
    encoded = encode_batch(batch, layout)
    samples = b"".join(encoded.data) if isinstance(encoded.data, list) else bytes(encoded.data)
    data = header_bytes(config_bytes(layout), encoded.sizes) + samples
    return ShardReader(data, Shard(layout, batch.num_rows, File("s.mds", len(data), {}), None), "s.mds")


def plain(value: Any) -> Any:
    """A value as Arrow gives it: no numpy, no NaN that differs from itself."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return json.dumps(value, default=float) if isinstance(value, float | list) else value


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@settings(max_examples=15)
@given(data=st.data())
def test_columns_decode_to_what_was_encoded(case: Case, data: st.DataObject) -> None:
    _, batch, rows = data.draw(batches([case, CASES["str"]]))
    shard = shard_of({"c0": case.encoding, "c1": "str"}, batch)
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    found = decode_columns(shard, first, last, ["c1", "c0"])
    assert list(found) == ["c1", "c0"]
    assert found["c1"].to_pylist() == [row["c1"] for row in rows[first:last]]
    right = [row["c0"] for row in rows[first:last]]
    if case.encoding == "int32" and case.kind == pa.binary(4):
        right = [int.from_bytes(value, "little", signed=True) for value in right]
    if case.encoding.startswith("ndarray") and case.kind == pa.binary():
        right = [list(value) for value in right]
    assert [plain(v) for v in found["c0"].to_pylist()] == [plain(case.read(v) if case.read else v) for v in right]


def test_decoded_columns_have_the_types_of_their_encodings() -> None:
    table = {
        "f": ("float16", pa.array([np.float16(1)], pa.float16()), pa.float16()),
        "i": ("int", pa.array([1]), pa.int64()),
        "s": ("str", pa.array(["a"]), pa.string()),
        "t": ("str_float", pa.array([1.0]), pa.float64()),
        "d": ("str_decimal", pa.array([Decimal("1.10")]), pa.string()),
        "p": ("png", pa.array([b"x"]), pa.binary()),
        "a": ("ndarray:int8", pa.array([[1]], pa.list_(pa.int8())), pa.list_(pa.int8())),
        "m": ("ndarray:int8:1,1", pa.array([[1]], pa.list_(pa.int8())), pa.list_(pa.list_(pa.int8()))),
    }
    shard = shard_of(
        {name: encoding for name, (encoding, _, _) in table.items()},
        pa.RecordBatch.from_pydict({name: values for name, (_, values, _) in table.items()}),
    )
    found = decode_columns(shard, 0, 1, list(table))
    assert {name: column.type for name, column in found.items()} == {name: row[2] for name, row in table.items()}


def test_arrays_of_different_dimensions_are_no_column() -> None:
    arrays = [np.zeros((1, 2), np.int8), np.zeros(2, np.int8)]
    values = pa.array([get_encoding("ndarray:int8").encode(value) for value in arrays])
    shard = shard_of({"a": "ndarray:int8"}, pa.RecordBatch.from_pydict({"a": values}))
    with pytest.raises(FormatError, match=r"s.mds: samples 0 to 1, column 'a': arrays of different number of dim"):
        decode_columns(shard, 0, 2, ["a"])


def test_large_samples_are_written_without_being_joined(tmp_path: Path) -> None:
    rows = [{"n": i, "b": bytes([i]) * (i * 9000), "s": "é" * i * 5000} for i in range(12)]
    columns = {"n": "int32", "b": "bytes", "s": "str"}
    batch = pa.RecordBatch.from_pylist([{"n": 0, "b": b"", "s": ""}, *rows]).slice(1)
    assert isinstance(encode_batch(batch, Layout.of(columns)).data, list)
    for name in ("rows", "batches"):
        with MDSWriter(out=str(tmp_path / name), columns=columns, size_limit=150_000, hashes=["xxh64"]) as writer:
            if name == "batches":
                writer.write_batch(batch)
            for row in rows if name == "rows" else []:
                writer.write(row)
    files = [sorted((tmp_path / name).iterdir()) for name in ("rows", "batches")]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
    assert len(files[0]) > 4


def test_extension_types_are_encoded_as_their_storage() -> None:
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int16(), [2, 2]), pa.array([[1, 2, 3, 4]], pa.list_(pa.int16(), 4))
    )
    shard = shard_of({"t": "ndarray:int16:2,2"}, pa.RecordBatch.from_arrays([tensors], ["t"]))
    assert shard.sample(0)["t"].tolist() == [[1, 2], [3, 4]]


def test_json_of_bytes_keeps_nulls_as_json_has_them() -> None:
    column = pa.array([b"[1]", None, b'"a"'])
    shard = shard_of({"j": "json"}, pa.RecordBatch.from_pydict({"j": column}))
    assert [shard.sample(i)["j"] for i in range(3)] == [[1], None, "a"]


def test_an_empty_batch_is_no_samples_whatever_its_types() -> None:
    for column in (pa.nulls(0), pa.array([], pa.int32()), pa.array([], pa.list_(pa.string()))):
        encoded = encode_batch(pa.RecordBatch.from_pydict({"a": column}), Layout.of({"a": "ndarray:int8:2"}))
        assert (bytes(encoded.data), len(encoded.sizes)) == (b"", 0)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], ["a", "a"], ["a", "c"]])
def test_a_batch_of_other_columns_is_refused(names: list[str]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int32())] * len(names), names)
    with pytest.raises(ValueError, match=r"expected the columns \['a', 'b'\], found "):
        encode_batch(batch, Layout.of({"b": "int32", "a": "int32"}))


# What does not fit. Each: the encoding, a value that fits, one that does not, the Arrow type, and words of the error.
MISFITS: list[tuple[str, Any, Any, pa.DataType, str]] = [
    ("int32", 1.0, 1.9, pa.float64(), "1.9 does not fit int32"),
    ("int32", 1, 2**31, pa.int64(), "2147483648 does not fit int32"),
    ("int32", 1.0, math.nan, pa.float32(), "nan does not fit int32"),
    ("int8", np.float16(1), np.float16(-math.inf), pa.float16(), "-inf does not fit int8"),
    ("uint16", 1, -5, pa.int8(), "-5 does not fit uint16"),
    ("float32", 1.0, 1e300, pa.float64(), "1e.300 does not fit float32"),
    ("float64", 1, 2**53 + 1, pa.int64(), "9007199254740993 does not fit float64"),
    ("float16", 1, -(2**31), pa.int32(), "-2147483648 does not fit float16"),
    ("int", 1, 2**63, pa.uint64(), "9223372036854775808 does not fit int64"),
    ("int32", Decimal(1), Decimal("1.5"), pa.decimal128(5, 1), "1.5 does not fit int32"),
    ("int8", Decimal(1), Decimal(300), pa.decimal128(5, 0), "300 does not fit int8"),
    ("float64", Decimal(2**60), Decimal(2**53 + 1), pa.decimal128(38, 0), "9007199254740993 does not fit float64"),
    ("float64", Decimal("0.1"), Decimal(-(2**53) - 1), pa.decimal128(38, 5), "-9007199254740993.00000 does not fit fl"),
    ("float64", Decimal(2**200), Decimal(2**200 + 1), pa.decimal256(76, 0), "16069380442.* does not fit float64"),
    ("float32", Decimal(2**24), Decimal(2**24 + 1), pa.decimal128(20, 0), "16777217 does not fit float32"),
    ("float32", Decimal("16777217.5"), Decimal(2**24 + 1), pa.decimal128(20, 1), "16777217.0 does not fit float32"),
    ("float16", Decimal(2048), Decimal(2049), pa.decimal128(5, 0), "2049 does not fit float16"),
    ("float16", Decimal(1), Decimal(70000), pa.decimal128(5, 0), "70000 does not fit float16"),
    (
        "int64",
        EPOCH,
        np.datetime64(1, "ns"),
        pa.timestamp("ns"),
        "a timestamp.ns. does not fit int64: .*would lose data: 1",
    ),
    ("int64", 0, 10**15, pa.timestamp("s"), "a timestamp.s. does not fit int64: .*: 1000000000000000"),
    ("int32", EPOCH, datetime(2000, 1, 1), pa.timestamp("us"), "946684800000000 does not fit int32"),
    ("int32", "1", "2", pa.string(), "expected numbers for int32, found the Arrow type string"),
    ("str", 1, 2, pa.int32(), "expected a str for str, found "),
    ("bytes", "1", "2", pa.string(), "expected bytes for bytes, found "),
    ("str_int", 1.0, 2.0, pa.float64(), "expected a int for str_int, found "),
    ("int32", b"1234", b"123", pa.binary(), "3 bytes given for int32, which has 4"),
    ("ndarray:int32", [1, 2], [1, 2**31], pa.list_(pa.int64()), "2147483648 does not fit int32"),
    ("ndarray:int32", [], [0, 1.9], pa.list_(pa.float64()), "1.9 does not fit int32"),
    ("ndarray:int32", [[], []], [[1], [2**31]], pa.list_(pa.list_(pa.int64())), "2147483648 does not fit int32"),
    ("ndarray:int32:1,2", [[1, 2]], [[1, 2**31]], pa.list_(pa.list_(pa.int64())), "2147483648 does not fit int32"),
    ("ndarray:int8", [Decimal(1)], [Decimal(1), Decimal("0.5")], pa.list_(pa.decimal128(5, 1)), "0.5 .*does not fit"),
    ("ndarray:float64", [Decimal(1)], [Decimal(2**53 + 1)], pa.list_(pa.decimal128(20, 0)), "9007199254740993 does"),
    ("ndarray:int8:2", [1, 2], [1, 2, 3], pa.list_(pa.int8()), r"expected an array of shape \(2,\) .*found \(3,\)"),
    (
        "ndarray:int8:2,2",
        [[1, 2]] * 2,
        [[1, 2]],
        pa.list_(pa.list_(pa.int8())),
        r"expected an array of shape \(2, 2\) .*found \(1, 2\)",
    ),
    (
        "ndarray:int8",
        [[1], [2]],
        [[1], [2, 3]],
        pa.list_(pa.list_(pa.int8())),
        "not an array: a list of 2 elements beside one of 1",
    ),
    (
        "ndarray:int8:1,2",
        [[[1, 2]]],
        [[[1, 3]]],
        pa.list_(pa.list_(pa.list_(pa.int8()))),
        "expected lists nested 2 deep .* found 3",
    ),
    ("ndarray", ["a"], ["b"], pa.list_(pa.string()), "expected numbers for ndarray, found the Arrow type string"),
]
EACH_MISFIT = pytest.mark.parametrize(
    ("encoding", "fits", "wrong", "kind", "words"), MISFITS, ids=[f"{i}-{m[0]}" for i, m in enumerate(MISFITS)]
)


@EACH_MISFIT
def test_what_does_not_fit_is_refused_with_column_row_and_value(
    encoding: str, fits: Any, wrong: Any, kind: pa.DataType, words: str, tmp_path: Path
) -> None:
    whole_column = words.startswith("expected") and "shape" not in words  # the type is wrong, not a row
    writer = MDSWriter(out=str(tmp_path), columns={"a": "int8", "the column": encoding})

    def batch(*values: Any) -> pa.RecordBatch:
        numbers = pa.array([0] * len(values), pa.int8())
        return pa.RecordBatch.from_arrays([numbers, pa.array(values, kind)], ["a", "the column"])

    if not whole_column:
        writer.write_batch(batch(fits, fits, fits))
    before = 0 if whole_column else 3
    row = before if whole_column else before + 2
    with pytest.raises(EncodeError, match=f"^row {row}: column 'the column': {words}") as caught:
        writer.write_batch(batch(fits, fits, wrong, wrong)[0:4])
    assert caught.value.row == row
    with pytest.raises(EncodeError, match="the column"):
        writer.write_batch(batch(wrong, fits, wrong)[2:])
    writer.abort()


# Nulls


NULLS: list[tuple[str, pa.Array, list[bool] | None]] = [
    ("int32", pa.array([1, None, 3]), [False, True, False]),
    ("int32", pa.array([1, 2]), None),
    ("str", pa.array(["a", None]), [False, True]),
    ("bytes", pa.array([None, b"a"]), [True, False]),
    ("int32", pa.nulls(2), [True, True]),
    ("int32", pa.nulls(0), None),
    ("str", pa.array(["a", None, "a"]).dictionary_encode(), [False, True, False]),
    ("json", pa.array(["a", None]), None),
    ("pkl", pa.array(["a", None]), None),
    ("ndarray:int8", pa.array([[1, None], None, [], [2]]), [True, True, False, False]),
    ("ndarray:int8", pa.array([[9, None], [1], None, [None]])[1:], [False, True, True]),
    ("ndarray:int8", pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2)), [False, True, True]),
    ("ndarray:int8", pa.array([[9, None], [1, 2], None, [3, None]], pa.list_(pa.int8(), 2))[1:], [False, True, True]),
    ("ndarray:int8", pa.array([[[1]], [None], [[2, None]], [[]]]), [False, True, True, False]),
    ("ndarray:int8", pa.array([[[[1]]], [[[None]], None], []]), [False, True, False]),
]


@pytest.mark.parametrize(("encoding", "column", "rows"), NULLS, ids=[f"{i}-{n[0]}" for i, n in enumerate(NULLS)])
def test_rows_with_nulls_are_found_at_any_depth(encoding: str, column: pa.Array, rows: list[bool] | None) -> None:
    found = null_rows(column, get_encoding(encoding))
    assert (None if found is None else found.tolist()) == rows
    if rows is not None:
        with pytest.raises(EncodeError, match=rf"column 'c': {sum(rows)} nulls? in {len(rows)} rows") as caught:
            encode_batch(pa.RecordBatch.from_arrays([column], ["c"]), Layout.of({"c": encoding}))
        assert caught.value.row == rows.index(True)


def test_a_null_in_a_list_that_is_null_itself_does_not_count_twice() -> None:
    nulls = pa.ListArray.from_arrays(
        pa.array([0, 2, 3]), pa.array([None, 1, 2], pa.int8()), mask=pa.array([True, False])
    )
    found = null_rows(nulls, get_encoding("ndarray:int8"))
    assert found is not None
    assert found.tolist() == [True, False]


# Hostile shards


def hostile_arrays(encoding: str, *values: bytes) -> ShardReader:
    return shard_of({"a": encoding}, pa.RecordBatch.from_pydict({"a": pa.array(values, pa.binary())}))


U64 = 2**64 - 1


def shape(*dimensions: int) -> bytes:
    return bytes([len(dimensions) << 2 | 3]) + b"".join(n.to_bytes(8, "little") for n in dimensions)


@pytest.mark.parametrize(
    ("encoding", "values", "words"),
    [
        ("str", [b"ok", b"\xff"], "UTF8"),
        ("json", [b"\xff\xfe"], "UTF8"),
        ("str_float", [b"1.5", b"x"], "x"),
        ("ndarray", [b"\x08\4\0", b""], "value 1 is too short for an array"),
        ("ndarray", [b"\x08\4\0", b"\x09\4\0"], "arrays of different dtype code: 8 and, in value 1, 9"),
        ("ndarray", [b"\x07\4\0"], "unknown dtype code 7"),
        ("ndarray:int8", [b"", b""], "value 0 is too short for an array"),
        ("ndarray:int8", [b"\4\1a", shape(1)[:5]], "value 1 is too short for its shape"),
        ("ndarray:int8", [b"\4\1a", b"\4\2a"], r"value 1: 1 bytes are not \(2,\) of int8"),
        ("ndarray:int8", [b"\4\1a", shape(U64)], "value 1: 0 bytes are not"),
        ("ndarray:int8", [shape(U64, 0)], "value 0: 0 bytes are not"),
        ("ndarray:int8", [shape(0, 0), shape(0, U64)], "value 1: 0 bytes are not"),
        ("ndarray:int8", [shape(2**32, 2**32) + b"a"], "value 0: 1 bytes are not"),
        ("ndarray:int16", [shape(*[2**62] * 63)], "value 0: 0 bytes are not"),
        ("ndarray:int16", [shape(*[2**62] * 62, 0)], "value 0: 0 bytes are not|empty arrays"),
        ("ndarray:int8", [shape(2**62, 0)], "more than 16777216 empty arrays"),
        ("ndarray:int8", [shape(2**23, 2**62, 0)], "more than 16777216 empty arrays"),
        ("ndarray:int8", [shape(2**20, 0)] * 20, "more than 16777216 empty arrays"),
        ("ndarray:int8:2000000000,0", [b""], "more than 16777216 empty arrays"),
    ],
)
def test_hostile_values_are_refused_without_the_memory_that_they_ask_for(
    encoding: str, values: list[bytes], words: str
) -> None:
    shard = hostile_arrays(encoding, *values)
    with pytest.raises(FormatError, match=rf"^s.mds: samples 0 to {len(values) - 1}, column 'a': .*({words})"):
        decode_columns(shard, 0, len(values), ["a"])


@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:int16", "str", "json", "str_int", "str_float", "png"])
@given(values=st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_any_bytes_are_a_column_or_a_format_error(encoding: str, values: list[bytes]) -> None:
    shard = hostile_arrays(encoding, *values)
    try:
        found = decode_columns(shard, 0, len(values), ["a"])["a"]
    except FormatError:
        return
    found.validate(full=True)
    assert len(found) == len(values)


def test_arrays_of_no_elements_come_back_with_their_shapes() -> None:
    shard = hostile_arrays("ndarray:int8", shape(3, 0), shape(0, 2**62), shape(2, 0))
    assert decode_columns(shard, 0, 3, ["a"])["a"].to_pylist() == [[[], [], []], [], [[], []]]


def test_a_batch_and_rows_mix_in_one_data_set(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={"n": "int64", "s": "str"}) as writer:
        writer.write({"n": 0, "s": "zero"})
        writer.write_batch(pa.RecordBatch.from_pydict({"s": ["one", "two"], "n": [1, 2]}))
        writer.write({"n": 3, "s": "three"})
    assert [row["s"] for row in MDSReader(str(tmp_path))] == ["zero", "one", "two", "three"]
    assert [int(row["n"]) for row in MDSReader(str(tmp_path))] == [0, 1, 2, 3]
