"""Arrow record batches <-> samples' bytes, whole columns at a time.

Encoding turns each column into parts: numpy arrays where every value has the same size, binary Arrow arrays where
sizes vary. Neighbouring fixed parts become one structured array, and Arrow's element-wise join of all parts is the
samples back to back, its offsets the samples' offsets.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mds_core.encodings import (
    CODE_OF_DTYPE,
    DTYPE_OF_CODE,
    Array,
    Encoding,
    Json,
    Number,
    NumberText,
    Pickle,
    Text,
    cast_numbers,
    get_encoding,
    little_endian,
    range_of,
)
from mds_core.errors import EncodeError, FormatError
from mds_core.index import Layout
from mds_core.json_text import json_texts
from mds_core.shard import ShardReader, scattered

if TYPE_CHECKING:
    from typing_extensions import Buffer

Sizes = NDArray[np.int64]
Part: TypeAlias = Any  # an array of numbers or fixed-size bytes, or a binary pa.Array
_INT32_END = (1 << 31) - 1
# Samples that are larger are not copied together: 100 KB images went from 0.50 to 0.73 of a writer that only counts.
_LARGE_SAMPLE = 1 << 14


@dataclass(frozen=True)
class Encoded:
    """Samples back to back, or as pieces of memory, as many of each sample; and the samples' sizes in bytes.

    `shared`: the memory may be the record batch's own.
    """

    data: memoryview | list[memoryview]
    sizes: Sizes
    shared: bool = True


def encode_batch(batch: pa.RecordBatch, layout: Layout) -> Encoded:
    """Turn a record batch into samples' bytes.

    Args:
        batch: its columns are the layout's, in any order.
        layout: names and encodings.

    Raises:
        ValueError: other columns than the layout's.
        EncodeError: a value that its encoding can't hold, naming the column; `row` counts from the batch's start.
    """
    found = batch.schema.names
    if sorted(found) != list(layout.column_names):
        raise ValueError(f"expected the columns {list(layout.column_names)}, found {found}")
    if not batch.num_rows:  # whatever the types: Arrow may not have seen a value to tell them from
        return Encoded(memoryview(b""), np.empty(0, np.int64))
    parts: list[Part] = []
    variable: list[Sizes] = []
    for name, encoding in layout.columns.items():
        column = batch.column(found.index(name))
        try:
            column_parts, sizes = encode_column(column, get_encoding(encoding))
        except EncodeError as error:
            raise EncodeError(f"column {name!r}: {error.reason}", error.row) from None
        parts += column_parts
        if sizes is not None:
            variable.append(sizes)
    if variable:
        parts.insert(0, np.stack(variable, axis=1).astype("<u4").view(f"V{4 * len(variable)}")[:, 0])
    return _join(parts, batch.num_rows)


def encode_column(column: pa.Array, encoding: Encoding) -> tuple[list[Part], Sizes | None]:
    """Turn a column into parts that, joined value by value, are the values' bytes.

    Returns:
        The parts, and the values' sizes where the encoding has no fixed size.

    Raises:
        EncodeError: a null, or a value that the encoding can't hold.
    """
    column = _plain(column)
    nulls = null_rows(column, encoding)
    if nulls is not None:
        count = int(nulls.sum())
        raise EncodeError(f"{count} null{'s' * (count > 1)} in {len(column)} rows", int(np.flatnonzero(nulls)[0]))
    if _is_bytes(column.type):
        return _stored_as_it_is(column, encoding)
    if isinstance(encoding, Number):
        return [cast_numbers(_numbers(column, encoding), encoding.dtype)], None
    if isinstance(encoding, Text) and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return _with_sizes([column.cast(pa.large_binary() if _is_large(column.type) else pa.binary())])
    if isinstance(encoding, Array):
        return _encode_arrays(column, encoding)
    if isinstance(encoding, Json):
        return _with_sizes([json_texts(column).cast(pa.large_binary())])
    if isinstance(encoding, NumberText) and _prints_alike(column.type, encoding):
        return _with_sizes([column.cast(pa.string()).cast(pa.binary())])
    return _encode_values(column, encoding)


def null_rows(column: pa.Array, encoding: Encoding) -> NDArray[np.bool_] | None:
    """Tell which rows hold a null that the encoding can't: the value itself, or an element of an array.

    Returns:
        bool[rows], or None where there is none.
    """
    column = _plain(column)
    if isinstance(encoding, Json | Pickle):
        return None
    wrong: NDArray[np.bool_] | None = None
    if column.null_count:
        wrong = column.is_null().to_numpy(zero_copy_only=False)
    if isinstance(encoding, Array) and _is_list(column.type):
        elements = column.flatten()  # of the rows that are not null
        inner = null_rows(elements, encoding)
        if inner is not None:
            parents = pc.list_parent_indices(column).to_numpy()
            wrong = np.zeros(len(column), bool) if wrong is None else wrong.copy()
            wrong[parents[inner]] = True
    return wrong


def _plain(column: pa.Array) -> pa.Array:
    """Give the values of a column of an extension type or of a dictionary."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _prints_alike(kind: pa.DataType, encoding: NumberText) -> bool:
    """Tell whether Arrow's text of a number is Python's: not so for floats."""
    if encoding.name == "str_decimal":
        return bool(pa.types.is_decimal(kind))
    return encoding.name == "str_int" and bool(pa.types.is_integer(kind))


