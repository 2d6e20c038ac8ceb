"""The global sequence: each sample once, whatever is asked; and what each shuffle mixes."""

from collections.abc import Callable
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds_torch.order.permutations import Feistel, Kept, Use, permutation
from mds_torch.order.shuffles import SHUFFLES
from tests.mds_torch.order.plans import ALGORITHMS, BLOCKS, EPOCHS, PIECES, SEEDS, SHARDS, ids_of, plan_of

SHUFFLED = pytest.mark.parametrize("algorithm", list(SHUFFLES))


@given(SHARDS, PIECES, ALGORITHMS, SEEDS, EPOCHS, BLOCKS)
def test_any_data_set_even_an_empty_one_has_each_sample_once(
    shards: list[int], pieces: int, algorithm: str | None, seed: int, epoch: int, block: int
) -> None:
    ids = ids_of(plan_of(shards, algorithm, block), pieces, seed, epoch)
    assert sorted(ids) == list(range(sum(shards)))


@given(SHARDS, PIECES, ALGORITHMS, SEEDS, EPOCHS, BLOCKS, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_how_it_is_asked(
    shards: list[int], pieces: int, algorithm: str | None, seed: int, epoch: int, block: int, random: Any
) -> None:
    plan = plan_of(shards, algorithm, block)
    ids = ids_of(plan, pieces, seed, epoch)
    sequence = plan.sequence(pieces, seed, epoch, 1)
    positions = list(range(len(ids)))
    random.shuffle(positions)
    assert [int(sequence.ids(np.array([i]))[0]) for i in positions] == [ids[i] for i in positions]
    some = np.array(positions[: len(ids) // 2], np.int64)
    assert sequence.ids(some).tolist() == [ids[i] for i in some]


@given(SHARDS, PIECES, ALGORITHMS)
def test_the_pieces_are_taken_in_turn_and_as_even_as_can_be(
    shards: list[int], pieces: int, algorithm: str | None
) -> None:
    sequence = plan_of(shards, algorithm, 10).sequence(pieces, 1, 2, 1)
    samples = len(sequence)
    found = sequence.pieces(np.arange(samples)).tolist()
    whole = samples // pieces
    assert found[: whole * pieces] == list(range(pieces)) * whole
    assert len(set(found[whole * pieces :])) == samples % pieces
    # Any half, third, … of the pieces has its share: nodes get as many samples.
    for nodes in (n for n in range(1, pieces + 1) if pieces % n == 0):
        shares = [sum(piece * nodes // pieces == node for piece in found) for node in range(nodes)]
        assert max(shares) - min(shares) <= 1


@given(SHARDS, PIECES)
def test_without_shuffle_each_piece_is_in_order(shards: list[int], pieces: int) -> None:
    samples = sum(shards)
    cuts = [piece * samples // pieces for piece in range(pieces + 1)]
    turns = zip_longest(*(range(first, last) for first, last in pairwise(cuts)))
    # Those with a sample more come last.
    assert ids_of(plan_of(shards), pieces) == [i for turn in turns for i in turn if i is not None]


@SHUFFLED
def test_seeds_and_epochs_have_orders_of_their_own(algorithm: str) -> None:
    plan = plan_of([50] * 8, algorithm, 60)
    orders = {tuple(ids_of(plan, 2, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert ids_of(plan, 2, 3, 4) == ids_of(plan, 2, 3, 4)


def lines(ids: list[int], shard: int) -> list[int]:
    """Give the shards of a sequence, without repetitions."""
    return [s for at, s in enumerate(i // shard for i in ids) if not at or ids[at - 1] // shard != s]


@pytest.mark.parametrize("algorithm", ["py1s", "py2s"])
def test_shard_after_shard_is_read(algorithm: str) -> None:
    ids = ids_of(plan_of([30] * 20, algorithm))
    line = lines(ids, 30)
    assert sorted(line) == list(range(20))
    assert line != list(range(20))
    moved = [ids[first : first + 30] for first in range(0, 600, 30)]
    assert all(part != sorted(part) for part in moved)


def test_a_shard_that_is_cut_is_cut_at_random_only_when_shuffled_before() -> None:
    halves = {}
    for algorithm in ("py1s", "py2s"):
        sequence = plan_of([1_000], algorithm).sequence(2, 1, 0, 1)
        halves[algorithm] = sequence.ids(np.arange(0, 1_000, 2))
    assert set(halves["py1s"].tolist()) == set(range(500))
    assert 200 < (halves["py2s"] < 500).sum() < 300


@SHUFFLED
def test_a_piece_keeps_its_shards_over_the_epochs(algorithm: str) -> None:
    # So that a node need not fetch others each epoch.
    if algorithm == "naive":
        return  # mixes all with all
    plan = plan_of([10] * 40, algorithm, 30)
    found = []
    for epoch in range(3):
        sequence = plan.sequence(4, 5, epoch, 1)
        found.append([set((sequence.ids(np.arange(piece, 400, 4)) // 10).tolist()) for piece in range(4)])
        assert sum(len(shards) for shards in found[-1]) <= 40 + 3
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("algorithm", "span"), [("py1e", 1_000), ("py1br", 1_250)])
def test_samples_move_within_a_block(algorithm: str, span: int) -> None:
    # With blocks of one sample nothing moves: that order shows the line of shards.
    line, ids = (np.array(ids_of(plan_of([100] * 200, algorithm, block))) for block in (1, 1_000))
    place = np.empty(len(line), int)
    place[line] = np.arange(len(line))
    moved = place[ids] - np.arange(len(ids))
    assert np.abs(moved).max() < span
    assert np.abs(moved).mean() > 200
    assert sorted(line // 100) == sorted(ids // 100)


@pytest.mark.parametrize("algorithm", ["py1e", "py1br", "naive"])
def test_shards_are_mixed_to_the_end_of_an_epoch(algorithm: str) -> None:
    ids = ids_of(plan_of([100] * 50, algorithm, 1_000))
    for first in range(0, 5_000, 100):
        assert len({i // 100 for i in ids[first : first + 100]}) >= 5


def test_a_shard_larger_than_a_block_is_shuffled_as_a_whole() -> None:
    ids = ids_of(plan_of([10_000] * 3, "py1e", 100))
    first = np.array(ids[:1_000]) % 10_000
    assert first.max() - first.min() > 9_000


def test_blocks_begin_elsewhere_in_each_piece_and_epoch() -> None:
    # The borders of blocks are where what is before and after is not mixed.
    borders = set()
    for epoch in range(4):
        sequence = plan_of([1] * 4_000, "py1br", 100).sequence(2, 1, epoch, 1)
        place = {
            int(i): n
            for n, i in enumerate(plan_of([1] * 4_000, "py1br", 1).sequence(2, 1, epoch, 1).ids(np.arange(4_000)))
        }
        for piece in range(2):
            places = [place[i] // 2 for i in sequence.ids(np.arange(piece, 4_000, 2)).tolist()]
            borders.add(tuple(n for n in range(1, 2_000) if max(places[:n]) < n)[:3])
    assert len(borders) == 8


@pytest.mark.parametrize("shuffle", [None, *SHUFFLES])
def test_a_billion_samples_are_ready_at_once(shuffle: str | None) -> None:
    sequence = plan_of([10_000] * 100_000, shuffle).sequence(8, 1, 0, 1)
    ids = sequence.ids(np.arange(999_999_000, 1_000_000_000))
    assert len(set(ids.tolist())) == 1_000
    assert ids.min() >= 0
    assert ids.max() < 10**9


def test_pieces_of_more_than_two_billion_samples_are_whole() -> None:
    sequence = plan_of([2**31] * 4, "py1br", 1 << 10).sequence(1, 1, 0, 1)
    positions = np.concatenate([np.arange(start, start + 5_000) for start in (2**31 - 2_000, 2**33 - 5_000)])
    ids = sequence.ids(positions)
    assert len(set(ids.tolist())) == len(ids)
    assert ids.min() >= 0
    assert ids.max() < 2**33


# What it is made of


@given(st.integers(0, 3_000), SEEDS, EPOCHS)
def test_a_network_permutes(size: int, seed: int, epoch: int) -> None:
    moved = Feistel(size, Use.EVERYTHING, seed, epoch)(np.arange(size))
    assert sorted(moved.tolist()) == list(range(size))


def test_a_network_mixes_as_well_as_a_permutation() -> None:
    moved = Feistel(100_000, Use.EVERYTHING, 3)(np.arange(100_000))
    # Of n places, n/10 fall into each tenth; neighbours are n/3 apart; 1 place is as it was.
    for tenth in np.array_split(moved, 10):
        counts = np.histogram(tenth, 10, (0, 100_000))[0]
        assert (np.abs(counts - 1_000) < 150).all()
    assert abs(np.abs(np.diff(moved)).mean() - 33_333) < 500
    assert (moved == np.arange(100_000)).sum() < 10


def test_permutations_are_the_same_for_good() -> None:
    # Orders in checkpoints depend on them: of numpy 1.26 to 2.4, and on any machine.
    assert permutation(10, Use.WINDOWS, 9176, 0, 3).tolist() == [9, 2, 7, 4, 8, 5, 6, 0, 1, 3]
    assert Feistel(10, Use.EVERYTHING, 9176, 3)(np.arange(10)).tolist() == [8, 6, 3, 7, 1, 0, 9, 5, 2, 4]


def test_what_is_kept_is_bounded() -> None:
    made: list[int] = []

    def make(key: int) -> Callable[[], Any]:
        return lambda: made.append(key) or np.zeros(10)

    kept = Kept(25)
    for key in (1, 2, 1, 3, 1, 2):
        assert len(kept.get((key,), make(key))) == 10
    assert made == [1, 2, 3, 2]
    assert len(Kept(5).get((1,), make(1))) == 10
