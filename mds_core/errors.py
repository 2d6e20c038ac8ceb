"""The errors that a caller may want to tell apart, and how they show values."""

import numpy as np


class FormatError(ValueError):
    """A data set on disk is not what the format says: a broken index, shard or compressed file."""


class RewrittenError(FormatError):
    """A data set was written again, under the same path, while it was read."""


class EncodeError(ValueError):
    """A value that its column's encoding cannot hold.

    `row` is the value's position in what was given to be encoded (a batch, an array); 0 for a single value.
    """

    def __init__(self, reason: str, row: int = 0):
        super().__init__(reason)
        self.reason = reason
        self.row = row

    def __reduce__(self) -> tuple[type["EncodeError"], tuple[str, int]]:
        return type(self), (self.reason, self.row)


def describe(value: object) -> str:
    """Give a value's text, not too long, and its type: `'a' (str)`."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print ints of more than 4,300 digits
        text = "a value too long to print"
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
