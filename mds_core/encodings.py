"""One value <-> bytes: one small class an encoding, one table of all.

`get_encoding("ndarray:float32:3,224,224")` gives the encoding of that name. Its `encode` and `decode` handle one
value; `columnar.py` handles whole columns. `encode` raises `EncodeError` for a value that the encoding can't hold,
`decode` raises `FormatError` for bytes that are not a value of it.
"""

from __future__ import annotations

import json
import math
import pickle
import struct
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mds_core.errors import EncodeError, FormatError, describe

if TYPE_CHECKING:
    from PIL.Image import Image

Data = bytes | memoryview

DTYPE_OF_CODE = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32",
    33: "int32", 34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
CODE_OF_DTYPE = {name: code for code, name in DTYPE_OF_CODE.items()}
NUMBERS = tuple(CODE_OF_DTYPE)  # the encodings of one number are named as numpy's dtypes
MAX_DIMENSIONS = 63
_MOST_BYTES = (1 << 32) - 1  # of a value: offsets in a shard are u32


def little_endian(name: str) -> np.dtype[Any]:
    """Give the dtype of a number as the format stores it."""
    return np.dtype(name).newbyteorder("<")


def cast_numbers(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cast numbers of any shape to a dtype, refusing every value that would become another one.

    Integers must be in range, and exact in a float; floats may be rounded to a narrower float, but not overflow,
    and must be whole to become integers.

    Raises:
        EncodeError: with the position of the first wrong value in the flattened array.
    """
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biuf":
        raise EncodeError(f"expected numbers for {dtype.name}, found {describe(values)}")
    inexact = values.dtype.itemsize == 8 and values.dtype.kind in "iu" and dtype.kind == "f"  # safe, says numpy
    if np.can_cast(values.dtype, dtype, "safe") and not inexact:
        return values.astype(dtype)
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        if dtype.kind == "f":
            if values.dtype.kind == "f":
                wrong = np.isinf(cast) & np.isfinite(values)
            else:
                # A float past the integers' end, or infinite, casts back to anything.
                beyond = cast.astype(np.float64) >= float(int(np.iinfo(values.dtype).max) + 1)
                wrong = beyond | np.isinf(cast) | (cast.astype(values.dtype) != values)
        else:
            limits = np.iinfo(dtype)
            if values.dtype.kind == "f":
                # Limits as floats that are exact: -2**(n-1) and 2**n, the latter excluded; infinite as float16.
                wrong = ~((values >= float(limits.min)) & (values < float(limits.max + 1)) & np.isfinite(values))
                wrong |= np.trunc(values) != values
            else:
                wrong = np.zeros(values.shape, bool)
                if int(np.iinfo(values.dtype).min) < limits.min:
                    wrong |= values < limits.min
                if int(np.iinfo(values.dtype).max) > limits.max:
                    wrong |= values > limits.max
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise EncodeError(f"{values.reshape(-1)[row].item()!r} does not fit {range_of(dtype)}", row)
    return cast


def range_of(dtype: np.dtype[Any]) -> str:
    """Give a dtype's name and the numbers that it holds."""
    if dtype.kind == "f":
        return f"{dtype.name} (up to {np.finfo(dtype).max}, whole numbers only if exact)"
    return f"{dtype.name} (whole numbers from {np.iinfo(dtype).min} to {np.iinfo(dtype).max})"


def _as_array(value: object) -> NDArray[Any]:
    if np.ma.is_masked(value):
        raise EncodeError(f"{describe(value)} has masked values, which MDS can't keep: fill them with .filled(VALUE)")
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors that numpy can't see
        raise EncodeError(f"{describe(value)} is not an array: {error}") from None


def _as_bytes(value: object) -> bytes | None:
    """Give the bytes of a value that is to be stored as it is, None for other values."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


class Encoding:
    """How one value of a column becomes bytes.

    `size` is the number of bytes of every value, or None where it varies.
    """

    name: str
    size: int | None = None

    def encode(self, value: Any) -> bytes:
        """Give the bytes of a value; a bytes object is stored as it is."""
        raw = _as_bytes(value)
        if raw is None:
            return self._encode(value)
        if self.size is not None and len(raw) != self.size:
            raise EncodeError(f"{len(raw)} bytes given for {self.name}, which has {self.size}")
        return raw

    def decode(self, data: Data) -> Any:
        """Give the value that `encode` made the bytes of."""
        raise NotImplementedError

    def _encode(self, value: Any) -> bytes:
        raise NotImplementedError

    def _wrong(self, expected: str, value: object) -> EncodeError:
        return EncodeError(f"expected {expected} for {self.name}, found {describe(value)}")


class Number(Encoding):
    """One number: a numpy scalar when read, a Python int for the encoding `int`."""

    def __init__(self, name: str):
        self.name = name
        self.dtype = little_endian("int64" if name == "int" else name)
        self.size = self.dtype.itemsize
        self._python_type = float if self.dtype.kind == "f" else int
        letters = {"i": "bhiq", "u": "BHIQ", "f": "?efd"}[self.dtype.kind]
        self._pack = struct.Struct("<" + letters[self.size.bit_length() - 1]).pack

    def _encode(self, value: Any) -> bytes:
        if type(value) is self._python_type:  # five times as fast as by way of an array, and as strict
            with suppress(struct.error, OverflowError):  # what follows says what is wrong
                return self._pack(value)
        array = _as_array(value)
        if array.size != 1 or array.ndim or array.dtype.kind not in "biufO":
            raise self._wrong("a number", value)
        if array.dtype.kind == "O":
            if not isinstance(value, int):
                raise self._wrong("a number", value)
            raise EncodeError(f"{describe(value)} does not fit {range_of(self.dtype)}")
        return cast_numbers(array, self.dtype).tobytes()

    def decode(self, data: Data) -> Any:
        if len(data) != self.size:
            raise FormatError(f"{self.name}: expected {self.size} bytes, found {len(data)}")
        value = np.frombuffer(data, self.dtype)[0]
        return int(value) if self.name == "int" else value


class Bytes(Encoding):
    """Bytes, as they are."""

    name = "bytes"

    def _encode(self, value: Any) -> bytes:
        raise self._wrong("bytes", value)

    def decode(self, data: Data) -> bytes:
        return bytes(data)


class Text(Encoding):
    """A str as UTF-8."""

    name = "str"

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise self._wrong("a str", value)
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(f"{describe(value)} is not Unicode text: {error.reason}") from None

    def decode(self, data: Data) -> str:
        return _utf8(self.name, data)


def _utf8(name: str, data: Data) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: not UTF-8 at byte {error.start}: {error.reason}") from None


class NumberText(Encoding):
    """A number as the text that `str()` gives."""

    KINDS: ClassVar[dict[str, Any]] = {"str_int": int, "str_float": float, "str_decimal": Decimal}

    def __init__(self, name: str):
        self.name = name
        self.kind = self.KINDS[name]

    def _encode(self, value: Any) -> bytes:
        accepted = {"str_int": (int, np.integer), "str_float": (float, int, np.floating, np.integer)}
        if isinstance(value, bool | np.bool_) or not isinstance(value, accepted.get(self.name, Decimal)):
            raise self._wrong(f"a {self.kind.__name__}", value)
        try:
            return str(value).encode()
        except ValueError as error:
            raise EncodeError(f"{describe(value)} can't be stored as {self.name}: {error}") from None

    def decode(self, data: Data) -> Any:
        text = _utf8(self.name, data)
        try:
            return self.kind(text)
        except (ValueError, InvalidOperation):
            raise FormatError(f"{self.name}: {describe(text)} is not a {self.kind.__name__}") from None


class Json(Encoding):
    """A value of dicts, lists, strings, numbers, booleans and None, as JSON text."""

    name = "json"

    def _encode(self, value: Any) -> bytes:
        try:
            return json.dumps(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(f"not a JSON value: {describe(value)}: {error}") from None

    def decode(self, data: Data) -> Any:
        try:
            return json.loads(str(data, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"json: not JSON text: {error}") from None


class Pickle(Encoding):
    """Any picklable value; bytes are taken for a pickle. Reading it runs code that the data set's writer chose."""

    name = "pkl"

    def _encode(self, value: Any) -> bytes:
        try:
            return pickle.dumps(value)
        except (AttributeError, TypeError, RecursionError, pickle.PicklingError) as error:
            raise EncodeError(f"{describe(value)} can't be pickled: {error}") from None

    def decode(self, data: Data) -> Any:
        try:
            return pickle.loads(data)
        except Exception as error:  # whatever the code that it runs raises
            raise FormatError(f"pkl: can't be read: {type(error).__name__}: {error}") from error


class ImageFile(Encoding):
    """An image as a JPEG or PNG file."""

    def __init__(self, name: str):
        self.name = name

    def _encode(self, value: Any) -> bytes:
        from PIL import Image, JpegImagePlugin

        if not isinstance(value, Image.Image):
            raise self._wrong("a PIL image or the bytes of its file", value)
        out = BytesIO()
        try:
            if self.name == "jpeg" and isinstance(value, JpegImagePlugin.JpegImageFile) and value.filename:
                # Encoding again would lose quality: keep the file that it was opened from.
                file = _unedited_file(value)
                if file is not None:
                    return file
            value.save(out, format=self.name.upper())
        except (OSError, ValueError) as error:
            raise EncodeError(f"{describe(value)} can't be saved as {self.name}: {error}") from None
        return out.getvalue()

    def decode(self, data: Data) -> Image:
        from PIL import Image

        try:
            return Image.open(BytesIO(data))
        except Exception as error:  # Pillow's parsers raise all sorts of errors on broken files
            raise FormatError(f"{self.name}: not an image: {error}") from None


def _unedited_file(image: Any) -> bytes | None:
    """Read the file that an image was opened from; None if the image was edited since, or its file deleted."""
    from PIL import Image

    try:
        with open(image.filename, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        if image.tile:
            raise
        return None
    original = Image.open(BytesIO(data))
    # Pillow keeps as `tile` what of a file it has yet to decode; an edit decodes it, `draft` and `seek` change it.
    if image.tile == original.tile:
        return data
    same = (image.mode, image.size) == (original.mode, original.size) and image.tobytes() == original.tobytes()
    return data if same else None


class RawImage(Encoding):
    """A PIL image as its size, its mode and its raw pixels."""

    name = "pil"

    def _encode(self, value: Any) -> bytes:
        from PIL import Image

        if not isinstance(value, Image.Image):
            raise self._wrong("a PIL image", value)
        if value.getpalette():
            raise EncodeError(
                f"an image of mode {value.mode} has a palette, which {self.name} does not keep: for its colours, give "
                f"image.convert('RGB'); for its numbers, Image.frombytes({value.mode.replace('P', 'L')!r}, image.size, "
                "image.tobytes())"
            )
        mode = value.mode.encode()
        return np.array([*value.size, len(mode)], "<u4").tobytes() + mode + value.tobytes()

    def decode(self, data: Data) -> Image:
        from PIL import Image

        if len(data) < 12:
            raise FormatError(f"pil: expected a header of 12 bytes, found {len(data)}")
        width, height, length = np.frombuffer(data, "<u4", 3).tolist()
        mode, pixels = data[12 : 12 + length], data[12 + length :]
        # At least a bit a pixel: a hostile header can't make us allocate much more than the bytes that are there.
        if width * height > 8 * len(pixels) or max(width, height) > max(8 * len(pixels), _MOST_EMPTY):
            raise FormatError(f"pil: {len(pixels)} bytes are too few for {width}x{height} pixels")
        try:
            return Image.frombytes(bytes(mode).decode("ascii"), (width, height), pixels)
        except Exception as error:  # Pillow's, of an unknown mode or too few or too many pixels
            raise FormatError(f"pil: {width}x{height} pixels of mode {bytes(mode[:20])!r}: {error}") from None


_MOST_EMPTY = 1 << 16  # of the width or height of an image without pixels, for which Pillow allocates, too


class ImageList(Encoding):
    """A list of images, each in another encoding; `prefix` is what stands before the count."""

    def __init__(self, name: str, item: Encoding, prefix: bytes):
        self.name = name
        self.item = item
        self.prefix = prefix

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, list | tuple):
            raise self._wrong("a list of images", value)
        items = [self.item.encode(item) for item in value]
        return self.prefix + np.array([len(items), *map(len, items)], "<u4").tobytes() + b"".join(items)

    def decode(self, data: Data) -> list[Image]:
        start = len(self.prefix)
        count = int.from_bytes(data[start : start + 4], "little")
        if data[:start] != self.prefix or len(data) < start + 4 + 4 * count:
            raise FormatError(f"{self.name}: {len(data)} bytes do not start with a list of images")
        ends = start + 4 + 4 * count + np.cumsum(np.frombuffer(data, "<u4", count, start + 4), dtype=np.int64)
        if (int(ends[-1]) if count else start + 4) != len(data):
            raise FormatError(f"{self.name}: the sizes of {count} images do not add up to {len(data)} bytes")
        starts = [start + 4 + 4 * count, *ends[:-1].tolist()]
        return [self.item.decode(data[a:b]) for a, b in zip(starts, ends.tolist(), strict=False)]


class Array(Encoding):
    """A numpy array; dtype and shape are part of the encoding or stand before each value."""

    def __init__(self, name: str, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None):
        self.name = name
        self.dtype = dtype
        self.shape = shape
        if dtype is not None and shape is not None:
            self.size = math.prod(shape) * dtype.itemsize

    def _encode(self, value: Any) -> bytes:
        array = _as_array(value)
        head = b""
        dtype = self.dtype
        if dtype is None:
            if array.dtype.kind == "b":
                array = array.astype(np.uint8)
            if array.dtype.name not in CODE_OF_DTYPE:
                raise self._wrong(f"an array of one of {', '.join(CODE_OF_DTYPE)}", array.dtype)
            dtype = little_endian(array.dtype.name)
            head = bytes([CODE_OF_DTYPE[dtype.name]])
        if self.shape is None:
            head += encode_shape(array.shape)
        elif array.shape != self.shape:
            raise EncodeError(f"expected an array of shape {self.shape}, found {array.shape}")
        return head + cast_numbers(array, dtype).tobytes()

    def decode(self, data: Data) -> NDArray[Any]:
        start = 0
        dtype, shape = self.dtype, self.shape
        if dtype is None:
            if not data or data[0] not in DTYPE_OF_CODE:
                raise FormatError(f"{self.name}: unknown dtype code {data[0] if data else 'of an empty value'}")
            dtype = little_endian(DTYPE_OF_CODE[data[0]])
            start = 1
        if shape is None:
            shape, start = decode_shape(data, start, self.name)
        count = math.prod(shape)
        if len(data) - start != count * dtype.itemsize:
            raise FormatError(f"{self.name}: {len(data) - start} bytes are not {shape} of {dtype.name}")
        # A copy, so that the array is writable and does not keep the whole shard mapped.
        values = np.frombuffer(data, dtype, count, start)
        try:
            return values.reshape(shape).copy()
        except (ValueError, OverflowError):  # no values, and dimensions past numpy's limits
            raise FormatError(f"{self.name}: no array has the shape {shape}") from None


def encode_shape(shape: tuple[int, ...]) -> bytes:
    """Give a byte `ndim << 2 | w`, then the dimensions in 2**w bytes each, w as small as they allow."""
    if len(shape) > MAX_DIMENSIONS:
        raise EncodeError(f"an array has at most {MAX_DIMENSIONS} dimensions, found {len(shape)}")
    largest = max(shape, default=0)
    width = next(w for w in range(4) if largest < 1 << (8 << w))
    return bytes([len(shape) << 2 | width]) + np.array(shape, f"<u{1 << width}").tobytes()


def decode_shape(data: Data, start: int, name: str) -> tuple[tuple[int, ...], int]:
    """Read a shape at `start`; give it and where the values begin."""
    ndim, width = divmod(data[start], 4) if len(data) > start else (0, 0)
    end = start + 1 + (ndim << width)
    if end > len(data):
        raise FormatError(f"{name}: {len(data)} bytes are too few for a shape of {ndim} dimensions")
    return tuple(np.frombuffer(data, f"<u{1 << width}", ndim, start + 1).tolist()), end


_TABLE: dict[str, Encoding] = {
    **{name: Number(name) for name in ["int", *NUMBERS]},
    **{name: NumberText(name) for name in NumberText.KINDS},
    "bytes": Bytes(),
    "str": Text(),
    "json": Json(),
    "pkl": Pickle(),
    "jpeg": ImageFile("jpeg"),
    "png": ImageFile("png"),
    "pil": RawImage(),
    "ndarray": Array("ndarray", None, None),
    "list[pil]": ImageList("list[pil]", RawImage(), b"\0\0\0\0"),
    "list[jpeg]": ImageList("list[jpeg]", ImageFile("jpeg"), b"\0\0\0\0"),
    "list[png]": ImageList("list[png]", ImageFile("png"), b"\0\0\0\0"),
    "jpeg_array": ImageList("jpeg_array", ImageFile("jpeg"), b""),
    "jpegarray": ImageList("jpegarray", ImageFile("jpeg"), b""),
}
UNSAFE = frozenset({"pkl"})


@lru_cache(maxsize=1024)
def get_encoding(name: str) -> Encoding:
    """Give the encoding of a name, for example `get_encoding("ndarray:uint8:28,28")`.

    Raises:
        ValueError: the name is no encoding's; the message lists all.
    """
    if not isinstance(name, str):
        raise ValueError(f"expected the name of an encoding, found {describe(name)}")
    if name in _TABLE:
        return _TABLE[name]
    kind, _, rest = name.partition(":")
    dtype, _, dims = rest.partition(":")
    if kind != "ndarray" or dtype not in NUMBERS or (":" in rest and not dims):
        raise ValueError(
            f"unknown encoding {name!r}; expected one of {', '.join(_TABLE)}, ndarray:DTYPE or "
            f"ndarray:DTYPE:D0,D1,... with DTYPE one of {', '.join(NUMBERS)}"
        )
    if not dims:
        return Array(name, little_endian(dtype), None)
    parts = dims.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise ValueError(f"encoding {name!r}: expected dimensions like 3,224,224, found {dims!r}")
    shape = tuple(map(int, parts))
    if len(shape) > MAX_DIMENSIONS or math.prod(max(1, n) for n in shape) * np.dtype(dtype).itemsize > _MOST_BYTES:
        raise ValueError(
            f"encoding {name!r}: expected at most {MAX_DIMENSIONS} dimensions and the {_MOST_BYTES} bytes of a shard"
        )
    return Array(name, little_endian(dtype), shape)


def check_safe(encodings: dict[str, str], allow_unsafe_types: bool) -> None:
    """Refuse columns whose reading would run code, unless the caller allows them."""
    unsafe = [column for column, encoding in encodings.items() if encoding in UNSAFE]
    if unsafe and not allow_unsafe_types:
        raise ValueError(
            f"column {', '.join(map(repr, unsafe))}: encoding pkl runs code of the data set's writer when it is "
            "read; if you trust it, pass allow_unsafe_types=True"
        )