def _stored_as_it_is(column: pa.Array, encoding: Encoding) -> tuple[list[Part], Sizes | None]:
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    if column.null_count:  # `null_rows` left them to the encodings that hold None
        column = pc.fill_null(column, encoding.encode(None))
    sizes = binary_sizes(column)
    if encoding.size is None:
        return [column], sizes
    if (sizes != encoding.size).any():
        row = int(np.flatnonzero(sizes != encoding.size)[0])
        raise EncodeError(f"{sizes[row]} bytes given for {encoding.name}, which has {encoding.size}", row)
    if not encoding.size:
        return [], None
    offsets, data = binary_buffers(column)
    return [np.frombuffer(memoryview(data), f"V{encoding.size}", len(column), int(offsets[0]))], None


def _numbers(column: pa.Array, encoding: Number | Array) -> NDArray[Any]:
    """Give a column of numbers, booleans, dates or times as the numbers that are stored."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.uint8()).to_numpy()  # type: ignore[no-any-return]
    if pa.types.is_date(kind):
        column = _cast(column, pa.date32(), encoding).cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = _cast(column, pa.timestamp("us", kind.tz), encoding).cast(pa.int64())
    elif pa.types.is_duration(kind):
        column = _cast(column, pa.duration("us"), encoding).cast(pa.int64())
    elif pa.types.is_time64(kind):
        column = column.cast(pa.time64("ns")).cast(pa.int64())
    elif pa.types.is_decimal(kind) and encoding.dtype is not None:
        if encoding.dtype.kind == "f":
            return _decimals_as_floats(column, encoding.dtype)
        column = _cast(column, pa.from_numpy_dtype(encoding.dtype), encoding)
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise EncodeError(f"expected numbers for {encoding.name}, found the Arrow type {kind}")
    return column.to_numpy()  # type: ignore[no-any-return]


def _decimals_as_floats(column: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Round decimals to floats; whole ones must be exact, as integers must."""
    # By way of text, as Arrow's own cast makes 0.35000000000000003 of 0.35.
    floats: NDArray[Any] = column.cast(pa.string()).cast(pa.float64()).to_numpy()
    for row in np.flatnonzero(np.abs(floats) >= 1 << np.finfo(dtype).nmant + 1).tolist():
        value = column[row].as_py()
        with np.errstate(over="ignore"):
            exact = value == float(dtype.type(value))
        if not exact and value == int(value):
            raise EncodeError(f"{value} does not fit {range_of(dtype)}", row)
    return floats


def _cast(column: pa.Array, kind: pa.DataType, encoding: Encoding) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        # Arrow does not tell the row: it is the last one of the shortest start that can't be cast.
        row = bisect_left(range(len(column)), True, key=lambda last: not _can_cast(column[: last + 1], kind))
        what = column[row] if pa.types.is_decimal(column.type) else f"a {column.type}"  # which the error names
        raise EncodeError(f"{what} does not fit {encoding.name}: {error}", row) from None


