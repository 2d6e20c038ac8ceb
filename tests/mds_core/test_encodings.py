"""One value <-> bytes: every encoding, its edge values, and what it refuses."""

import math
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageDraw

from mds_core import EncodeError, FormatError
from mds_core.encodings import CODE_OF_DTYPE, NUMBERS, cast_numbers, check_safe, encode_shape, get_encoding

FLOATS = [name for name in NUMBERS if name.startswith("float")]
INTEGERS = [name for name in NUMBERS if not name.startswith("float")]


def there_and_back(name: str, value: Any) -> Any:
    encoding = get_encoding(name)
    data = encoding.encode(value)
    assert encoding.size in (None, len(data))
    return encoding.decode(memoryview(data))


def assert_same(found: Any, right: Any) -> None:
    if isinstance(right, Image.Image):
        assert (found.mode, found.size, found.tobytes()) == (right.mode, right.size, right.tobytes())
    elif isinstance(right, list):
        assert len(found) == len(right)
        for a, b in zip(found, right, strict=True):
            assert_same(a, b)
    elif isinstance(right, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(found, right)
    elif isinstance(right, float):
        assert math.isnan(found) if math.isnan(right) else found == right
    else:
        assert type(found) is type(right)
        assert found == right


def image(mode: str, width: int = 5, height: int = 3) -> Image.Image:
    pixels = Image.new(mode, (width, height)).tobytes()
    return Image.frombytes(mode, (width, height), bytes(i * 37 % 256 for i in range(len(pixels))))


# Numbers


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_keep_their_ends(name: str) -> None:
    limits = np.iinfo(name)
    for value in (limits.min, limits.max, 0, 1):
        found = there_and_back(name, int(value))
        assert (found, found.dtype) == (value, np.dtype(name))


@pytest.mark.parametrize("name", FLOATS)
def test_floats_keep_their_ends_infinities_and_nan(name: str) -> None:
    limits = np.finfo(name)
    for value in (limits.max, limits.min, limits.tiny, limits.smallest_subnormal, -0.0, math.inf, -math.inf):
        assert there_and_back(name, float(value)) == value
    assert np.signbit(there_and_back(name, -0.0))
    assert np.isnan(there_and_back(name, math.nan))


def test_int_is_a_python_int_of_64_bits() -> None:
    for value in (-(2**63), 2**63 - 1, np.uint64(2**63 - 1), np.int8(-5)):
        found = there_and_back("int", value)
        assert type(found) is int
        assert found == value


@pytest.mark.parametrize(
    "value", [5, 5.0, True, np.uint64(5), np.float16(5), np.bool_(True), np.array(5), np.array(5.0)]
)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_any_type_that_fit_are_taken(name: str, value: Any) -> None:
    assert there_and_back(name, value) == value


DO_NOT_FIT = [
    ("int32", 1.9), ("int32", 2**31), ("int32", -(2**31) - 1), ("int32", np.float32(2**31)), ("int32", np.int64(2**31)),
    ("int32", math.nan), ("int32", math.inf), ("int32", np.float16(math.nan)), ("int32", np.float16(-math.inf)),
    ("uint16", -5), ("uint16", np.int8(-5)), ("uint16", np.float16(-1)), ("uint16", 65536), ("uint8", 256),
    ("int8", np.uint8(128)), ("int64", 2**63), ("int64", 2.0**63), ("int64", 10**40), ("int64", np.uint64(2**63)),
    ("uint64", 2.0**64), ("uint64", -1), ("uint64", 2**64), ("int", 0.5), ("int", 2**63),
    ("float32", 1e300), ("float32", -1e300), ("float32", np.float64(1e39)), ("float32", 2**24 + 1),
    ("float32", np.int32(-(2**31) + 1)), ("float16", 65520.0), ("float16", 70000), ("float16", np.int32(-(2**31))),
    ("float16", np.int64(-(2**63))), ("float16", 2049), ("float64", 2**53 + 1), ("float64", np.int64(2**63 - 1)),
    ("float64", np.uint64(2**64 - 1)), ("float64", 10**400),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), DO_NOT_FIT, ids=lambda value: str(value)[:30])
