"""Digests of files, by the names that an index uses."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

_XXHASH: dict[str, Any] = {
    "xxh32": xxhash.xxh32,
    "xxh64": xxhash.xxh64,
    "xxh128": xxhash.xxh128,
    "xxh3_64": xxhash.xxh3_64,
    "xxh3_128": xxhash.xxh3_128,
}


def _hashers(algorithms: Iterable[str]) -> dict[str, Any]:
    return {name: _XXHASH[name]() if name in _XXHASH else hashlib.new(name) for name in algorithms}


def known_hashes() -> list[str]:
    """List the names of all hashes with digests of a fixed length."""
    shake = {name for name in hashlib.algorithms_available if name.startswith("shake")}
    return sorted({*hashlib.algorithms_available, *_XXHASH} - shake)


def check_hashes(names: Collection[str]) -> tuple[str, ...]:
    """Give the names sorted and without repeats.

    Raises:
        ValueError: a name is unknown; the message lists all.
    """
    known = known_hashes()
    unknown = [repr(name) for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown hash {', '.join(unknown)}; expected some of {', '.join(known)}")
    return tuple(sorted(set(names)))


def digest(parts: Iterable[Buffer], algorithms: Iterable[str]) -> dict[str, str]:
    """Give the hex digests of a file's parts, which together are the file."""
    hashers = _hashers(algorithms)
    if hashers:
        for part in parts:
            for hasher in hashers.values():
                hasher.update(part)
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}