def _can_cast(column: pa.Array, kind: pa.DataType) -> bool:
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _with_sizes(parts: list[Part]) -> tuple[list[Part], Sizes]:
    sizes: Sizes = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        sizes += part.dtype.itemsize if isinstance(part, np.ndarray) else binary_sizes(part)
    return parts, sizes


def _encode_arrays(column: pa.Array, encoding: Array) -> tuple[list[Part], Sizes | None]:
    """Encode arrays that are lists of numbers, nested as deep as the arrays have dimensions."""
    rows = len(column)
    counts: list[Sizes] = []  # of each level: how many elements each list holds
    while _is_list(column.type):
        counts.append(_list_counts(column))
        column = column.flatten()
    shapes = _shapes(counts, rows)
    ends = np.cumsum(shapes.prod(axis=1))
    try:
        values = _numbers(column, encoding)
        dtype = encoding.dtype if encoding.dtype is not None else little_endian(values.dtype.name)
        values = cast_numbers(values, dtype)
    except EncodeError as error:
        raise EncodeError(error.reason, int(np.searchsorted(ends, error.row, side="right"))) from None
    if encoding.shape is not None:
        return _encode_static(values, shapes, encoding), None
    parts = [_shape_heads(shapes), _binary_of(values, ends)]
    if encoding.dtype is None:
        parts.insert(0, np.full(rows, CODE_OF_DTYPE[dtype.name], np.uint8))
    return _with_sizes(parts)


def _list_counts(column: pa.Array) -> Sizes:
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    counts: Sizes = np.diff(column.offsets.to_numpy()).astype(np.int64)
    return counts


def _shapes(counts: list[Sizes], rows: int) -> NDArray[np.int64]:
    """Give the shape of each row's array, int64[rows, dimensions]: all lists at a level must be equally long.

    Lists that are not there, as the one around them is empty, count as empty: a column's arrays all have the same
    number of dimensions.
    """
    shapes = np.zeros((rows, len(counts)), np.int64)
    lists = np.ones(rows, np.int64)  # how many lists of this level each row has
    for axis, level in enumerate(counts):
        some = lists > 0
        shapes[some, axis] = level[(np.cumsum(lists) - lists)[some]]
        different = np.flatnonzero(level != np.repeat(shapes[:, axis], lists))
        if len(different):
            row = int(np.repeat(np.arange(rows), lists)[different[0]])
            raise EncodeError(
                f"not an array: a list of {level[different[0]]} elements beside one of {shapes[row, axis]}", row
            )
        lists = lists * shapes[:, axis]
    return shapes


def _encode_static(values: NDArray[Any], shapes: NDArray[np.int64], encoding: Array) -> list[Part]:
    """Encode arrays of one shape, given as lists nested as the shape is, or as flat lists of all values."""
    assert encoding.shape is not None
    assert encoding.size is not None
    shape, depth = encoding.shape, shapes.shape[1]
    if depth == 1:
        shape = (math.prod(shape),)
    if depth != len(shape):
        raise EncodeError(f"expected lists nested {len(shape)} deep for {encoding.name}, found {depth}")
    told = shape.index(0) + 1 if 0 in shape else depth  # lists can't tell what is below an empty one
    wrong = np.flatnonzero((shapes != shape)[:, :told].any(axis=1))
    if len(wrong):
        row = int(wrong[0])
        raise EncodeError(f"expected an array of shape {shape} for {encoding.name}, found {_tuple(shapes[row])}", row)
    return [_blocks(values, encoding.size)] if encoding.size else []


def _tuple(shape: NDArray[Any]) -> tuple[int, ...]:
    return tuple(shape.tolist())