def test_a_number_that_does_not_fit_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(EncodeError, match=rf"does not fit {'int64' if name == 'int' else name} \(") as caught:
        get_encoding(name).encode(value)
    shown = value.item() if isinstance(value, np.generic) else value
    assert str(caught.value).startswith(repr(shown)[:70])


def test_a_number_too_long_to_print_is_refused() -> None:
    with pytest.raises(EncodeError, match=r"a value too long to print .* does not fit int64"):
        get_encoding("int").encode(10**5000)


@pytest.mark.parametrize(
    "value", [None, "5", "", [5], [1, [2]], {}, np.array([5]), np.array(["5"]), 1j, Decimal(5), object()]
)
@pytest.mark.parametrize("name", ["int", "int32", "float64"])
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(EncodeError, match=name if not isinstance(value, list) else "number|array"):
        get_encoding(name).encode(value)


@settings(max_examples=600)
@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.data())
def test_casting_keeps_each_value_or_refuses_the_first_that_it_would_change(source: str, to: str, data: Any) -> None:
    array = data.draw(hnp.arrays(source, st.integers(1, 20), elements=hnp.from_dtype(np.dtype(source)) | edges(source)))
    target = np.dtype(to).newbyteorder("<")
    misfits = [row for row, value in enumerate(array) if not fits(value, target)]
    if misfits:
        with pytest.raises(EncodeError) as caught:
            cast_numbers(array, target)
        assert caught.value.row == misfits[0]
    else:
        cast = cast_numbers(array, target)
        assert cast.dtype == target
        if target.kind != "f":
            assert [int(value) for value in array] == cast.tolist()


def edges(name: str) -> st.SearchStrategy[Any]:
    """Numbers of a type beside powers of two, where other types end."""
    numbers = {sign * 2**power + beside for sign in (1, -1) for power in range(65) for beside in (-1, 0, 1)}
    if name in FLOATS:
        with np.errstate(all="ignore"):
            return st.sampled_from([float(np.dtype(name).type(number)) for number in sorted(numbers)])
    return st.sampled_from([n for n in sorted(numbers) if np.iinfo(name).min <= n <= np.iinfo(name).max])


def fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """What `cast_numbers` promises, in Python's exact arithmetic."""
    exact = value.item()
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        return math.isfinite(exact) and exact == int(exact) and limits.min <= exact <= limits.max
    with np.errstate(all="ignore"):
        cast = dtype.type(exact) if isinstance(exact, float) else dtype.type(float(exact))
    if isinstance(exact, float):
        return not math.isfinite(exact) or bool(np.isfinite(cast))
    return bool(np.isfinite(cast)) and int(cast) == exact


# Text, bytes, JSON, pickles


@given(st.text())
def test_str_keeps_any_text(text: str) -> None:
    assert there_and_back("str", text) == text
    assert get_encoding("str").encode(text) == text.encode()


@given(st.binary())
def test_bytes_are_kept_as_they_are(data: bytes) -> None:
    for value in (data, bytearray(data), memoryview(data)):
        assert there_and_back("bytes", value) == data


@given(st.integers())
def test_str_int_keeps_integers_of_any_size(value: int) -> None:
    assert there_and_back("str_int", value) == value


@given(st.floats())
def test_str_float_keeps_every_float(value: float) -> None:
    assert_same(there_and_back("str_float", value), value)


