"""What does opening an epoch cost?

    python benchmarks/order.py                # about an hour; --quick for a look of some minutes

From the number of samples of each shard (10,000) to the ids of a rank's first batch of 64: on one node with one
canonical node; as one rank of 64 nodes with 64 canonical nodes, a rank each; and on one node with 64 canonical nodes,
as when a run goes on there that had 64 ("64 on 1"). At the epoch's start, and at 99% of it, as when a run is resumed.
Default settings otherwise.

- ours        what mds_torch.StreamingDataset does: Plan, its sequence, and the first batch that is dealt to the rank
- reference   what mosaicml-streaming's does in the first process of each node: generate_work, and that rank's part of
              it; sharing it with the node's other processes, which is a copy more, is not counted. Sizes that take
              it more than two minutes, or more memory than there is, are left out

Each measurement is a process of its own, that has imported all and made the array that stands for the index before
it begins; the peers take turns. Seconds are the median of the repeats; so is the memory: the most that was resident,
less what was before.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import tables

sys.path.insert(0, str(tables.ROOT))

ALGORITHMS = ["py1e", "py1br", "py1s", "py2s", "naive"]
# The largest takes the reference 6 GB.
SIZES = {"ours": [6, 7, 8, 9, 10], "reference": [6, 7, 8]}  # powers of ten
QUICK_SIZES = {"ours": [6, 8], "reference": [6]}
SHARD, BATCH_SIZE = 10_000, 64
# Name: (canonical nodes, nodes); a rank each
SETUPS = {"1 node": (1, 1), "64 nodes": (64, 64), "64 on 1": (64, 1)}
PLACES = {0.0: "start", 0.99: "99%"}
REQUIRED_AT, SECONDS, MEMORY = 9, 1.0, 300e6


def main():
    args = arguments()
    sizes = QUICK_SIZES if args.quick else SIZES
    repeat = args.repeat or (1 if args.quick else 3)
    interpreters = pythons(args.peers)
    results = {}
    for algorithm in args.algorithms:
        for setup in args.setups:
            for place, of_place in PLACES.items():
                label = f"{algorithm}, {setup}, {of_place}"
                pieces, nodes = SETUPS[setup]
                job = {"label": label, "algorithm": algorithm, "pieces": pieces, "nodes": nodes}
                results[label] = measure(job, place, sizes, repeat, interpreters)
    print(tables.machine_line("numpy"))
    columns = [(peer, size) for peer in SIZES for size in sizes[peer]]
    for key, unit, show in (("seconds", "seconds", "{:,.3f}".format), ("memory", "memory, MB", megabytes)):
        print(f"{unit}; x: the reference's, divided by ours")
        header = [f"{'ref. ' if peer == 'reference' else ''}10^{size}" for peer, size in columns]
        rows = [row(label, medians(found, key), columns, show) for label, found in results.items()]
        tables.print_table(["", *header, *(f"x 10^{size}" for size in sizes["reference"])], rows)
    verdict(results)


def arguments():
    parser = argparse.ArgumentParser(description="What does opening an epoch cost?")
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS, choices=ALGORITHMS)
    parser.add_argument("--setups", nargs="+", default=list(SETUPS), choices=list(SETUPS))
    parser.add_argument("--peers", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--repeat", type=int, help="measurements of each (3, or 1 if quick)")
    parser.add_argument("--quick", action="store_true", help="few sizes, once each")
    return parser.parse_args()


def pythons(peers):
    found = {"ours": sys.executable}
    if "reference" in peers:
        from tests.reference import reference_python

        found["reference"] = reference_python()
    return {peer: found[peer] for peer in peers}


def measure(job, place, sizes, repeat, interpreters):
    """Return the results of each peer and size."""
    results = {}
    for size in sorted({size for peer in interpreters for size in sizes[peer]}):
        samples, step = 10**size, job["nodes"] * BATCH_SIZE
        full = {**job, "samples": samples, "shard": SHARD, "batch_size": BATCH_SIZE}
        full |= {"start": int(samples * place) // step * step, "rank": job["nodes"] // 2}
        for _ in range(repeat):
            for peer, python in interpreters.items():
                if size in sizes[peer] and (result := run(python, {**full, "peer": peer})):
                    results.setdefault((peer, size), []).append(result)
    return results


def run(python, job):
    """Run a job in a new process; return its answer, or None if it takes too long."""
    command = [python, str(Path(__file__).with_name("order_peer.py")), json.dumps(job)]
    what = f"{job['label']}: {job['peer']}, {job['samples']:.0e} samples"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    except subprocess.TimeoutExpired:
        print(f"{what}: too long", file=sys.stderr, flush=True)
        return None
    if done.returncode:
        raise SystemExit(f"{job} failed:\n{done.stderr}")
    result = json.loads(done.stdout)
    print(f"{what}: {result['seconds']:.3f} s, {result['memory'] / 1e6:.0f} MB", file=sys.stderr, flush=True)
    return result


def medians(results, key):
    return {column: statistics.median(one[key] for one in found) for column, found in results.items()}


def row(label, figures, columns, show):
    """Return a line of a table: the figures of each peer and size, and how many times ours the reference's are."""
    cells = [show(figures[column]) if column in figures else "-" for column in columns]
    for peer, size in columns:
        if peer == "reference":
            both = ("ours", size) in figures and (peer, size) in figures
            cells.append(f"{figures[peer, size] / figures['ours', size]:,.0f}" if both else "-")
    return [label, *cells]


def megabytes(size):
    return f"{size / 1e6:,.1f}"


def verdict(results):
    """Print whether the size that has requirements meets them."""
    most = {}
    for key in ("seconds", "memory"):
        found = {label: medians(one, key).get(("ours", REQUIRED_AT)) for label, one in results.items()}
        found = {label: figure for label, figure in found.items() if figure is not None}
        most[key] = max(found.items(), key=lambda pair: pair[1], default=None)
    if all(most.values()):
        (slowest, seconds), (largest, size) = most["seconds"], most["memory"]
        print(f"10^{REQUIRED_AT}: at most {seconds:.3f} s ({slowest}) and {megabytes(size)} MB ({largest});")
        print(f"required: {SECONDS:g} s and {MEMORY / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
