"""The deal: whatever the world, its ranks and workers together have the global sequence, and nothing else."""

from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mds_torch.order.deal import Deal
from mds_torch.order.epoch import EpochOrder
from mds_torch.order.plan import Plan
from tests.mds_torch.order.plans import PIECES, SEEDS, SHARDS, WORLDS, World, plan_of, plans


def flat(steps: Any) -> list[int]:
    return [i for step in steps for batch in step for i in batch]


# 2,500 worlds are drawn, and as many to resume in.
@settings(max_examples=2_500)
@given(plans(), PIECES, SEEDS, st.integers(0, 9), WORLDS, WORLDS, st.booleans(), st.data())
def test_any_world_reads_the_global_sequence_and_any_other_the_rest_of_it(
    drawn: tuple[Plan, int], pieces: int, seed: int, epoch: int, world: World, other: World, pad: bool, data: Any
) -> None:
    plan, group = drawn
    sequence = plan.sequence(pieces, seed, epoch, group)
    ids = sequence.ids(np.arange(len(sequence))).tolist()
    by_piece = group if plan.batching == "device_per_stream" else 1
    steps = world.read(sequence, pieces, pad=pad, group=by_piece)
    check_steps(ids, steps, world, pad)
    # The same job, stopped after some steps; another one goes on.
    stopped = data.draw(st.integers(0, len(steps)))
    start = world.deal(sequence, pieces).position(stopped)
    check_steps(ids[start:], other.read(sequence, pieces, start=start, pad=pad, group=by_piece), other, pad)


