"""Batching methods: which stream comes when."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds_torch.order.batching import Turns
from mds_torch.order.plan import Plan
from mds_torch.order.sampling import Weight
from tests.mds_torch.order.plans import ids_of

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=5)


def streams_of(ids: list[int], sizes: list[int]) -> list[int]:
    streams: list[int] = np.searchsorted(np.cumsum(sizes), ids, side="right").tolist()
    return streams


def plan(sizes: list[int], batching: str, shuffle: str | None = "py1e") -> Plan:
    return Plan(np.array(sizes), [1] * len(sizes), [Weight()] * len(sizes), None, shuffle, 16, batching)


@given(COUNTS, st.booleans())
def test_each_stream_has_its_turns_in_order(counts: list[int], shuffle: bool) -> None:
    turns = Turns(np.array(counts), (1, 2) if shuffle else None)
    stream, number = turns.at(np.arange(sum(counts)))
    for one, count in enumerate(counts):
        assert number[stream == one].tolist() == list(range(count))


@pytest.mark.parametrize("shuffle", [False, True])
def test_turns_of_many_blocks_are_had_in_any_order(shuffle: bool) -> None:
    counts = [200_000, 3, 50_001]
    turns = Turns(np.array(counts), (1, 2) if shuffle else None)
    stream, number = turns.at(np.arange(sum(counts)))
    for one, count in enumerate(counts):
        assert number[stream == one].tolist() == list(range(count))
    some = np.random.default_rng(0).permutation(sum(counts))[:1_000]
    found = Turns(np.array(counts), (1, 2) if shuffle else None).at(some)
    assert found[0].tolist() == stream[some].tolist()
    assert found[1].tolist() == number[some].tolist()
    # Any stretch has of each stream about its share.
    for first in range(0, sum(counts) - 1_000, 10_000):
        share = (stream[first : first + 1_000] == 0).mean()
        assert abs(share - 0.8) < (0.06 if shuffle else 0.002)


def test_random_mixes_the_streams() -> None:
    ids = ids_of(Plan(np.array([100] * 20), [10, 10], [Weight()] * 2, None, "py1e", 1_000, "random"))
    assert sorted(ids) == list(range(2_000))
    shares = [np.mean([i < 1_000 for i in ids[first : first + 100]]) for first in range(0, 2_000, 100)]
    assert 0.2 < np.median(shares) < 0.8


@given(COUNTS.filter(all), st.integers(1, 9))
def test_stratified_gives_each_stream_its_share_of_any_stretch(counts: list[int], pieces: int) -> None:
    streams = np.array(streams_of(ids_of(plan(counts, "stratified"), pieces), counts))
    assert len(streams) == sum(counts)
    for one, count in enumerate(counts):
        had = np.cumsum(streams == one)
        share = np.arange(1, len(streams) + 1) * count / len(streams)
        assert (np.abs(had - share) <= len(counts)).all()


@pytest.mark.parametrize("batching", ["per_stream", "device_per_stream"])
@given(COUNTS, st.integers(1, 9), st.integers(1, 6), st.integers(0, 3))
def test_each_group_is_of_one_stream(batching: str, counts: list[int], group: int, pieces: int, epoch: int) -> None:
    counts = [count + group for count in counts]
    found = ids_of(plan(counts, batching), pieces, 1, epoch, group)
    streams = streams_of(found, counts)
    assert len(set(found)) == len(found)
    assert [streams.count(one) for one in range(len(counts))] == [count // group * group for count in counts]
    for first in range(0, len(streams), group):
        assert len(set(streams[first : first + group])) == 1


@given(st.integers(1, 9), st.integers(1, 6))
def test_a_device_has_groups_of_one_canonical_node(group: int, pieces: int) -> None:
    sizes = [group * pieces * 4, group * pieces * 3]
    sequence = plan(sizes, "device_per_stream").sequence(pieces, 1, 0, group)
    assert len(sequence) == sum(sizes)
    found = sequence.pieces(np.arange(len(sequence))).reshape(-1, group)
    assert (found == found[:, :1]).all()
    assert found[:, 0].tolist() == list(range(pieces)) * 7


def test_groups_come_in_another_order_each_epoch_where_they_are_shuffled() -> None:
    def turns(epoch: int, shuffle: str | None) -> list[int]:
        return streams_of(ids_of(plan([200, 200], "per_stream", shuffle), 1, 1, epoch, 10), [200, 200])

    assert turns(0, "py1e") != turns(1, "py1e")
    assert turns(0, None) == turns(1, None)


def test_streams_of_one_layout_have_orders_of_their_own() -> None:
    ids = np.array(ids_of(plan([500, 500], "stratified")))
    assert (ids[ids < 500]).tolist() != (ids[ids >= 500] - 500).tolist()


@pytest.mark.parametrize("batching", ["per_stream", "device_per_stream"])
def test_a_stream_of_less_than_a_group_is_named(batching: str) -> None:
    with pytest.raises(ValueError, match="stream 1 has 3 samples an epoch, less than one batch of 4"):
        plan([10, 3], batching).sequence(1, 0, 0, 4)