def _blocks(values: NDArray[Any], size: int) -> NDArray[Any]:
    """View values back to back as blocks of `size` bytes."""
    data = np.ascontiguousarray(values).view(np.uint8)
    return np.ndarray((len(data) // size,), f"V{size}", data)


def _shape_heads(shapes: NDArray[np.int64]) -> Part:
    """Give the shape of each array as `encodings.encode_shape` has it for one."""
    rows, ndim = shapes.shape
    widths = np.searchsorted([1 << 8, 1 << 16, 1 << 32], shapes.max(axis=1, initial=0), side="right")
    first = int(widths[0])
    if (widths == first).all():
        heads = np.empty(rows, [("head", "u1"), ("shape", f"<u{1 << first}", (ndim,))])
        heads["head"], heads["shape"] = ndim << 2 | first, shapes
        return heads
    sizes = 1 + (ndim << widths)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    data = np.zeros(int(ends[-1]), np.uint8)
    data[starts] = ndim << 2 | widths
    for width in np.unique(widths).tolist():
        at = np.flatnonzero(widths == width)
        for axis in range(ndim):
            scattered(data, f"<u{1 << width}")[starts[at] + 1 + (axis << width)] = shapes[at, axis]
    return _binary_of(data, ends)


def _encode_values(column: pa.Array, encoding: Encoding) -> tuple[list[Part], Sizes | None]:
    """Encode value by value, for encodings and Arrow types that have no columnar form."""
    encoded = []
    for row, value in enumerate(column.to_pylist()):
        try:
            encoded.append(encoding.encode(value))
        except EncodeError as error:
            raise EncodeError(error.reason, row) from None
    return _stored_as_it_is(pa.array(encoded, pa.large_binary()), _AS_IT_IS if encoding.size is None else encoding)


_AS_IT_IS = get_encoding("bytes")


def binary_buffers(column: pa.Array) -> tuple[NDArray[Any], Buffer]:
    """Give a binary or text array's offsets, int[n+1], and its data buffer."""
    offset_type = np.int64 if _is_large(column.type) else np.int32
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(1, offset_type), data or b""
    return np.frombuffer(
        offsets, offset_type, len(column) + 1, column.offset * np.dtype(offset_type).itemsize
    ), data or b""


def binary_sizes(column: pa.Array) -> Sizes:
    """Give the size of each value of a binary or text array in bytes."""
    return np.diff(binary_buffers(column)[0]).astype(np.int64)


def _binary_of(values: NDArray[Any], ends: Sizes) -> pa.Array:
    """View values back to back as binary array; `ends` counts values, not bytes."""
    data = np.ascontiguousarray(values).view(np.uint8)
    offsets = np.concatenate([[0], ends]) * values.dtype.itemsize
    large = len(data) > _INT32_END
    return pa.Array.from_buffers(
        pa.large_binary() if large else pa.binary(),
        len(ends),
        [None, pa.py_buffer(offsets.astype(np.int64 if large else np.int32)), pa.py_buffer(data)],
    )


def _join(parts: list[Part], rows: int) -> Encoded:
    """Put the parts of each row one after the other."""
    if not parts:  # only arrays without elements
        return Encoded(memoryview(b""), np.zeros(rows, np.int64))
    joined = [run if isinstance(run, pa.Array) else _structured(run) for run in _runs(parts)]
    if len(joined) == 1 and isinstance(joined[0], np.ndarray):
        block = joined[0]
        return Encoded(block.view(np.uint8).data, np.full(rows, block.dtype.itemsize, np.int64))
    total = sum(part.nbytes if isinstance(part, np.ndarray) else int(binary_sizes(part).sum()) for part in joined)
    if total >= rows * _LARGE_SAMPLE:
        return _in_pieces(joined, rows)
    large = total > _INT32_END or any(_is_large(part.type) for part in joined if isinstance(part, pa.Array))
    kind = pa.large_binary() if large else pa.binary()
    arrays = [
        _binary_of(part, np.arange(1, rows + 1)).cast(kind) if isinstance(part, np.ndarray) else part.cast(kind)
        for part in joined
    ]
    whole = pc.binary_join_element_wise(*arrays, pa.scalar(b"", kind))
    offsets, data = binary_buffers(whole)
    joined_data = memoryview(data)[int(offsets[0]) : int(offsets[-1])]
    return Encoded(joined_data, np.diff(offsets).astype(np.int64), shared=False)


def _in_pieces(parts: list[Part], rows: int) -> Encoded:
    """Give samples as pieces of the columns' own memory: of large ones, a copy costs more than Python's loop."""
    sizes = np.zeros(rows, np.int64)
    columns: list[list[memoryview]] = []
    for part in parts:
        if isinstance(part, np.ndarray):
            ends = np.arange(rows + 1) * part.dtype.itemsize
            data = part.view(np.uint8).data
        else:
            ends, buffer = binary_buffers(part)
            data = memoryview(buffer)
        sizes += np.diff(ends)
        columns.append([data[a:b] for a, b in pairwise(ends.tolist())])
    return Encoded([piece for sample in zip(*columns, strict=True) for piece in sample], sizes)


def _runs(parts: list[Part]) -> list[list[NDArray[Any]] | pa.Array]:
    runs: list[Any] = []
    for part in parts:
        if isinstance(part, pa.Array):
            runs.append(part)
        elif runs and isinstance(runs[-1], list):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _structured(run: list[NDArray[Any]]) -> NDArray[Any]:
    if len(run) == 1:
        return np.ascontiguousarray(run[0])
    block = np.empty(len(run[0]), [(f"f{i}", part.dtype) for i, part in enumerate(run)])
    for i, part in enumerate(run):
        block[f"f{i}"] = part
    return block


def decode_columns(
    shard: ShardReader, first: int, last: int, names: Sequence[str], as_stored: Sequence[str] = ()
) -> dict[str, pa.Array]:
    """Read neighbouring samples of a shard as Arrow arrays.

    Numbers keep their type; `str`, `json`, `str_int` and `str_decimal` become string; `str_float` float64; arrays
    nested lists of their numbers; all else binary, as it is stored.

    Args:
        shard: an open shard.
        first: the first sample.
        last: the sample after the last one.
        names: the columns wanted.
        as_stored: those of them wanted as binary, not decoded.

    Returns:
        An array of `last - first` values for each name.

    Raises:
        FormatError: bytes that are not what the column's encoding says, naming shard and column.
    """
    spans = shard.spans(np.arange(first, last))
    columns = {}
    for name in names:
        i = shard.column(name)
        starts, sizes = spans[i]
        encoding = shard.encodings[i]
        try:
            if name in as_stored:
                columns[name] = _binary_at(shard.data, starts, np.broadcast_to(sizes, starts.shape))
            elif isinstance(sizes, int):
                columns[name] = _decode_fixed(shard, starts, encoding)
            else:
                columns[name] = _decode_variable(_binary_at(shard.data, starts, sizes), encoding)
        except (FormatError, pa.ArrowInvalid) as error:
            raise FormatError(f"{shard.where}: samples {first} to {last - 1}, column {name!r}: {error}") from None
    return columns


def _decode_fixed(shard: ShardReader, starts: Sizes, encoding: Encoding) -> pa.Array:
    if isinstance(encoding, Number):
        return pa.array(scattered(shard.data, encoding.dtype)[starts])
    assert isinstance(encoding, Array)
    assert encoding.dtype is not None
    assert encoding.shape is not None
    if encoding.size:
        blocks = scattered(shard.data, f"V{encoding.size}")[starts]
        array = pa.array(blocks.view(encoding.dtype))
    else:
        array = pa.array(np.empty(0, encoding.dtype))
    shape = np.broadcast_to(np.array(encoding.shape, np.int64), (len(starts), len(encoding.shape)))
    return _nested(array, shape)


def _decode_variable(values: pa.Array, encoding: Encoding) -> pa.Array:
    if isinstance(encoding, Text | Json):
        return values.cast(pa.large_string() if _is_large(values.type) else pa.string())
    if isinstance(encoding, NumberText):
        text = values.cast(pa.string())
        return text.cast(pa.float64()) if encoding.name == "str_float" else text
    if isinstance(encoding, Array):
        return _decode_arrays(values, encoding)
    return values


def _binary_at(data: NDArray[np.uint8], starts: Sizes, sizes: Sizes) -> pa.Array:
    """Gather values that lie in order, with gaps between them, into a binary array."""
    if not len(starts):
        return pa.array([], pa.binary())
    # Values and gaps in turn are a binary array over the file itself; taking every second one copies the values.
    edges = np.stack([starts, starts + sizes], axis=1).reshape(-1)
    base = int(edges[0])
    large = int(edges[-1]) - base > _INT32_END
    everything = pa.Array.from_buffers(
        pa.large_binary() if large else pa.binary(),
        len(edges) - 1,
        [
            None,
            pa.py_buffer((edges - base).astype(np.int64 if large else np.int32)),
            pa.py_buffer(data[base : int(edges[-1])]),
        ],
    )
    return everything.take(pa.array(np.arange(0, len(edges), 2)))


def _decode_arrays(values: pa.Array, encoding: Array) -> pa.Array:
    """Decode arrays of dynamic shape to lists; all have the same number of dimensions and dtype."""
    if not len(values):
        return pa.array([], pa.list_(pa.from_numpy_dtype(np.dtype((encoding.dtype or np.dtype("i4")).name))))
    offsets, buffer = binary_buffers(values)
    data = np.frombuffer(memoryview(buffer), np.uint8)
    starts, sizes = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    dtype, skip = encoding.dtype, 0
    if int(sizes.min()) < 1 + (dtype is None):
        raise FormatError(f"value {int(np.argmin(sizes))} is too short for an array")
    if dtype is None:
        code = int(_same(data[starts], "dtype code"))
        if code not in DTYPE_OF_CODE:
            raise FormatError(f"unknown dtype code {code}")
        dtype, skip = little_endian(DTYPE_OF_CODE[code]), 1
    heads = data[starts + skip]
    ndim, widths = int(_same(heads >> 2, "number of dimensions")), heads & 3
    head_sizes = skip + 1 + (ndim << widths.astype(np.int64))
    if (sizes < head_sizes).any():
        raise FormatError(f"value {int(np.flatnonzero(sizes < head_sizes)[0])} is too short for its shape")
    shapes = np.zeros((len(starts), ndim), np.int64)
    for width in np.unique(widths).tolist():
        rows = np.flatnonzero(widths == width)
        for axis in range(ndim):
            at = starts[rows] + skip + 1 + (axis << width)
            shapes[rows, axis] = scattered(data, f"<u{1 << width}")[at]
    with np.errstate(all="ignore"):  # as floats: a hostile shape can't overflow the product
        wrong = shapes.astype(float).prod(axis=1) * dtype.itemsize != sizes - head_sizes
    wrong |= (shapes < 0).any(axis=1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        shape = _tuple(shapes[row].view(np.uint64))
        raise FormatError(f"value {row}: {sizes[row] - head_sizes[row]} bytes are not {shape} of {dtype.name}")
    numbers = binary_buffers(_binary_at(data, starts + head_sizes, sizes - head_sizes))[1]
    return _nested(pa.array(np.frombuffer(memoryview(numbers), dtype)), shapes)


def _same(values: NDArray[Any], what: str) -> Any:
    different = np.flatnonzero(values != values[0])
    if len(different):
        raise FormatError(
            f"arrays of different {what}: {values[0]} and, in value {different[0]}, {values[different[0]]}"
        )
    return values[0]


def _nested(values: pa.Array, shapes: NDArray[np.int64]) -> pa.Array:
    """Nest numbers back to back into lists, a level for each dimension; `shapes` is int64[rows, dimensions]."""
    levels: list[Sizes] = []
    lists = np.ones(len(shapes), np.int64)  # how many lists of this level each row has
    for axis in range(shapes.shape[1]):
        level = np.repeat(shapes[:, axis], lists)
        if level.astype(float).sum() > max(len(values), _MOST_EMPTY_LISTS):
            raise FormatError(f"shapes of more than {_MOST_EMPTY_LISTS} empty arrays")
        levels.append(level)
        lists = lists * shapes[:, axis]
    for counts in reversed(levels):
        offsets = np.concatenate([[0], np.cumsum(counts)])
        large = int(offsets[-1]) > _INT32_END
        of = pa.LargeListArray if large else pa.ListArray
        values = of.from_arrays(pa.array(offsets, pa.int64() if large else pa.int32()), values)
    return values


# A shape like (2**60, 0) needs no bytes: bound what it can make us allocate.
_MOST_EMPTY_LISTS = 1 << 24
