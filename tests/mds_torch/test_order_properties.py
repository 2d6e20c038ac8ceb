"""More promises of the order: pieces, windows, and the ids that a data set gives its DataLoader workers."""

from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds_core import MDSWriter
from mds_torch import StreamingDataset
from mds_torch.order import Deal, EpochOrder

SHARDS = st.lists(st.one_of(st.integers(0, 1), st.integers(0, 40)), max_size=12)
PIECES = st.integers(1, 9)
SEEDS = st.integers(0, 2**63)
EPOCHS = st.integers(0, 10**6)
BLOCKS = st.integers(1, 70)

# The global sequence


@given(SHARDS, PIECES, st.booleans(), SEEDS, EPOCHS, BLOCKS)
def test_any_data_set_even_an_empty_one_has_each_sample_once(
    shards: list[int], pieces: int, shuffle: bool, seed: int, epoch: int, block: int
) -> None:
    order = EpochOrder(shards, pieces, shuffle, seed, epoch, block)
    assert len(order) == sum(shards)
    assert sorted(order[:].tolist()) == list(range(sum(shards)))


@given(SHARDS, PIECES, SEEDS, BLOCKS, st.data())
def test_slices_are_those_of_a_list(shards: list[int], pieces: int, seed: int, block: int, data: st.DataObject) -> None:
    order = EpochOrder(shards, pieces, True, seed, 0, block)
    ids = order[:].tolist()
    ends = st.none() | st.integers(-len(ids) - 2, len(ids) + 2)
    at = data.draw(st.builds(slice, ends, ends, st.sampled_from([None, 1, 3, -1])))
    assert order[at].tolist() == ids[at]


