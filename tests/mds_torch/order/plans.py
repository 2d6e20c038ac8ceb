"""What the tests of the order share: plans and worlds to draw, and laws that hold of all."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mds_torch.order.deal import Deal
from mds_torch.order.epoch import EpochOrder, GlobalSequence
from mds_torch.order.plan import Plan
from mds_torch.order.sampling import Weight
from mds_torch.order.shuffles import SHUFFLES

SHARDS = st.lists(st.one_of(st.integers(0, 1), st.integers(0, 40)), max_size=12)
PIECES = st.integers(1, 9)
SEEDS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 10**6)
BLOCKS = st.integers(1, 70)
ALGORITHMS = st.sampled_from([None, *SHUFFLES])


def plan_of(shards: list[int], shuffle: str | None = None, block: int | None = None, **more: Any) -> Plan:
    """Make the plan of one stream that an epoch takes once."""
    return Plan(np.array(shards, np.int64), [len(shards)], [Weight()], shuffle=shuffle, block=block, **more)


def ids_of(plan: Plan, pieces: int = 1, seed: int = 7, epoch: int = 0, group: int = 1) -> list[int]:
    """Give the whole global sequence."""
    sequence = plan.sequence(pieces, seed, epoch, group)
    ids: list[int] = sequence.ids(np.arange(len(sequence))).tolist()
    return ids


@dataclass(frozen=True)
class World:
    """Who reads."""

    nodes: int
    ranks_per_node: int
    workers: int
    batch_size: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.ranks_per_node

    def deal(self, sequence: GlobalSequence, pieces: int, **more: Any) -> Deal:
        """Give how a sequence is dealt to this world."""
        return Deal(
            len(sequence), self.batch_size, self.ranks, self.nodes, pieces=pieces, pieces_of=sequence.pieces, **more
        )

    def read(self, sequence: GlobalSequence, pieces: int, **more: Any) -> list[list[list[int]]]:
        """Give each step's batches, a rank each, as torch's DataLoader takes them of its workers in turn."""
        deal = self.deal(sequence, pieces, **more)
        ranks = []
        for rank in range(self.ranks):
            order = EpochOrder(sequence, deal, rank)
            workers = [order.batches(worker=worker, workers=self.workers) for worker in range(self.workers)]
            batches = [next(workers[n % self.workers]).tolist() for n in range(deal.batches(rank))]
            assert [list(rest) for rest in workers] == [[]] * self.workers
            ranks.append(batches)
        steps = max(map(len, ranks))
        return [[batches[n] if n < len(batches) else [] for batches in ranks] for n in range(steps)]


WORLDS = st.builds(World, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9))


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, int]:
    """Draw a plan of one to three streams, of any kind; and samples a group."""
    count = draw(st.integers(1, 3))
    batching = draw(st.sampled_from(["random", "random", "stratified", "per_stream", "device_per_stream"]))
    group = draw(st.integers(1, 8)) if batching in ("per_stream", "device_per_stream") else 1
    streams = [draw(st.lists(st.integers(1, 40), min_size=1, max_size=8)) for _ in range(count)]
    for sizes in streams:
        sizes[0] += group * 2  # a stream has at least a group
    weight = draw(
        st.sampled_from(
            [lambda: Weight(), lambda: Weight(proportion=draw(st.integers(1, 3)))]
            + [lambda: draw(st.builds(Weight, repeat=st.sampled_from([1, 0.7, 1.5, 2]))), lambda: Weight(choose=17)]
        )
    )
    plan = Plan(
        np.array([size for sizes in streams for size in sizes]),
        [len(sizes) for sizes in streams],
        [weight() for _ in streams],
        None,
        draw(ALGORITHMS),
        draw(BLOCKS),
        batching,
        draw(st.booleans()),
        draw(st.sampled_from([1, 3, 100])),
    )
    return plan, group
