"""A shard: its header, its layout, and reading it over a memory map.

A shard file is u32 N, u32 x (N+1) offsets from the start of the file, a JSON config, and the samples back to back.
A sample is the u32 size of each variable-size value, then the values, in column order.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mds_core.encodings import Encoding, Number, get_encoding
from mds_core.errors import FormatError
from mds_core.index import Layout, Shard

if TYPE_CHECKING:
    from typing_extensions import Buffer

Rows = NDArray[np.int64]


def config_bytes(layout: Layout) -> bytes:
    """Give the JSON config that stands in a shard's header."""
    return json.dumps(layout.to_json(), sort_keys=True).encode()


def header_bytes(config: bytes, sizes: NDArray[np.int64]) -> bytes:
    """Give a shard's header: everything before the samples, whose sizes are given."""
    numbers = np.empty(len(sizes) + 2, "<u4")
    numbers[0] = len(sizes)
    numbers[1] = start = 4 * len(numbers) + len(config)
    np.cumsum(sizes, dtype=np.uint32, out=numbers[2:])
    numbers[2:] += np.uint32(start)
    return numbers.tobytes() + config


def scattered(data: NDArray[np.uint8], dtype: np.dtype[Any] | str) -> NDArray[Any]:
    """View bytes as values of a dtype that start at every byte: `scattered(data, "<u4")[positions]` gathers."""
    dtype = np.dtype(dtype)
    return np.ndarray((max(0, len(data) - dtype.itemsize + 1),), dtype, data, strides=(1,))