@given(st.decimals())
def test_str_decimal_keeps_every_decimal(value: Decimal) -> None:
    assert str(there_and_back("str_decimal", value)) == str(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_json_keeps_nested_values_and_none(value: Any) -> None:
    assert there_and_back("json", value) == value


def test_pickles_keep_what_other_encodings_cannot() -> None:
    for value in ({1, 2}, None, np.arange(3).tolist(), ("a", 1)):
        assert there_and_back("pkl", value) == value


REFUSED: list[tuple[str, Any, str]] = [
    ("str", 5, "expected a str for str, found 5"),
    ("str", None, "expected a str for str, found None"),
    ("str", "\ud800", "not Unicode text"),
    ("bytes", "text", "expected bytes for bytes, found 'text'"),
    ("str_int", 5.0, "expected a int for str_int, found 5.0"),
    ("str_int", True, "found True"),
    ("str_int", 10**5000, "can't be stored as str_int"),
    ("str_float", "5", "expected a float"),
    ("str_decimal", 5.0, "expected a Decimal"),
    ("json", {1, 2}, "not a JSON value"),
    ("json", np.int64(3), "not a JSON value"),
    ("json", 10**5000, "not a JSON value: a value too long to print"),
    ("pkl", lambda: None, "can't be pickled"),
    ("png", "x.png", "expected a PIL image or the bytes of its file for png, found 'x.png'"),
    ("pil", [1], "expected a PIL image"),
    ("list[png]", image("L"), "expected a list of images"),
    ("list[png]", [image("L"), 5], "expected a PIL image"),
    ("jpeg", image("RGBA"), "can't be saved as jpeg"),
    ("ndarray", "text", "expected an array of one of uint8"),
    ("ndarray", [1, None], "expected an array of one of uint8"),
    ("ndarray", [[1], [1, 2]], "is not an array"),
    ("ndarray", np.zeros(2, complex), "expected an array of one of uint8"),
    ("ndarray:int32", None, "expected numbers for int32"),
    ("ndarray:int32", [1, 2**31], "2147483648 does not fit int32"),
    ("ndarray:int32", [[1, 2], [3, math.nan]], "nan does not fit int32"),
    ("ndarray:int32:2", [1, 2, 3], r"expected an array of shape \(2,\), found \(3,\)"),
    ("ndarray:int32:2,2", [1, 2, 3, 4], r"expected an array of shape \(2, 2\), found \(4,\)"),
    ("int32", b"abc", "3 bytes given for int32, which has 4"),
    ("ndarray:int8:2", b"abc", "3 bytes given for ndarray:int8:2, which has 2"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=[f"{i}-{r[0]}" for i, r in enumerate(REFUSED)])
def test_a_value_of_another_kind_is_refused_and_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        get_encoding(name).encode(value)


def test_bytes_are_stored_as_they_are_in_any_column() -> None:
    names = [
        "pkl",
        "str",
        "json",
        "str_int",
        "jpeg",
        "png",
        "pil",
        "list[jpeg]",
        "jpeg_array",
        "ndarray",
        "ndarray:int8",
    ]
    for name in names:
        assert get_encoding(name).encode(memoryview(b"\1\2\3")) == b"\1\2\3"
    assert get_encoding("int32").encode(b"\1\0\0\0") == b"\1\0\0\0"


# Arrays


ARRAYS = hnp.arrays(
    st.sampled_from([*NUMBERS, ">i4", ">f8"]), hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
)


@given(ARRAYS)
def test_arrays_keep_dtype_shape_and_values(array: np.ndarray) -> None:
    name = array.dtype.name
    native = array.astype(name)
    assert_same(there_and_back("ndarray", array), native)
    assert_same(there_and_back(f"ndarray:{name}", array), native)
    if array.ndim:
        assert_same(there_and_back(f"ndarray:{name}:{','.join(map(str, array.shape))}", array), native)


@pytest.mark.parametrize(
    ("shape", "head"),
    [
        ((), "00"),
        ((255,), "04ff"),
        ((256,), "05 0001"),
        ((65535,), "05 ffff"),
        ((65536,), "06 00000100"),
        ((3, 300), "09 0300 2c01"),
        ((2**32, 1), "0b 0000000001000000 0100000000000000"),
        ((0, 5), "08 00 05"),
    ],
)
def test_a_shape_takes_the_smallest_integers_that_hold_it(shape: tuple[int, ...], head: str) -> None:
    assert encode_shape(shape) == bytes.fromhex(head)


@pytest.mark.parametrize("shape", [(256,), (3, 300), (65536,), (1, 65536, 1)])
def test_arrays_with_large_dimensions_come_back(shape: tuple[int, ...]) -> None:
    array = (np.arange(math.prod(shape)) % 251).astype(np.uint8).reshape(shape)
    assert_same(there_and_back("ndarray", array), array)


def test_an_array_is_stored_in_c_order_and_comes_back_writable() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert get_encoding("ndarray").encode(np.asfortranarray(array)) == get_encoding("ndarray").encode(array)
    found = there_and_back("ndarray", array[:, ::-1])
    found[0, 0] = 9
    assert found.tolist() == [[9, 1, 0], [5, 4, 3]]


@pytest.mark.parametrize("name", ["ndarray", "ndarray:float64", "ndarray:float64:2"])
def test_a_masked_array_is_refused_where_something_is_masked(name: str) -> None:
    with pytest.raises(EncodeError, match=r"has masked values, .* fill them with .filled\(VALUE\)"):
        get_encoding(name).encode(np.ma.array([1.0, 2.0], mask=[False, True]))
    for unmasked in (np.ma.array([1.0, 2.0]), np.ma.array([1.0, 2.0], mask=[False, False])):
        assert_same(there_and_back(name, unmasked), np.array([1.0, 2.0]))


@pytest.mark.parametrize("name", ["int", "uint8", "float32", "float64"])
def test_a_masked_number_is_refused(name: str) -> None:
    with pytest.raises(EncodeError, match="masked"):
        get_encoding(name).encode(np.ma.masked)


def test_lists_of_numbers_and_booleans_are_arrays() -> None:
    assert_same(there_and_back("ndarray:float32", [[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]], np.float32))
    assert_same(there_and_back("ndarray:int32", []), np.empty(0, np.int32))
    assert_same(there_and_back("ndarray", [True, False]), np.array([1, 0], np.uint8))


def test_more_than_63_dimensions_are_refused() -> None:
    assert encode_shape((1,) * 63) == b"\xfc" + b"\1" * 63
    with pytest.raises(EncodeError, match="at most 63 dimensions, found 64"):
        encode_shape((1,) * 64)


# Images


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16"])
def test_pil_keeps_the_pixels_of_each_mode(mode: str) -> None:
    assert_same(there_and_back("pil", image(mode)), image(mode))


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)])
def test_pil_keeps_images_without_pixels(size: tuple[int, int]) -> None:
    assert there_and_back("pil", Image.new("RGB", size)).size == size


