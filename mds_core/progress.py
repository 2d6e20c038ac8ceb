"""Progress bars for what takes long, where somebody looks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

T = TypeVar("T")

# Seconds before a bar appears: what is done sooner needs none.
_DELAY = 1.0


def progress(items: Collection[T], what: str, unit: str) -> Iterator[T]:
    """Give each of some items, and show on the terminal how many there were; nothing where stderr is no terminal.

    Args:
        items: what to go through.
        what: is being done.
        unit: an item is one.
    """
    from tqdm import tqdm  # 30 ms, for what is seldom needed

    return iter(tqdm(items, desc=what, unit=f" {unit}", disable=None, delay=_DELAY, leave=False))
