"""What a store says of a file without sending it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Info:
    """A file's size in bytes, and its version: a text that is another one when the file was written again."""

    size: int
    version: str
