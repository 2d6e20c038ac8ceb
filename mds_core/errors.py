"""The errors that a caller may want to tell apart."""


class FormatError(ValueError):
    """A data set on disk is not what the format says: a broken index, shard or compressed file."""


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