class ShardReader:
    """A shard that is open for reading: single samples, or the bytes' positions of whole columns.

    Args:
        data: the uncompressed shard, memory-mapped or in memory.
        shard: its entry in the index.
        where: its path, for errors.
        columns: the names of the columns to read, all unless given.

    Raises:
        FormatError: the shard is not what the index says.
    """

    def __init__(self, data: Buffer, shard: Shard, where: str, columns: Sequence[str] | None = None):
        self.where = where
        self.layout = shard.layout
        self.samples = shard.samples
        self.data: NDArray[np.uint8] = np.frombuffer(memoryview(data), np.uint8)
        self.view = memoryview(data).cast("B")
        self.offsets = self._checked_offsets(shard)
        self.encodings = [get_encoding(name) for name in self.layout.column_encodings]
        self.columns = [i for i, name in enumerate(self.layout.column_names) if columns is None or name in columns]
        self.variable = sum(size is None for size in self.layout.column_sizes)
        self._sizes = [size or 0 for size in self.layout.column_sizes]  # what has no fixed size counts nothing
        self._fixed = sum(self._sizes)
        if not self.variable and self.samples:
            self._check_sizes_are_fixed()
        self.sample = self._sample_getter()

    def __len__(self) -> int:
        return self.samples

    def _fail(self, field: str, expected: object, found: object) -> FormatError:
        return FormatError(f"{self.where}: {field}: expected {expected}, found {found}")

    def _checked_offsets(self, shard: Shard) -> NDArray[np.uint32]:
        size = len(self.data)
        if size != shard.raw_data.bytes:
            raise self._fail("bytes of the file", f"{shard.raw_data.bytes} as in the index", size)
        samples = int(self.data[:4].view("<u4")[0]) if size >= 4 else None
        if samples != shard.samples:
            raise self._fail("number of samples", f"{shard.samples} as in the index", samples)
        offsets: NDArray[np.uint32] = self.data[4 : 8 + 4 * samples].view("<u4")
        config_start = 8 + 4 * samples
        if offsets[0] < config_start or offsets[-1] != size or (offsets[1:] < offsets[:-1]).any():
            raise self._fail("offsets", f"rising numbers from {config_start} to {size}", _shorten(offsets))
        try:
            config = json.loads(bytes(self.data[config_start : offsets[0]]))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{self.where}: config: not JSON: {error}") from None
        expected = self.layout.to_json()
        if config != expected:
            found = config if isinstance(config, dict) else {}
            key = next((k for k in expected if k not in found or found[k] != expected[k]), "keys")
            found_text = repr(found.get(key))[:100]
            raise self._fail(f"config: {key}", f"{expected.get(key, sorted(expected))!r} as in the index", found_text)
        return offsets

    def _check_sizes_are_fixed(self) -> None:
        wrong = np.flatnonzero(np.diff(self.offsets) != self._fixed)
        if len(wrong):
            row = int(wrong[0])
            found = int(self.offsets[row + 1]) - int(self.offsets[row])
            raise self._fail(f"bytes of sample {row}", self._fixed, found)

    def _sample_getter(self) -> Callable[[int], dict[str, Any]]:
        """Make the fastest function that reads one sample of this shard's columns."""
        if self.samples and not self.variable and all(isinstance(encoding, Number) for encoding in self.encodings):
            return self._number_getter()
        decoders = [encoding.decode if i in self.columns else None for i, encoding in enumerate(self.encodings)]
        columns = list(zip(self.layout.column_names, self.layout.column_sizes, decoders, strict=True))
        # Not `self`: what is in no cycle is unmapped at once when it is dropped, and its disk space is free.
        view, offsets, header, where = self.view, self.offsets, 4 * self.variable, self.where
        from_bytes = int.from_bytes

        def sample(row: int) -> dict[str, Any]:
            start, end = int(offsets[row]), int(offsets[row + 1])
            position, sizes_at = start + header, start
            values = {}
            for name, size, decode in columns:
                if size is None:
                    size = from_bytes(view[sizes_at : sizes_at + 4], "little")
                    sizes_at += 4
                stop = position + size
                if stop > end:
                    break
                if decode is not None:
                    try:
                        values[name] = decode(view[position:stop])
                    except FormatError as error:
                        raise FormatError(f"{where}: sample {row}, column {name!r}: {error}") from None
                position = stop
            if position != end or stop != end:
                raise FormatError(
                    f"{where}: sizes of sample {row}: expected values that add up to {end - start} bytes, found "
                    f"{position - start}"
                )
            return values

        return sample

    def _number_getter(self) -> Callable[[int], dict[str, Any]]:
        columns: list[tuple[str, Callable[[int], Any]]] = []
        starts = self._fixed_starts()
        for i in self.columns:
            name, encoding = self.layout.column_names[i], self.encodings[i]
            assert isinstance(encoding, Number)
            start = starts[name]
            # One strided view a column: indexing it gives a numpy scalar in 60 ns; `int` gives Python's.
            view = np.ndarray((self.samples,), encoding.dtype, self.data, start, (self._fixed,))
            columns.append((name, view.item if encoding.name == "int" else view.__getitem__))
        return lambda row: {name: value(row) for name, value in columns}

    def _fixed_starts(self) -> dict[str, int]:
        """Give where each column of the first sample starts; for shards with fixed-size columns only."""
        starts = np.cumsum([int(self.offsets[0]), *self._sizes[:-1]], dtype=np.int64)
        return dict(zip(self.layout.column_names, starts.tolist(), strict=True))

    def records(self) -> NDArray[Any]:
        """View a shard whose columns all have a fixed size as structured array: a field of bytes for each column."""
        starts = np.cumsum([0, *self._sizes[:-1]], dtype=np.int64).tolist()
        formats = [
            encoding.dtype if isinstance(encoding, Number) else np.dtype(f"V{encoding.size}")
            for encoding in self.encodings
        ]
        dtype = np.dtype(
            {
                "names": list(self.layout.column_names),
                "formats": formats,
                "offsets": starts,
                "itemsize": self._fixed,
            }
        )
        return np.ndarray((self.samples,), dtype, self.data, int(self.offsets[0]))

    def spans(self, rows: Rows) -> list[tuple[Rows, Rows | int]]:
        """Give, for each column, where the values of some rows start in the file, and their sizes in bytes.

        Args:
            rows: row numbers in this shard, int64[n].

        Returns:
            A pair for each column, in column order: starts, int64[n], and sizes, int64[n] or one number for all.

        Raises:
            FormatError: the sizes in a sample's header do not add up to the sample.
        """
        start = self.offsets[rows].astype(np.int64)
        end = self.offsets[rows + 1].astype(np.int64)
        room = end - start
        header = 4 * self.variable
        if len(rows) and int(room.min()) < header + self._fixed:
            raise self._wrong_sizes(rows, room < header + self._fixed)
        if self.variable == 1:
            # The size is what the fixed parts leave: the header need not be read, only compared.
            headers = [room - header - self._fixed]
            if (scattered(self.data, "<u4")[start] != headers[0]).any():
                raise self._wrong_sizes(rows, scattered(self.data, "<u4")[start] != headers[0])
        else:
            words = scattered(self.data, "<u4")
            headers = [words[start + 4 * i].astype(np.int64) for i in range(self.variable)]
        position = start + header
        sizes = iter(headers)
        spans: list[tuple[Rows, Rows | int]] = []
        for fixed in self.layout.column_sizes:
            size = next(sizes) if fixed is None else fixed
            spans.append((position, size))
            position = position + size
        if (position != end).any():
            raise self._wrong_sizes(rows, position != end)
        return spans

    def _wrong_sizes(self, rows: Rows, wrong: NDArray[np.bool_]) -> FormatError:
        row = int(rows[int(np.flatnonzero(wrong)[0])])
        size = int(self.offsets[row + 1]) - int(self.offsets[row])
        return FormatError(f"{self.where}: sizes of sample {row}: expected values that add up to its {size} bytes")

    def values(self, rows: Rows, columns: Sequence[int]) -> list[Sequence[Any]]:
        """Decode some columns of some rows, as what `Encoding.decode` gives.

        Args:
            rows: row numbers in this shard, int64[n].
            columns: the columns' places.

        Returns:
            For each column its n values.
        """
        spans = self.spans(rows)
        return [self._values(self.encodings[i], *spans[i], rows, i) for i in columns]

    def _values(self, encoding: Encoding, starts: Rows, sizes: Rows | int, rows: Rows, column: int) -> Sequence[Any]:
        if isinstance(encoding, Number):
            numbers = scattered(self.data, encoding.dtype)[starts]
            return numbers.tolist() if encoding.name == "int" else list(numbers)
        view, decode = self.view, encoding.decode
        values: list[Any] = []
        try:
            for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
                values.append(decode(view[start:stop]))
        except FormatError as error:
            name = self.layout.column_names[column]
            raise FormatError(f"{self.where}: sample {rows[len(values)]}, column {name!r}: {error}") from None
        return values

    def read(self, rows: Rows) -> list[dict[str, Any]]:
        """Read the columns of many samples."""
        names = [self.layout.column_names[i] for i in self.columns]
        values = self.values(rows, self.columns)
        return [dict(zip(names, row)) for row in zip(*values)]  # noqa: B905 - strict costs a tenth

    def iterate(self) -> Iterator[dict[str, Any]]:
        """Give all samples in order."""
        step = self.rows_at_once
        for first in range(0, self.samples, step):
            yield from self.read(np.arange(first, min(first + step, self.samples)))

    @property
    def rows_at_once(self) -> int:
        """How many rows to decode at once: many, to spread the cost of a call, but not many bytes."""
        return max(1, min(1024, (1 << 22) * max(1, self.samples) // max(1, len(self.data))))

    def column(self, name: str) -> int:
        """Give a column's place among the columns."""
        return operator.indexOf(self.layout.column_names, name)


def _shorten(values: Sequence[Any] | NDArray[Any]) -> str:
    return f"{list(map(int, values[:4]))}{'...' if len(values) > 4 else ''}"
