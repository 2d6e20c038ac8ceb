"""The order: one global sequence for a seed and an epoch, which the cluster only deals out."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mds_torch.order import Deal, EpochOrder

SHARDS = st.lists(st.integers(0, 40), min_size=1, max_size=12)


@dataclass(frozen=True)
class World:
    nodes: int
    ranks_per_node: int
    workers: int
    batch_size: int
    pieces: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


WORLDS = st.builds(World, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))


@given(SHARDS, st.integers(1, 9), st.booleans(), st.integers(0, 2**31), st.integers(0, 99), st.integers(1, 60))
def test_an_epoch_holds_each_sample_once(
    sizes: list[int], pieces: int, shuffle: bool, seed: int, epoch: int, block: int
) -> None:
    order = EpochOrder(np.array(sizes), pieces, shuffle, seed, epoch, block)
    ids = order[:]
    assert len(order) == len(ids) == sum(sizes)
    assert sorted(ids.tolist()) == list(range(sum(sizes)))


@given(SHARDS, st.integers(1, 9), st.integers(1, 60), st.data())
def test_a_slice_is_that_part_of_the_sequence(sizes: list[int], pieces: int, block: int, data: st.DataObject) -> None:
    whole = EpochOrder(np.array(sizes), pieces, True, 7, 0, block)[:]
    order = EpochOrder(np.array(sizes), pieces, True, 7, 0, block)
    first, last = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    assert order[first:last].tolist() == whole[first:last].tolist()
    some = np.array(data.draw(st.lists(st.integers(0, max(0, len(whole) - 1)), max_size=9)) if len(whole) else [], int)
    assert order.at(some).tolist() == whole[some].tolist()


@given(SHARDS)
def test_without_shuffle_samples_keep_their_order(sizes: list[int]) -> None:
    assert EpochOrder(np.array(sizes))[:].tolist() == list(range(sum(sizes)))


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {
        tuple(EpochOrder(np.full(10, 20), 1, True, seed, epoch)[:].tolist()) for seed in range(5) for epoch in range(5)
    }
    assert len(orders) == 25


@given(SHARDS.filter(sum), st.integers(1, 30), st.integers(0, 9))
def test_a_sample_stays_within_a_block_of_its_place_on_the_line(sizes: list[int], block: int, epoch: int) -> None:
    ids = EpochOrder(np.array(sizes), 1, True, 3, epoch, block)[:]
    # The line is the permuted shards: with blocks of one sample nothing moves.
    line = EpochOrder(np.array(sizes), 1, True, 3, epoch, 1)[:]
    place = np.empty(len(ids), int)
    place[line] = np.arange(len(ids))
    assert (np.abs(place[ids] - np.arange(len(ids))) < block).all()


@given(SHARDS.filter(sum), WORLDS)
def test_ranks_get_each_sample_and_the_same_number_of_batches(sizes: list[int], world: World) -> None:
    samples = sum(sizes)
    deal = Deal(samples, world.pieces, world.batch_size, world.ranks, world.nodes)
    per_rank = [deal.positions(rank, range(deal.batches)) for rank in range(world.ranks)]
    assert {len(positions) for positions in per_rank} == {deal.samples_per_rank}
    assert deal.batches == -(-deal.samples_per_rank // world.batch_size)
    dealt = np.concatenate(per_rank)
    assert set(dealt.tolist()) == set(range(samples))
    assert len(dealt) - samples < world.ranks


@given(SHARDS.filter(sum), WORLDS)
def test_a_step_is_the_next_part_of_the_sequence_in_any_world(sizes: list[int], world: World) -> None:
    samples = sum(sizes)
    deal = Deal(samples, world.pieces, world.batch_size, world.ranks, world.nodes)
    step = world.ranks * world.batch_size
    for number in range(deal.batches):
        batch = np.concatenate([deal.positions(rank, [number]) for rank in range(world.ranks)])
        right = set(range(number * step, min((number + 1) * step, samples)))
        assert right <= set(batch.tolist())
        if number < deal.batches - 1:
            assert sorted(batch.tolist()) == sorted(right)


@given(SHARDS.filter(sum), WORLDS)
def test_many_batches_at_once_are_the_same_batches(sizes: list[int], world: World) -> None:
    deal = Deal(sum(sizes), world.pieces, world.batch_size, world.ranks, world.nodes)
    one_by_one = [deal.positions(0, [number]) for number in range(deal.batches)]
    assert deal.positions(0, range(deal.batches)).tolist() == np.concatenate(one_by_one).tolist()


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(50, 400))
def test_a_node_takes_the_positions_of_its_own_pieces(nodes: int, per_node: int, batch: int, samples: int) -> None:
    batch *= nodes  # a global batch that takes as much of each piece
    deal = Deal(samples, nodes, batch, nodes * per_node, nodes)
    for rank in range(nodes * per_node):
        full = range(samples // (batch * nodes * per_node))
        if full:
            assert set((deal.positions(rank, full) % nodes).tolist()) == {rank // per_node}
