"""What a store says of a file without sending it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Version:
    """Which writing of a file it is.

    Args:
        tag: a text that is another one when the file was written again.
        written: when it was written, in seconds since 1970, if the store's own clock says so.
    """

    tag: str
    written: float | None = None

    def is_before(self, other: Version) -> bool:
        """Tell whether it was surely written before another file of the same store."""
        return self.written is not None and other.written is not None and self.written < other.written


@dataclass(frozen=True)
class Info:
    """A file's size in bytes, and which writing of it that is."""

    size: int
    version: Version
