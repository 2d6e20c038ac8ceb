"""Sizes and counts as numbers and as text."""

from typing import Any

import numpy as np
import pytest

from mds_core.sizes import parse_count, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (1 << 26, 1 << 26),
        (np.int64(5), 5),
        ("67108864", 1 << 26),
        ("64mb", 1 << 26),
        ("64 MB", 1 << 26),
        (" 64m ", 1 << 26),
        ("1kb", 1024),
        ("1.5 GB", 3 << 29),
        ("2tb", 2 << 40),
        ("7b", 7),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_a_size_is_bytes_or_text_with_a_unit(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "mb",
        "64 mbs",
        "1e6",
        "1..5mb",
        "nan",
        "٣",
        True,
        None,
        1.5e300,
        [1],
        "9" * 5000,
        pytest.param(10**5000, id="long"),
        "0." + "1" * 99,
    ],
)
def test_what_is_no_size_is_refused_and_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected a size") as caught:
        parse_size(wrong)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("wrong", [0, -1, "0", "0.4b", "-5mb"])
def test_a_size_is_at_least_one_byte(wrong: int | str) -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        parse_size(wrong)


@pytest.mark.parametrize(
    ("text", "count"),
    [(1000, 1000), ("10k", 10_000), ("1.5m", 1_500_000), ("2b", 2 * 10**9), ("9007199254740993", 9007199254740993)],
)
def test_a_count_is_a_number_or_text_in_thousands(text: int | str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("wrong", [0, -1, "", "ten", True, None, "9" * 5000, pytest.param(10**5000, id="long")])
def test_what_is_no_count_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected a number of at least 1"):
        parse_count(wrong)
