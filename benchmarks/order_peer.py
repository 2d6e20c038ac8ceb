"""One measurement of order.py, in a process of its own: open an epoch, and get a rank's first batch of ids.

Runs under each peer's interpreter. The job is JSON in the first argument; the answer is JSON on stdout.
"""

import json
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np

SEED, EPOCH = 9176, 1


def main():
    job = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    np.random.RandomState(0)  # numpy imports this when it is first used
    opener = {"ours": ours, "reference": reference}[job["peer"]]
    open_epoch = opener(job, np.full(job["samples"] // job["shard"], job["shard"], np.int64))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is held
    before = memory("VmRSS")
    start = time.perf_counter()
    ids = open_epoch()
    seconds = time.perf_counter() - start
    peak = memory("VmHWM")
    assert len(np.unique(ids)) == len(ids) == job["batch_size"], f"{len(ids)} ids, or some twice"
    assert 0 <= ids.min() <= ids.max() < job["samples"], "ids that no sample has"
    print(json.dumps({"seconds": seconds, "memory": peak - before}))


def memory(name):
    """Return one of this process's figures, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def ours(job, shard_samples):
    """Return what a StreamingDataset does, from the index's arrays on."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from mds_torch.order.deal import Deal
    from mds_torch.order.epoch import EpochOrder
    from mds_torch.order.plan import Plan
    from mds_torch.order.sampling import Weight

    nodes, pieces = job["nodes"], job["pieces"]

    def open_epoch():
        plan = Plan(shard_samples, [len(shard_samples)], [Weight()], shuffle=job["algorithm"])
        sequence = plan.sequence(pieces, SEED, EPOCH, 1)
        places = {"start": job["start"], "pieces": pieces, "pieces_of": sequence.pieces}
        deal = Deal(len(sequence), job["batch_size"], ranks=nodes, nodes=nodes, **places)
        return next(EpochOrder(sequence, deal, job["rank"]).batches())

    return open_epoch


def reference(job, shard_samples):
    """Return what its StreamingDataset does, but for sharing the epoch with the node's other workers."""
    from streaming import StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    nodes, pieces = job["nodes"], job["pieces"]
    dataset = SimpleNamespace(
        # Of its index
        num_streams=1,
        shard_offset_per_stream=np.zeros(1, np.int64),
        shards_per_stream=np.array([len(shard_samples)]),
        samples_per_shard=shard_samples,
        sample_offset_per_shard=np.cumsum(shard_samples) - shard_samples,
        streams=[SimpleNamespace(choose=job["samples"])],
        epoch_size=job["samples"],
        # Of its arguments: its defaults
        sampling_method="balanced",
        sampling_granularity=1,
        epoch_seed_change=True,
        partition_algo="relaxed",
        num_canonical_nodes=pieces,
        initial_physical_nodes=nodes,
        batch_size=job["batch_size"],
        shuffle=True,
        shuffle_algo=job["algorithm"],
        shuffle_seed=SEED,
        shuffle_block_size=max(4_000_000 // pieces, 1 << 18),
    )
    dataset.resample_streams = lambda epoch: StreamingDataset.resample_streams(dataset, epoch)
    world = World(num_nodes=nodes, ranks_per_node=1, workers_per_rank=1, worker=job["rank"])

    def open_epoch():
        work = generate_work("random", dataset, world, EPOCH, job["start"])
        return work[world.node, world.rank_of_node, world.worker_of_rank].flatten()[: job["batch_size"]]

    return open_epoch


if __name__ == "__main__":
    main()
