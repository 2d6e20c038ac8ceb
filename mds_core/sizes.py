"""Sizes in bytes, as numbers or as text."""

from __future__ import annotations

import re
from decimal import Decimal

from mds_core.errors import describe

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MOST_CHARACTERS = 40


def parse_size(value: int | str) -> int:
    """Give the bytes of a size such as `67108864`, `"64mb"` or `"1.5 GB"` (1 kb is 1,024 bytes).

    Raises:
        ValueError: not a size.
    """
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", _text(value), re.ASCII)
    if match is None:
        raise ValueError(f"expected a size such as 67108864 or '64mb', found {describe(value)}")
    size = int(Decimal(match[1]) * _UNITS[match[2]])
    if size < 1:
        raise ValueError(f"expected a size of at least 1 byte, found {describe(value)}")
    return size


def _text(value: object) -> str:
    """Give the text of a number; nothing for one of more digits than any size or count has."""
    try:
        text = str(value).lower()
    except ValueError:  # Python refuses to print ints of more than 4,300 digits
        return ""
    return text if len(text) <= _MOST_CHARACTERS else ""


def parse_count(value: int | str) -> int:
    """Give the number of a count such as `1000`, `"10k"` or `"1.5m"` (1 k is 1,000).

    Raises:
        ValueError: not a count, or less than 1.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmbt]?)\s*", _text(value), re.ASCII)
    count = int(Decimal(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}[match[2]]) if match else 0
    if count < 1 or isinstance(value, bool):
        raise ValueError(f"expected a number of at least 1, such as 1000 or '10k', found {describe(value)}")
    return count