def check_steps(ids: list[int], steps: list[list[list[int]]], world: World, pad: bool) -> None:
    """Check that steps are the slices of a sequence, and only the last one has more."""
    size = world.ranks * world.batch_size
    assert len(steps) == -(-len(ids) // size)
    for number, step in enumerate(steps[:-1]):
        assert {len(batch) for batch in step} == {world.batch_size}
        assert sorted(chain.from_iterable(step)) == sorted(ids[number * size : (number + 1) * size])
    if steps:
        last = list(chain.from_iterable(steps[-1]))
        for i in ids[(len(steps) - 1) * size :]:
            last.remove(i)  # each is there, as often as in the sequence
        sizes = [len(batch) for batch in steps[-1]]
        assert len(last) < world.ranks if pad else last == []
        assert max(sizes) - min(sizes) <= (0 if pad else 1)


@given(plans(), PIECES, WORLDS, st.booleans(), st.booleans(), st.data())
def test_numbers_are_those_of_the_batches(
    drawn: tuple[Plan, int], pieces: int, world: World, drop_last: bool, pad: bool, data: Any
) -> None:
    plan, group = drawn
    sequence = plan.sequence(pieces, 1, 2, group)
    assert len(sequence) == plan.samples(group)
    start = data.draw(st.integers(0, len(sequence)))
    deal = world.deal(sequence, pieces, start=start, drop_last=drop_last, pad=pad)
    for rank in range(world.ranks):
        batches = [deal.positions(rank, [number]).tolist() for number in range(deal.batches(rank))]
        assert sum(map(len, batches)) == deal.samples(rank)
        assert not drop_last or all(len(batch) == world.batch_size for batch in batches)
        if batches:
            some = sorted(data.draw(st.sets(st.integers(0, len(batches) - 1), min_size=1)))
            assert deal.positions(rank, some).tolist() == [i for number in some for i in batches[number]]


@given(SHARDS, WORLDS)
def test_without_a_last_batch_less_than_a_step_is_left_out(shards: list[int], world: World) -> None:
    sequence = plan_of(shards).sequence(world.nodes, 1, 0, 1)
    steps = world.read(sequence, world.nodes, drop_last=True)
    assert sorted(flat(steps)) == sorted(sequence.ids(np.arange(len(flat(steps)))).tolist())
    assert 0 <= sum(shards) - len(flat(steps)) < world.ranks * world.batch_size


@pytest.mark.parametrize("algorithm", [None, "py1s", "py2s", "py1br", "py1e"])
@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 8), st.integers(1, 30), st.integers(0, 3))
def test_few_shards_are_needed_by_two_nodes(
    algorithm: str | None, nodes: int, ranks_per_node: int, batch_size: int, shard: int, epoch: int
) -> None:
    # The whole epoch, with what is repeated at its end.
    world = World(nodes, ranks_per_node, 1, batch_size)
    sequence = plan_of([shard] * 41, algorithm, 50).sequence(nodes, 3, epoch, 1)
    steps = world.read(sequence, nodes)
    needed = [
        {i // shard for step in steps for batch in step[node * ranks_per_node :][:ranks_per_node] for i in batch}
        for node in range(nodes)
    ]
    times = [sum(one in shards for shards in needed) for one in range(41)]
    # A last step of fewer samples than nodes leaves nodes that repeat one of their own.
    assert max(times) <= 2
    assert sum(time == 2 for time in times) <= nodes - 1


@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 8), st.integers(50, 500))
def test_several_pieces_of_a_node_are_all_its_own(
    nodes: int, pieces_per_node: int, ranks_per_node: int, batches: int, samples: int
) -> None:
    world = World(nodes, ranks_per_node, 1, batches * pieces_per_node)  # a step takes as much of each piece
    sequence = plan_of([samples]).sequence(nodes * pieces_per_node, 1, 0, 1)
    deal = world.deal(sequence, nodes * pieces_per_node)
    for rank in range(world.ranks if deal.batches(0) else 0):
        pieces = sequence.pieces(deal.positions(rank, range(deal.batches(rank))))
        assert set((pieces // pieces_per_node).tolist()) <= {rank // ranks_per_node}


def test_a_device_reads_one_stream_of_its_own_pieces() -> None:
    plan = Plan(np.array([40] * 6), [3, 3], plan_of([1]).weights * 2, None, "py1e", 20, "device_per_stream")
    sequence, world = plan.sequence(2, 1, 0, 5), World(2, 2, 1, 5)
    steps = world.read(sequence, 2, group=5)
    assert len(steps) == 12
    for step in steps[:-1]:
        for rank, batch in enumerate(step):
            assert len({i // 120 for i in batch}) == 1, rank
    assert sorted(flat(steps)) == list(range(240))
    shards = [{i // 40 for step in steps for batch in step[2 * node :][:2] for i in batch} for node in (0, 1)]
    assert len(shards[0] & shards[1]) <= 2


# Many batches at once


@pytest.mark.parametrize("long_turns", [False, True])
@given(SHARDS, WORLDS, st.integers(1, 60), st.data())
def test_workers_share_out_their_ranks_batches_in_torchs_order(
    long_turns: bool, shards: list[int], world: World, rows: int, data: Any
) -> None:
    sequence = plan_of(shards, "py1e", 30).sequence(world.nodes, 1, 0, 1)
    deal = world.deal(sequence, world.nodes)
    order = EpochOrder(sequence, deal, data.draw(st.integers(0, world.ranks - 1)))
    right = [batch.tolist() for batch in order.batches()]
    turns = [list(order.turns(worker, world.workers, rows, long_turns=long_turns)) for worker in range(world.workers)]
    found = []
    if long_turns:  # a message is what a worker gives at once
        for number in range(max(map(len, turns))):
            for worker in turns:
                message = worker[number].tolist() if number < len(worker) else []
                found += [message[at : at + world.batch_size] for at in range(0, len(message), world.batch_size)]
    else:  # torch collates each batch, of the samples that a worker gives one by one
        samples = [iter([i for ids in worker for i in ids.tolist()]) for worker in turns]
        for number in range(len(right)):
            found.append(list(islice(samples[number % world.workers], world.batch_size)))
    assert found == right
    shares = [sum(map(len, worker)) for worker in turns]
    assert max(shares) - min(shares) <= max(world.batch_size, sum(shares) // 8 + world.batch_size)


@given(SHARDS, WORLDS, st.integers(1, 60), st.booleans(), st.data())
def test_a_worker_goes_on_after_any_sample(
    shards: list[int], world: World, rows: int, long_turns: bool, data: Any
) -> None:
    sequence = plan_of(shards, "py1br", 30).sequence(world.nodes, 1, 0, 1)
    order = EpochOrder(sequence, world.deal(sequence, world.nodes), 0)
    worker = data.draw(st.integers(0, world.workers - 1))

    def ids(skip: int) -> list[int]:
        turns = order.turns(worker, world.workers, rows, long_turns=long_turns, skip=skip)
        return [i for some in turns for i in some.tolist()]

    skip = data.draw(st.integers(0, len(ids(0))))
    assert ids(skip) == ids(0)[skip:]


def test_an_order_tells_what_was_in_a_batch() -> None:
    sequence = plan_of([100], "py1e").sequence(1, 1, 0, 1)
    order = EpochOrder(sequence, Deal(100, 5, 4), rank=2)
    assert len(order) == 100
    assert len(order[:]) == 100
    batches = list(order.batches())
    assert len(batches) == 5
    assert batches[3].tolist() == order[3 * 20 + 10 : 3 * 20 + 15].tolist()
    assert next(order.batches(rank=0)).tolist() == order[:5].tolist()
    assert [batch.tolist() for batch in order.batches(worker=1, workers=2)] == [
        batch.tolist() for batch in batches[1::2]
    ]
    for rank, worker, workers in ((4, 0, 1), (-1, 0, 1), (0, 2, 2), (0, 0, 0)):
        with pytest.raises(ValueError, match="expected a rank from 0 to 3"):
            order.batches(rank, worker, workers)
