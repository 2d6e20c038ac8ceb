"""One line of shuffle.py's tables for one peer: the measures of a shuffle, for each seed averaged over epochs.

Runs under each peer's interpreter. The job is JSON in the first argument; the answer is JSON on stdout.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np


def main():
    job = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    peer = {"ours": ours, "reference": reference}[job["peer"]]
    answers = []
    for seed in job["seeds"]:
        sizes = shard_sizes(job["shards"], seed)
        order = peer(job, sizes, seed)
        epochs = [measures(sizes, *order(epoch), job["nodes"], job["window"]) for epoch in range(job["epochs"])]
        answers.append({name: float(np.mean([epoch[name] for epoch in epochs])) for name in epochs[0]})
    print(json.dumps(answers))


def shard_sizes(name, seed):
    """Return the samples of 1,000 shards; their sum is a multiple of 4,000."""
    if name == "even":
        return np.full(1_000, 1_000)
    # By RandomState: its numbers are the same in all versions of numpy.
    sizes = np.random.RandomState(seed).randint(500, 1_501, 1_000)
    surplus, more = divmod(int(sizes.sum()) % 4_000, 1_000)
    return sizes - surplus - (np.arange(1_000) < more)


# --- an epoch's order: the samples' ids, and the canonical node that each belongs to


def ours(job, sizes, seed):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from mds_torch.order.plan import Plan
    from mds_torch.order.sampling import Weight

    plan = Plan(sizes, [len(sizes)], [Weight()], shuffle=job["algorithm"], block=job["block"])
    positions = np.arange(sizes.sum())

    def order(epoch):
        sequence = plan.sequence(job["nodes"], seed, epoch, 1)
        return sequence.ids(positions), sequence.pieces(positions)

    return order


def reference(job, sizes, seed):
    """One node and one worker get all samples in the global order: one of each canonical node in turn."""
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    samples, nodes = int(sizes.sum()), job["nodes"]
    places = get_partitions("relaxed", samples, nodes, 1, 1, 1, job["window"]).flatten()
    starts = np.arange(nodes) * samples // nodes
    node = np.searchsorted(starts, places, side="right") - 1

    def order(epoch):
        return get_shuffle(job["algorithm"], sizes, nodes, seed, epoch, job["block"])[places], node

    return order


# --- what is measured of it


def measures(sizes, ids, node, nodes, window):
    assert (np.bincount(ids, minlength=sizes.sum()) == 1).all(), "a sample is left out, or comes twice"
    shard = np.repeat(np.arange(len(sizes)), sizes)
    held = [shards_held(shard[ids[node == one]]) for one in range(nodes)]
    spread = spreads(shard, ids, node, nodes)
    mixed = shards_in_windows(shard[ids], window)
    return {
        "spread": spread.mean(),
        "spread_90": np.percentile(spread, 90),
        "mixed": mixed.mean(),
        "mixed_least": mixed.min(),
        "held": np.mean([one.mean() for one in held]),
        "held_most": max(one.max() for one in held),
    }


def spreads(shard, ids, node, nodes):
    """Return how far apart two samples come that are neighbours in a shard and of one canonical node."""
    place, of_node = np.empty_like(ids), np.empty_like(ids)
    of_node[ids] = node
    for one in range(nodes):
        own = ids[node == one]
        place[own] = np.arange(len(own))
    neighbours = (np.diff(shard) == 0) & (np.diff(of_node) == 0)
    return np.abs(np.diff(place))[neighbours]


def shards_in_windows(shards, window):
    """Return how many different shards each run of so many samples has."""
    # A sample is its shard's first in the windows that begin after the shard's last one before it.
    order = np.argsort(shards, kind="stable")
    before = np.full(len(shards), -1)
    same = np.diff(shards[order]) == 0
    before[order[1:][same]] = order[:-1][same]
    at = np.arange(len(shards))
    begins = np.maximum(before + 1, np.maximum(at - window + 1, 0))
    return running(begins, at + 1, len(shards))[: len(shards) - window + 1]


def shards_held(shards):
    """Return for each position how many shards are begun there and not done."""
    _, first = np.unique(shards, return_index=True)
    _, last = np.unique(shards[::-1], return_index=True)
    return running(first, len(shards) - last, len(shards))


def running(begins, ends, length):
    """Return for each position how many ranges it lies in."""
    changes = np.bincount(begins, minlength=length + 1) - np.bincount(ends, minlength=length + 1)
    return np.cumsum(changes)[:length]


if __name__ == "__main__":
    main()