@given(SHARDS, PIECES, SEEDS, EPOCHS, BLOCKS, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_how_it_is_asked(
    shards: list[int], pieces: int, seed: int, epoch: int, block: int, random: Any
) -> None:
    ids = EpochOrder(shards, pieces, True, seed, epoch, block)[:].tolist()
    order = EpochOrder(shards, pieces, True, seed, epoch, block)
    positions = list(range(len(ids)))
    random.shuffle(positions)
    assert [int(order[i : i + 1][0]) for i in positions] == [ids[i] for i in positions]


@given(SHARDS, PIECES)
def test_without_shuffle_pieces_are_taken_in_turn(shards: list[int], pieces: int) -> None:
    cuts = np.array_split(np.arange(sum(shards)), pieces)
    turns = [i for turn in zip_longest(*(cut.tolist() for cut in cuts)) for i in turn if i is not None]
    assert EpochOrder(shards, pieces)[:].tolist() == turns


@given(PIECES, SEEDS, EPOCHS, st.integers(40, 200))
def test_another_seed_or_epoch_gives_another_order(pieces: int, seed: int, epoch: int, block: int) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        ids: list[int] = EpochOrder([50] * 8, pieces, True, seed, epoch, block)[:].tolist()
        return ids

    assert order(seed, epoch) == order(seed, epoch)
    others = [order(seed + 1, epoch), order(seed, epoch + 1), order(epoch, seed % 10**6 + 1)]
    assert order(seed, epoch) not in others


@given(SHARDS, SEEDS, EPOCHS)
def test_blocks_of_one_sample_shuffle_shards_only(shards: list[int], seed: int, epoch: int) -> None:
    ids = EpochOrder(shards, 1, True, seed, epoch, 1)[:].tolist()
    starts = np.cumsum([0, *shards]).tolist()
    shard_of = np.repeat(np.arange(len(shards)), shards)[ids].tolist()
    line = [shard for at, shard in enumerate(shard_of) if not at or shard_of[at - 1] != shard]
    assert ids == [i for shard in line for i in range(starts[shard], starts[shard + 1])]


@given(SHARDS, PIECES, SEEDS, EPOCHS, BLOCKS)
def test_each_block_of_each_piece_holds_its_part_of_the_line(
    shards: list[int], pieces: int, seed: int, epoch: int, block: int
) -> None:
    # With blocks of one sample nothing moves: that order shows the line of shards.
    line = EpochOrder(shards, pieces, True, seed, epoch, 1)[:]
    shuffled = EpochOrder(shards, pieces, True, seed, epoch, block)[:]
    for piece in range(pieces):
        here = np.arange(piece, len(line), pieces)
        for first in range(0, len(here), block):
            window = here[first : first + block]
            assert sorted(line[window].tolist()) == sorted(shuffled[window].tolist())


def test_a_whole_block_is_shuffled() -> None:
    line, ids = (EpochOrder([10_000], 1, True, 7, 0, block)[:] for block in (1, 1_000))
    moved = np.abs(ids - line)
    assert moved.max() < 1_000
    assert 300 < moved.mean() < 367  # a third of the block, if every place is as likely


def test_shards_are_mixed_to_the_end_of_an_epoch() -> None:
    ids = EpochOrder([100] * 50, 1, True, 3, 0, 1_000)[:]
    for first in range(0, 5_000, 1_000):
        assert len({i // 100 for i in ids[first : first + 100].tolist()}) >= 8


def test_a_billion_samples_are_ready_at_once() -> None:
    order = EpochOrder(np.full(100_000, 10_000), 8, True, 1)
    ids = order.at(np.arange(999_999_000, 1_000_000_000))
    assert len(set(ids.tolist())) == 1_000
    assert ids.min() >= 0
    assert ids.max() < 10**9


# The deal


@st.composite
def deals(draw: st.DrawFn) -> Deal:
    nodes = draw(st.integers(1, 4))
    return Deal(
        samples=draw(st.integers(0, 300)),
        pieces=draw(PIECES),
        batch_size=draw(st.integers(1, 9)),
        ranks=nodes * draw(st.integers(1, 4)),
        nodes=nodes,
    )


def batches_of(deal: Deal, rank: int) -> list[list[int]]:
    return [deal.positions(rank, [number]).tolist() for number in range(deal.batches)]


@given(deals())
def test_all_ranks_have_batches_of_the_same_sizes(deal: Deal) -> None:
    sizes = [[len(batch) for batch in batches_of(deal, rank)] for rank in range(deal.ranks)]
    assert all(size == sizes[0] for size in sizes)
    assert sum(sizes[0]) == deal.samples_per_rank
    assert all(size == deal.batch_size for size in sizes[0][:-1])


@given(deals())
def test_a_step_takes_the_next_slice_of_the_sequence(deal: Deal) -> None:
    first = 0
    ranks = [batches_of(deal, rank) for rank in range(deal.ranks)]
    for step in range(deal.batches):
        dealt = sorted(chain.from_iterable(batches[step] for batches in ranks))
        assert dealt == sorted(i % deal.samples for i in range(first, first + len(dealt)))
        first += len(dealt)
    assert deal.samples <= first < deal.samples + deal.ranks


@given(deals(), st.data())
def test_any_batches_asked_for_together_are_those_asked_for_alone(deal: Deal, data: st.DataObject) -> None:
    if deal.batches:
        numbers = sorted(data.draw(st.sets(st.integers(0, deal.batches - 1), min_size=1)))
        rank = data.draw(st.integers(0, deal.ranks - 1))
        alone = batches_of(deal, rank)
        assert deal.positions(rank, numbers).tolist() == [i for number in numbers for i in alone[number]]


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(1, 8), st.integers(0, 2_000))
def test_a_node_takes_its_own_pieces_when_it_has_several(
    nodes: int, pieces_per_node: int, ranks_per_node: int, batches: int, samples: int
) -> None:
    batch_size = batches * pieces_per_node  # so that a global batch is a multiple of the pieces
    deal = Deal(samples, nodes * pieces_per_node, batch_size, nodes * ranks_per_node, nodes)
    whole = samples // (deal.ranks * batch_size)  # after them the sequence begins anew
    for rank in range(deal.ranks if whole else 0):
        pieces = deal.positions(rank, range(whole)) % deal.pieces
        assert set((pieces // pieces_per_node).tolist()) == {rank // ranks_per_node}


def test_a_node_needs_its_share_of_the_shards() -> None:
    order, deal = EpochOrder([100] * 40, 4, True, 5), Deal(4_000, 4, 25, 8, 4)
    for node in range(4):
        ids = np.concatenate([order.at(deal.positions(rank, range(20))) for rank in (2 * node, 2 * node + 1)])
        assert len(set((ids // 100).tolist())) <= 11


# A data set's ids, for its DataLoader workers


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """A data set of several shards for each of some lengths."""
    made = {}
    for samples in (0, 1, 7, 64, 501):
        made[samples] = str(tmp_path_factory.mktemp("order") / "data")
        with MDSWriter(out=made[samples], columns={"n": "int64"}, size_limit=400) as writer:
            for n in range(samples):
                writer.write({"n": n})
    return made


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, int]:
    nodes, per_node = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rank = draw(st.integers(0, nodes * per_node - 1))
    return {"rank": rank, "world_size": nodes * per_node, "local_world_size": per_node}


def in_turn(workers: Iterable[Iterable[Any]]) -> list[Any]:
    """Take one item of each in turn until all have ended, as torch's DataLoader does of its workers."""
    return [item for turn in zip_longest(*workers) for item in turn if item is not None]


def cut(arrays: Iterable[Any], size: int) -> list[list[int]]:
    ids = [i for some in arrays for i in some.tolist()]
    return [ids[first : first + size] for first in range(0, len(ids), size)]


@pytest.mark.parametrize("long_turns", [False, True])
@given(
    samples=st.sampled_from([0, 1, 7, 64, 501]),
    world=worlds(),
    pieces=st.none() | PIECES,
    batch_size=st.integers(1, 9),
    workers=st.integers(1, 5),
    at_once=st.sampled_from([1, 100, 1_000, 1 << 22]),
    shuffle=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_workers_share_out_their_ranks_batches_in_torchs_order(
    folders: dict[int, str],
    samples: int,
    world: dict[str, int],
    pieces: int | None,
    batch_size: int,
    workers: int,
    at_once: int,
    shuffle: bool,
    epoch: int,
    long_turns: bool,
) -> None:
    dataset = StreamingDataset(local=folders[samples], shuffle=shuffle, num_canonical_nodes=pieces, **world)
    order, deal = dataset.epoch_order(epoch), dataset.deal(batch_size)
    right = [order.at(np.array(batch, np.int64)).tolist() for batch in batches_of(deal, world["rank"])]
    given = [
        list(dataset.rank_ids(epoch, batch_size, worker, workers, bytes_at_once=at_once, long_turns=long_turns))
        for worker in range(workers)
    ]
    if long_turns:  # a message is what a worker gives at once
        found = [batch for message in in_turn(given) for batch in cut([message], batch_size)]
    else:  # torch collates each batch, of the samples that a worker gives one by one
        found = in_turn(cut(ids, batch_size) for ids in given)
    assert found == right


def test_workers_have_a_like_number_of_samples(folders: dict[int, str]) -> None:
    dataset = StreamingDataset(local=folders[501])
    for long_turns in (False, True):
        shares = [sum(map(len, dataset.rank_ids(0, 2, worker, 4, long_turns=long_turns))) for worker in range(4)]
        assert sum(shares) == 501
        assert max(shares) - min(shares) <= 501 // 8
