"""Digests by the names that an index uses."""

import hashlib

import pytest
import xxhash

from mds_core.hashing import check_hashes, digest, known_hashes

DATA = bytes(range(256)) * 40


@pytest.mark.parametrize("name", known_hashes())
def test_a_digest_of_parts_is_that_of_the_whole(name: str) -> None:
    assert digest([DATA[:100], memoryview(DATA)[100:]], [name]) == digest([DATA], [name])


def test_digests_are_hex_of_hashlib_and_xxhash() -> None:
    found = digest([DATA], ["sha256", "xxh64", "xxh3_128"])
    assert found == {
        "sha256": hashlib.sha256(DATA).hexdigest(),
        "xxh64": xxhash.xxh64(DATA).hexdigest(),
        "xxh3_128": xxhash.xxh3_128(DATA).hexdigest(),
    }


def test_hashes_of_the_reference_are_all_known() -> None:
    xxhashes = {"xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"}
    assert xxhashes | hashlib.algorithms_guaranteed - {"shake_128", "shake_256"} <= set(known_hashes())


def test_names_are_sorted_and_different() -> None:
    assert check_hashes(["xxh64", "md5", "xxh64"]) == ("md5", "xxh64")


def test_all_unknown_names_are_in_one_error() -> None:
    with pytest.raises(ValueError, match=r"unknown hash 'crc', 'shake_128', 5; expected some of .*sha256"):
        check_hashes(["crc", "md5", "shake_128", 5])  # type: ignore[list-item]
