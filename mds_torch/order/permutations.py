"""Permutations that depend on nothing but their key: the same on every machine, and with every version of numpy.

numpy keeps the streams of `RandomState` and `SeedSequence` as they are for good (its enhancement proposal 19), which
it does not promise for `Generator`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.random import Philox, RandomState, SeedSequence
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Key = tuple[int, ...]


class Use(IntEnum):
    """What random numbers are for: each use has numbers of its own. Values stay as they are: orders depend on them."""

    SHARDS = 0
    SEGMENTS = 1
    IN_SHARD = 2
    IN_SEGMENT = 3
    WINDOWS = 4
    SHIFTED_WINDOWS = 5
    BOUNDARIES = 6
    EVERYTHING = 7
    CHOICE = 8
    WITHIN_SHARD_CHOICE = 9
    GROUPS = 10


def random_state(use: Use, *key: int) -> RandomState:
    """Give the random numbers of a key, numbers from 0."""
    return RandomState(Philox(SeedSequence([use, *key])))


def permutation(size: int, use: Use, *key: int) -> NDArray[Any]:
    """Give a random permutation of 0 to size-1 in the smallest dtype, int32 or int64."""
    order: NDArray[Any] = random_state(use, *key).permutation(size)
    return order.astype(np.int32) if size < 1 << 31 else order


class Kept:
    """The arrays that were made last, up to a number of elements, and at least one."""

    def __init__(self, elements: int):
        self._room = elements
        self._arrays: OrderedDict[Key, NDArray[Any]] = OrderedDict()

    def get(self, key: Key, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Give the array of a key, made if it is not here."""
        array = self._arrays.get(key)
        if array is None:
            array = make()
            self._room -= len(array)
            while self._room < 0 and self._arrays:
                self._room += len(self._arrays.popitem(last=False)[1])
            self._arrays[key] = array
        else:
            self._arrays.move_to_end(key)
        return array


class Feistel:
    """A permutation of 0 to size-1 of which any part can be had without the rest.

    A balanced Feistel network over the next power of four, with numbers outside of the range sent through again
    (J. Black and P. Rogaway, Ciphers with Arbitrary Finite Domains, 2002).
    """

    _ROUNDS = 6

    def __init__(self, size: int, use: Use, *key: int):
        self.size = size
        self._half = np.uint64(max(1, -(-max(1, size - 1).bit_length() // 2)))
        self._low = np.uint64((1 << int(self._half)) - 1)
        bits = random_state(use, *key).randint(0, 1 << 32, 2 * self._ROUNDS, np.uint64)
        self._keys = (bits[::2] << np.uint64(32)) | bits[1::2]

    def __call__(self, at: Positions) -> Positions:
        """Give where some numbers go, int64[n] both."""
        moved = self._once(at.astype(np.uint64))
        while len(outside := np.flatnonzero(moved >= self.size)):
            moved[outside] = self._once(moved[outside])
        return moved.astype(np.int64)

    def _once(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> self._half, numbers & self._low
        for key in self._keys:
            left, right = right, left ^ (_mixed(right, key) & self._low)
        return (left << self._half) | right


def _mixed(numbers: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    # The finalizer of SplitMix64 (G. Steele, D. Lea, C. Flood, Fast Splittable Pseudorandom Number Generators, 2014).
    mixed = numbers + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
