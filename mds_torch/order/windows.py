"""Windows: shuffling places of a piece with those near them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mds_torch.order.line import groups
from mds_torch.order.permutations import Kept, Positions, Use, permutation, random_state


class Windows:
    """Shuffle the places of each piece in windows of about `size` places.

    Args:
        sizes: the number of places of each piece, int64[pieces].
        size: places a window.
        start: where the second window begins, from 1 to `size`.
        jitter: by how many places, less than half a window, a window may begin sooner or later.
        kept: the permutations that were made.
        use: names the windows' random numbers.
        key: seed, stream and epoch.
    """

    def __init__(
        self, sizes: Positions, size: int, start: int, jitter: int, kept: Kept, use: Use, key: tuple[int, ...]
    ):
        self._sizes = sizes
        self._size = size
        self._start = start
        self._jitter = jitter
        self._kept = kept
        self._use = use
        self._key = key
        self._begins: dict[tuple[int, int], int] = {}

    def __call__(self, piece: Positions, place: Positions) -> Positions:
        """Give where places of pieces go, int64[n] all: each to a place in the same window."""
        pieces = len(self._sizes)
        window = (place - self._start) // self._size + 1
        if self._jitter:
            for key, here in groups(piece + pieces * window):
                number, of = divmod(key, pieces)
                window[here] += place[here] >= self._begin(of, number + 1)
                window[here] -= place[here] < self._begin(of, number)
        moved = np.empty_like(place)
        for key, here in groups(piece + pieces * window):
            number, of = divmod(key, pieces)
            begin = self._begin(of, number)
            moved[here] = self._permutation(of, number)[place[here] - begin]
            moved[here] += begin
        return moved

    def _begin(self, piece: int, window: int) -> int:
        if window <= 0:
            return 0
        begin = self._begins.get((piece, window))
        if begin is None:
            begin = self._start + (window - 1) * self._size
            if self._jitter and begin + self._size // 2 >= self._sizes[piece]:
                begin = int(self._sizes[piece])  # the last window ends with the piece: what is left would be too small
            elif self._jitter:
                numbers = random_state(Use.BOUNDARIES, *self._key, piece, window)
                begin += int(numbers.randint(-self._jitter, self._jitter + 1))
            begin = self._begins[piece, window] = min(begin, int(self._sizes[piece]))
        return begin

    def _permutation(self, piece: int, window: int) -> NDArray[np.int32 | np.int64]:
        size = self._begin(piece, window + 1) - self._begin(piece, window)
        key = (piece, window)
        return self._kept.get((self._use, *key), lambda: permutation(size, self._use, *self._key, *key))