@pytest.mark.parametrize("name", ["png", "list[png]", "list[pil]"])
def test_lossless_images_keep_their_pixels(name: str) -> None:
    values: list[Any] = [image("RGB"), image("L", 1, 1)] if name == "png" else [[], [image("RGB"), image("L")]]
    for value in values:
        assert_same(there_and_back(name, value), value)


def test_a_jpeg_that_was_opened_from_a_file_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    image("RGB", 30, 20).save(path, quality=35)
    with Image.open(path) as opened:
        assert get_encoding("jpeg").encode(opened) == path.read_bytes()
        path.unlink()
        with pytest.raises(EncodeError, match="can't be saved as jpeg"):
            get_encoding("jpeg").encode(opened)


EDITS: dict[str, Callable[[Any], Any]] = {
    "thumbnail": lambda opened: opened.thumbnail((10, 10)),
    "paste": lambda opened: opened.paste((255, 0, 0), (0, 0, 9, 9)),
    "draw": lambda opened: ImageDraw.Draw(opened).rectangle((0, 0, 9, 9), fill=(255, 0, 0)),
    "pixel": lambda opened: opened.putpixel((0, 0), (1, 2, 3)),
    "all pixels": lambda opened: opened.putdata([(1, 2, 3)] * 600),
    "draft": lambda opened: opened.draft("RGB", (10, 10)),
    "draft of a mode": lambda opened: opened.draft("L", opened.size),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("deleted", [False, True])
def test_a_jpeg_that_was_edited_after_it_was_opened_is_encoded_as_it_is_now(
    edit: str, deleted: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.jpg"
    image("RGB", 30, 20).save(path, quality=35)
    with Image.open(path) as opened:
        EDITS[edit](opened)
        if deleted and not opened.tile:
            path.unlink()
        found = there_and_back("jpeg", opened)
        right = BytesIO()
        opened.save(right, "JPEG")
    assert_same(found, Image.open(right))
    if path.exists():
        assert found.tobytes() != Image.open(path).tobytes()


@pytest.mark.parametrize("use", [Image.Image.load, np.asarray, Image.Image.copy, Image.Image.close])
def test_a_jpeg_that_was_only_looked_at_keeps_its_bytes(use: Callable[[Any], Any], tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    image("RGB", 30, 20).save(path, quality=35)
    with Image.open(path) as opened:
        use(opened)
        assert get_encoding("jpeg").encode(opened) == path.read_bytes()


def test_another_picture_of_a_jpeg_of_several_is_the_one_that_is_encoded(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    frames = [Image.new("RGB", (30, 20), colour) for colour in ("red", "blue")]
    frames[0].save(path, "MPO", save_all=True, append_images=frames[1:])
    with Image.open(path) as opened:
        assert get_encoding("jpeg").encode(opened) == path.read_bytes()
        opened.seek(1)
        assert there_and_back("jpeg", opened).getpixel((0, 0))[2] > 200


@pytest.mark.parametrize("mode", ["P", "PA"])
def test_an_image_with_a_palette_is_refused_by_pil_which_would_lose_it(mode: str) -> None:
    coloured = image("RGB").convert("P").convert(mode)
    for name, value in (("pil", coloured), ("list[pil]", [coloured])):
        with pytest.raises(EncodeError, match=rf"mode {mode} has a palette, .*convert\('RGB'\).* Image.frombytes\('L"):
            get_encoding(name).encode(value)
    assert there_and_back("png", image("RGB").convert("P")).getpalette() == image("RGB").convert("P").getpalette()


@pytest.mark.parametrize(("name", "prefix"), [("list[jpeg]", 8), ("jpeg_array", 4), ("jpegarray", 4)])
def test_lists_of_jpegs_keep_the_files(name: str, prefix: int) -> None:
    files = []
    for i in range(3):
        out = BytesIO()
        image("L", 10 + i, 10).save(out, "JPEG")
        files.append(out.getvalue())
    data = get_encoding(name).encode(files)
    assert data[prefix + 12 :] == b"".join(files)
    assert [found.size for found in get_encoding(name).decode(data)] == [(10, 10), (11, 10), (12, 10)]


# Hostile bytes


def packed(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


SHAPE_OF_63 = bytes([63 << 2 | 3])
HOSTILE = [
    ("int32", b"abc", "int32: expected 4 bytes, found 3"),
    ("float64", b"", "float64: expected 8 bytes, found 0"),
    ("str", b"ab\xff", "str: not UTF-8 at byte 2"),
    ("str_int", b"5.5", "str_int: '5.5' .* is not a int"),
    ("str_int", b"9" * 5000, "str_int: .* is not a int"),
    ("str_int", b"", "is not a int"),
    ("str_float", b"1,5", "is not a float"),
    ("str_decimal", b"1e", "is not a Decimal"),
    ("json", b"{", "json: not JSON text"),
    ("json", b"", "json: not JSON text"),
    ("json", b"\xff\xfe", "json: not JSON text"),
    ("json", b"[" * 100_000, "json: not JSON text"),
    ("json", b"9" * 5000, "json: not JSON text"),
    ("pkl", b"garbage", "pkl: can't be read"),
    ("pkl", b"", "pkl: can't be read"),
    ("jpeg", b"", "jpeg: not an image"),
    ("png", b"\x89PNG\r\n\x1a\n" + bytes(30), "png: not an image"),
    ("pil", b"\0" * 11, "pil: expected a header of 12 bytes, found 11"),
    ("pil", packed(2**32 - 1, 2**32 - 1, 1) + b"L", "0 bytes are too few for 4294967295x4294967295 pixels"),
    ("pil", packed(0, 2**32 - 1, 1) + b"L", "too few for 0x4294967295 pixels"),
    ("pil", packed(2**31 - 1, 0, 1) + b"L", "too few for 2147483647x0 pixels"),
    ("pil", packed(4, 4, 3) + b"RGB" + bytes(47), "pil: 4x4 pixels of mode b'RGB'"),
    ("pil", packed(2, 2, 2**32 - 1) + b"L" + bytes(4), "pil: 0 bytes are too few"),
    ("pil", packed(1, 1, 4) + b"ABCD" + bytes(9), "pil: 1x1 pixels of mode b'ABCD'"),
    ("pil", packed(1, 1, 2) + b"\xff\xff" + bytes(9), "pil: 1x1 pixels of mode"),
    ("list[pil]", packed(0), r"list\[pil\]: 4 bytes do not start with a list"),
    ("list[pil]", packed(1, 0), "do not start with a list"),
    ("list[jpeg]", packed(0, 2**32 - 1), "do not start with a list"),
    ("list[png]", packed(0, 2, 2**32 - 1, 2**32 - 1), "the sizes of 2 images do not add up to 16 bytes"),
    ("list[png]", packed(0, 0, 5), "the sizes of 0 images do not add up to 12 bytes"),
    ("jpeg_array", b"", "jpeg_array: 0 bytes do not start with a list"),
    ("jpeg_array", packed(1, 4) + b"abcd", "jpeg: not an image"),
    ("ndarray", b"", "ndarray: unknown dtype code of an empty value"),
    ("ndarray", b"\7\4\0", "ndarray: unknown dtype code 7"),
    ("ndarray", b"\x08", "ndarray: 1 bytes are too few for a shape"),
    ("ndarray:int8", b"", "ndarray:int8: 0 bytes are too few for a shape"),
    ("ndarray:int8", SHAPE_OF_63, "1 bytes are too few for a shape of 63 dimensions"),
    ("ndarray:int8", SHAPE_OF_63 + b"\xff" * 504, r"0 bytes are not \(18446744073709551615, "),
    ("ndarray:int8", SHAPE_OF_63 + b"\xff" * 496 + bytes(8), r"no array has the shape \(18446744073709551615, "),
    ("ndarray:int32", b"\x07" + struct.pack("<Q", 2**62), r"0 bytes are not \(4611686018427387904,\) of int32"),
    ("ndarray:int8", b"\x0b" + struct.pack("<2Q", 2**63, 0), "no array has the shape"),
    ("ndarray:int8", b"\x0f" + struct.pack("<3Q", 2**62, 2**62, 0), "no array has the shape"),
    ("ndarray:int8", b"\x04\x03\0\0", r"2 bytes are not \(3,\) of int8"),
    ("ndarray:int8:2,2", b"abc", r"3 bytes are not \(2, 2\) of int8"),
    ("ndarray:int8:0,4294967295", b"a", "1 bytes are not"),
]


@pytest.mark.parametrize(("name", "data", "message"), HOSTILE, ids=[f"{i}-{h[0]}" for i, h in enumerate(HOSTILE)])
def test_bytes_that_are_no_value_are_refused(name: str, data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        get_encoding(name).decode(memoryview(data))


EVERY = [
    *("int", *NUMBERS, "bytes", "str", "str_int", "str_float", "str_decimal", "json", "jpeg", "png", "pil", "ndarray"),
    *("list[pil]", "list[jpeg]", "list[png]", "jpeg_array", "ndarray:int16", "ndarray:float32:2,2", "ndarray:int8:0"),
]


@pytest.mark.parametrize("name", EVERY)
@given(data=st.binary(max_size=80))
def test_any_bytes_are_a_value_or_a_format_error(name: str, data: bytes) -> None:
    with suppress(FormatError):
        get_encoding(name).decode(memoryview(data))


PNG = BytesIO()
image("RGB", 8, 8).save(PNG, "PNG")
JPEG = BytesIO()
image("RGB", 8, 8).save(JPEG, "JPEG")
WHOLE: list[tuple[str, bytes]] = [
    ("png", PNG.getvalue()),
    ("jpeg", JPEG.getvalue()),
    ("pil", get_encoding("pil").encode(image("RGB"))),
    ("list[png]", get_encoding("list[png]").encode([image("L"), image("1")])),
    ("jpeg_array", get_encoding("jpeg_array").encode([JPEG.getvalue()])),
    ("ndarray", get_encoding("ndarray").encode(np.arange(6, dtype=np.int16).reshape(2, 3))),
    ("json", b'{"a": [1, 2.5, null, "text"]}'),
]


@pytest.mark.parametrize(("name", "whole"), WHOLE, ids=[name for name, _ in WHOLE])
@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4), cut=st.integers(0, 5))
def test_a_damaged_value_is_a_value_or_a_format_error(
    name: str, whole: bytes, flips: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(whole[: len(whole) - cut])
    for at, byte in flips:
        data[at % len(data)] = byte
    with suppress(FormatError):
        get_encoding(name).decode(memoryview(data))


# Names


@pytest.mark.parametrize(
    "name",
    ["", "int31", "ndarray:", "ndarray:int31", "ndarray:int8:", "ndarray:int8:a", "ndarray:int8:-1", "ndarray:int8:1,",
     "ndarray:int8:1,,2", "ndarray:int8:٣", "ndarray:int8: 1", "array:int8", "int32:4", "list[int]", "PNG", None, 5],
)  # fmt: skip
def test_an_unknown_encoding_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="encoding"):
        get_encoding(name)


def test_the_error_of_an_unknown_encoding_lists_all() -> None:
    with pytest.raises(
        ValueError, match=r"unknown encoding 'text'; expected one of int, .*str_decimal.*ndarray:DTYPE:D0"
    ):
        get_encoding("text")


@pytest.mark.parametrize(
    "dims", ["4294967296", "99999,99999", "0,9999999999999999999", "9" * 19, ",".join("1" * 64)], ids=lambda d: d[:20]
)
def test_an_encoding_whose_values_no_shard_could_hold_is_refused(dims: str) -> None:
    with pytest.raises(ValueError, match="at most 63 dimensions and the 4294967295 bytes of a shard"):
        get_encoding(f"ndarray:int8:{dims}")


def test_the_dtype_codes_are_the_formats() -> None:
    assert CODE_OF_DTYPE == {
        "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
        "uint64": 64, "int64": 65, "float64": 66,
    }  # fmt: skip


def test_pickles_are_refused_unless_the_caller_allows_them() -> None:
    check_safe({"a": "int32", "p": "pkl"}, allow_unsafe_types=True)
    check_safe({"a": "int32"}, allow_unsafe_types=False)
    with pytest.raises(ValueError, match=r"column 'p', 'q': encoding pkl runs code .* pass allow_unsafe_types=True"):
        check_safe({"p": "pkl", "a": "int32", "q": "pkl"}, allow_unsafe_types=False)


def test_an_encode_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(EncodeError("too large", 7)))
    assert (error.reason, error.row, str(error)) == ("too large", 7, "too large")
