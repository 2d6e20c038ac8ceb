"""How much an epoch takes: of each stream, of each shard, and which samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds_torch.order.line import Shards
from mds_torch.order.plan import Plan
from mds_torch.order.sampling import Weight, check_weights, parts_of, stream_samples
from tests.mds_torch.order.plans import PIECES, SHARDS, ids_of, plan_of


def weights(name: str, *values: float | None) -> list[Weight]:
    return [Weight() if value is None else Weight(**{name: value}) for value in values]


# The reference library gives these, where it does not draw lots for a sample that is left over.
@pytest.mark.parametrize(
    ("given_weights", "sizes", "epoch_size", "samples"),
    [
        (weights("repeat", 0.5, 1.5, 0.1), [7, 7, 10], None, [3, 10, 1]),
        (weights("repeat", 1.3, 0.57, 0), [23, 10, 5], None, [29, 5, 0]),
        (weights("repeat", 2, None), [3, 4], None, [6, 4]),
        (weights("choose", 25, None, 0), [10, 3, 9], None, [25, 3, 0]),
        (weights("proportion", 0.2, 0.3, 0.5), [4, 4, 4], 10, [2, 3, 5]),
        (weights("proportion", 1, 3), [100, 100], None, [50, 150]),
        (weights("proportion", 1, 3), [10, 10], 1_000, [250, 750]),
        (weights("proportion", 0, 1, 1), [10, 10, 10], 101, [0, 51, 50]),
        (weights("proportion", None, None, None), [7, 10, 23], 100, [18, 25, 57]),
        (weights("proportion", None, None, None), [7, 10, 23], 41, [7, 10, 24]),
        ([Weight()], [7], 5, [5]),
        ([Weight()], [7], 100, [100]),
    ],
)
def test_weights_become_samples(
    given_weights: list[Weight], sizes: list[int], epoch_size: int | None, samples: list[int]
) -> None:
    assert stream_samples(given_weights, sizes, epoch_size) == samples


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(1, 10**12))
def test_proportions_fill_an_epoch(proportions: list[int], epoch_size: int) -> None:
    samples = stream_samples(weights("proportion", *proportions), [1] * len(proportions), epoch_size)
    assert sum(samples) == epoch_size
    for share, found in zip(proportions, samples, strict=True):
        assert abs(found - epoch_size * share / sum(proportions)) <= 1


@pytest.mark.parametrize(
    ("given_weights", "epoch_size", "match"),
    [
        ([Weight(proportion=1), Weight()], None, r"streams \[0\] have a proportion and \[1\] have none"),
        ([Weight(proportion=1), Weight(repeat=2)], None, r"streams \[0\] have a proportion and \[1\] have none"),
        ([Weight(repeat=2)], 10, "epoch_size: expected none"),
        ([Weight(choose=2), Weight()], 10, "epoch_size: expected none"),
        ([Weight(proportion=0), Weight(proportion=0)], None, "proportions that add up to more than 0"),
        ([Weight(proportion=1e308), Weight(proportion=1e308)], None, "not to infinity, found inf"),
    ],
)
def test_weights_that_do_not_go_together_are_named(
    given_weights: list[Weight], epoch_size: int | None, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        raise ValueError(*check_weights(given_weights, epoch_size))


@pytest.mark.parametrize(
    ("weight", "match"),
    [
        (Weight(1, 1), "at most one of proportion, repeat and choose"),
        (Weight(repeat=1, choose=1), "at most one of proportion, repeat and choose"),
        (Weight(proportion=-1), "proportion: expected a number from 0 on, found -1"),
        (Weight(repeat=-0.5), "repeat: expected a number from 0 on, found -0.5"),
        (Weight(choose=-2), "choose: expected a whole number from 0 on, found -2"),
        (Weight(repeat=float("nan")), "repeat: expected a number from 0 on, found nan"),
        (Weight(choose=2.5), "choose: expected a whole number from 0 on, found 2.5"),  # type: ignore[arg-type]
        (Weight(choose=True), "choose: expected a whole number from 0 on, found True"),
        (Weight(repeat="2"), "repeat: expected a number from 0 on, found '2'"),  # type: ignore[arg-type]
        (Weight(repeat=float("inf")), "repeat: expected a number from 0 on, found inf"),
    ],
)
def test_a_wrong_weight_is_named(weight: Weight, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        raise ValueError(*weight.wrong())


@given(SHARDS.filter(any), st.integers(0, 500), st.integers(1, 50), st.integers(0, 9))
def test_shards_give_as_many_samples_as_are_taken_each_its_share(
    sizes: list[int], samples: int, granularity: int, epoch: int
) -> None:
    shards = Shards(np.cumsum(sizes) - sizes, np.array(sizes))
    parts = parts_of(shards, range(len(sizes)), samples, granularity, (1, epoch))
    assert parts.samples.sum() == samples
    whole, rest = divmod(samples, sum(sizes))
    taken = np.bincount(parts.shard, parts.samples, len(sizes)).astype(int)
    some = taken - whole * np.array(sizes)
    assert (some >= 0).all()
    assert (some <= sizes).all()
    if granularity == 1:
        share = rest / sum(sizes) * np.array(sizes)
        assert (np.abs(some - share) <= 1).all()
    else:  # one pick may be cut short, and one filled up
        assert sum(n % granularity != 0 and n != size for n, size in zip(some.tolist(), sizes, strict=True)) <= 2


def test_of_a_stream_in_part_each_sample_comes_at_most_once() -> None:
    for algorithm in (None, "py1s", "py2s", "py1br", "py1e", "naive"):
        plan = Plan(np.array([10, 7, 23]), [3], [Weight(repeat=1.5)], shuffle=algorithm, block=9)
        times = np.bincount(ids_of(plan, 2), minlength=40)
        assert times.sum() == 60
        assert set(times.tolist()) == {1, 2}


def test_unshuffled_samples_of_a_part_are_in_order() -> None:
    ids = ids_of(Plan(np.array([10, 10, 20]), [3], [Weight(choose=12)]))
    assert ids == sorted(set(ids))
    assert len(ids) == 12


@given(PIECES, st.integers(0, 20))
def test_balanced_chooses_anew_each_epoch_and_fixed_does_not(pieces: int, epoch: int) -> None:
    for algorithm in (None, "py1e"):
        plans = {
            balanced: Plan(
                np.array([50] * 4), [4], [Weight(repeat=0.5)], shuffle=algorithm, block=30, balanced=balanced
            )
            for balanced in (True, False)
        }
        first = {balanced: set(ids_of(plan, pieces)) for balanced, plan in plans.items()}
        later = {balanced: set(ids_of(plan, pieces, epoch=epoch + 1)) for balanced, plan in plans.items()}
        assert first[True] != later[True]
        assert first[False] == later[False]


def test_a_granularity_takes_from_few_shards() -> None:
    def shards(granularity: int) -> int:
        plan = Plan(np.array([100] * 50), [50], [Weight(choose=500)], granularity=granularity)
        return len({i // 100 for i in ids_of(plan)})

    assert (shards(1), shards(50), shards(100)) == (50, 10, 5)


def test_an_empty_stream_of_which_something_is_to_be_taken_is_named() -> None:
    plan = Plan(np.array([5, 0]), [1, 1], weights("proportion", 1, 1))
    with pytest.raises(ValueError, match="stream 1 has no samples, and an epoch is to take 2 of it"):
        plan.sequence(1, 0, 0, 1)


def test_numbers_of_numpy_are_numbers() -> None:
    weights = [Weight(choose=np.int64(3)), Weight(repeat=np.float32(0.5))]  # type: ignore[arg-type]
    assert [weight.wrong() for weight in weights] == [[], []]
    assert stream_samples(weights, [10, 10], None) == [3, 5]


@pytest.mark.parametrize("batching", ["random", "stratified", "per_stream", "device_per_stream"])
def test_a_stream_of_which_nothing_is_taken_is_left_out(batching: str) -> None:
    plan = Plan(np.array([5, 0, 8]), [1, 1, 1], [Weight(), Weight(), Weight(choose=0)], batching=batching)
    assert ids_of(plan, group=5) == [0, 1, 2, 3, 4]


def test_an_epoch_of_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="stream 0 has no samples, and an epoch is to take 5 of it"):
        Plan(np.array([], int), [0], [Weight()], 5).sequence(1, 0, 0, 1)


def test_a_stream_that_is_taken_often_stays_small() -> None:
    assert len(ids_of(plan_of([3, 4])) * 1) == 7
    plan = Plan(np.array([3, 4]), [2], [Weight(repeat=1_000)], shuffle="py1e", block=100)
    assert np.bincount(ids_of(plan)).tolist() == [1_000] * 7
