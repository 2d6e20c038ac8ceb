"""Packing token sequences into rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds_core import Packed, pack_tokens

# Tokens that tell where they are from: 1,000 times the document's number, and the position.
DOCUMENTS = st.lists(st.integers(0, 25), max_size=30).map(
    lambda sizes: [np.arange(size, dtype=np.int32) + 1000 * number for number, size in enumerate(sizes)]
)
LENGTHS = st.integers(1, 12)


def used(packed: Packed) -> Any:
    return (packed.documents >= 0).sum(1)


@given(documents=DOCUMENTS, length=LENGTHS, split=st.booleans(), end=st.sampled_from([None, 0, -7]))
def test_every_token_comes_once_where_documents_and_positions_say(
    documents: list[Any], length: int, split: bool, end: int | None
) -> None:
    packed = pack_tokens(documents, length, split=split, pad=-1, end=end)
    for values in (packed.tokens, packed.documents, packed.positions):
        assert values.dtype == np.int64
        assert values.shape == (len(packed.tokens), length)
    real = packed.documents >= 0
    order = np.lexsort([packed.positions[real], packed.documents[real]])
    ended = documents if end is None else [[*document, end] for document in documents]
    assert packed.tokens[real][order].tolist() == [token for document in ended for token in document]
    assert packed.positions[real][order].tolist() == [i for document in ended for i in range(len(document))]
    assert packed.documents[real][order].tolist() == [n for n, document in enumerate(ended) for _ in document]
    assert (packed.tokens[~real] == -1).all()
    assert (packed.positions[~real] == 0).all()


@given(documents=DOCUMENTS, length=LENGTHS)
def test_documents_that_are_split_follow_each_other_and_fill_all_rows_but_the_last(
    documents: list[Any], length: int
) -> None:
    packed = pack_tokens(documents, length, pad=-1)
    tokens = np.concatenate([[], *documents])
    assert len(packed.tokens) == -(-len(tokens) // length)
    assert packed.tokens.reshape(-1)[: len(tokens)].tolist() == tokens.tolist()
    assert (packed.tokens.reshape(-1)[len(tokens) :] == -1).all()


@given(documents=DOCUMENTS, length=LENGTHS)
def test_whole_documents_lie_in_one_row_in_order_with_padding_behind_them(documents: list[Any], length: int) -> None:
    packed = pack_tokens(documents, length, split=False)
    firsts = []
    for row, size in enumerate(used(packed)):
        assert size
        assert (packed.documents[row, size:] == -1).all()
        places = packed.documents[row, :size] * 1000 + packed.positions[row, :size]
        assert (np.diff(places) > 0).all()
        firsts.append(places[0])
    assert firsts == sorted(firsts)
    for number, document in enumerate(documents):
        # A long one has as few parts as there can be, and each of them is in one row.
        rows = (packed.documents == number).any(1).sum()
        assert rows == -(-len(document) // length)


@given(documents=DOCUMENTS, length=LENGTHS)
def test_whole_documents_go_where_there_is_least_room(documents: list[Any], length: int) -> None:
    sizes = [min(length, len(d) - at) for d in documents for at in range(0, len(d), length)]
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [room for room in rooms if room >= size]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else length) - size)
    packed = pack_tokens(documents, length, split=False)
    assert sorted(length - used(packed)) == sorted(rooms)


@given(documents=DOCUMENTS, length=LENGTHS, split=st.booleans())
def test_lists_and_arrays_of_any_integers_give_the_same_rows(documents: list[Any], length: int, split: bool) -> None:
    kinds = ("int64", "uint16", "int32", "uint32")
    others = [d.astype(kinds[n % 4]) if n % 5 else d.tolist() for n, d in enumerate(documents)]
    one, other = pack_tokens(documents, length, split=split), pack_tokens(others, length, split=split)
    assert one.tokens.tobytes() == other.tokens.tobytes()
    assert one.documents.tobytes() == other.documents.tobytes()
    assert one.positions.tobytes() == other.positions.tobytes()


def test_an_example_by_hand() -> None:
    documents = [[1, 2], [], [3, 4, 5, 6, 7, 8], [9, 10], [11]]
    whole = pack_tokens(documents, 4, split=False)
    assert whole.tokens.tolist() == [[1, 2, 7, 8], [3, 4, 5, 6], [9, 10, 11, 0]]
    assert whole.documents.tolist() == [[0, 0, 2, 2], [2, 2, 2, 2], [3, 3, 4, -1]]
    assert whole.positions.tolist() == [[0, 1, 4, 5], [0, 1, 2, 3], [0, 1, 0, 0]]
    # Of two rows with the same room, the one that was filled last.
    assert pack_tokens([[1, 1, 1], [2, 2, 2], [3]], 4, split=False).tokens.tolist() == [[1, 1, 1, 0], [2, 2, 2, 3]]
    split = pack_tokens(documents[:3], 4, end=99)
    assert split.tokens.tolist() == [[1, 2, 99, 99], [3, 4, 5, 6], [7, 8, 99, 0]]
    assert split.documents.tolist() == [[0, 0, 0, 1], [2, 2, 2, 2], [2, 2, 2, -1]]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("documents", [[], [[]], [np.empty(0, np.int32), []]])
def test_nothing_gives_no_rows(documents: list[Any], split: bool) -> None:
    packed = pack_tokens(documents, 5, split=split)
    assert packed.tokens.shape == packed.documents.shape == packed.positions.shape == (0, 5)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (np.zeros(3, np.float32), r"float32\[3\]"),
        (np.empty(0, np.float32), r"float32\[0\]"),
        (np.zeros((2, 3), np.int32), r"int32\[2, 3\]"),
        (np.zeros(2, np.uint64), r"uint64\[2\]"),
        (np.array([True]), r"bool\[1\]"),
        ([1, None], r"object\[2\]"),
        ([[1], [2, 3]], r"\[\[1\], \[2, 3\]\] \(list\)"),
        ("text", r"'text' \(str\)"),
        (5, r"5 \(int\)"),
        (None, r"None \(NoneType\)"),
    ],
)
def test_what_is_no_sequence_of_tokens_is_refused_and_named(wrong: Any, found: str) -> None:
    with pytest.raises(ValueError, match=rf"sequences\[1\]: expected a 1-D array of integers .*, found {found}$"):
        pack_tokens([[1], wrong], 4)


@pytest.mark.parametrize("length", [0, -1, 2.0, True, "4", None])
def test_a_row_has_room_for_a_token(length: Any) -> None:
    with pytest.raises(ValueError, match="length: expected a whole number of at least 1, found"):
        pack_tokens([[1]], length)


@pytest.mark.parametrize("options", [{"pad": 0.5}, {"pad": None}, {"end": "</s>"}, {"end": 1 << 63}])
def test_padding_and_ends_are_tokens(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}: expected a whole number that int64 holds, found"):
        pack_tokens([[1]], 4, **options)


def test_a_length_may_be_numpys_and_large() -> None:
    for length in (np.int8(100), np.uint64(100)):
        for split in (True, False):
            assert pack_tokens([np.arange(40_000)], length, split=split).tokens.shape == (400, 100)
    assert pack_tokens([], 1 << 40, split=False).tokens.shape == (0, 1 << 40)
