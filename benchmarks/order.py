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

The last tables (py1e and py1br have had other windows since, of the same size; "64 on 1" was not run):

2 cores (AMD EPYC), 24 GiB, Python 3.11.7, numpy 2.4.6, 2026-11-29
seconds; x: the reference's, divided by ours
                         10^6   10^7   10^8   10^9  10^10  ref. 10^6  ref. 10^7  ref. 10^8  x 10^6  x 10^7  x 10^8
py1e, 1 node, start     0.050  0.088  0.109  0.294  1.573      0.134      2.605       34.8       3      30     320
py1e, 1 node, 99%       0.081  0.090  0.089  0.352  1.483      0.146      2.544       29.5       2      28     332
py1e, 64 nodes, start   0.008  0.011  0.019  0.055  0.921      0.104      1.599       24.4      12     146   1,256
py1e, 64 nodes, 99%     0.012  0.011  0.014  0.054  1.188      0.089      1.075       23.6       7      97   1,735
py1br, 1 node, start    0.032  0.181  0.174  0.233  1.452      0.061      1.382       12.8       2       8      73
py1br, 1 node, 99%      0.037  0.111  0.220  0.371  2.080      0.028      0.970       12.1       1       9      55
py1br, 64 nodes, start  0.012  0.011  0.016  0.048  1.412      0.047      1.235       20.7       4     109   1,256
py1br, 64 nodes, 99%    0.007  0.011  0.024  0.117  1.680      0.025      0.435       14.8       3      41     628
py1s, 1 node, start     0.007  0.008  0.011  0.052  1.225      0.039      0.724      9.844       5      93     892
py1s, 1 node, 99%       0.010  0.019  0.015  0.065  1.195      0.048      0.868      8.575       5      47     567
py1s, 64 nodes, start   0.007  0.008  0.014  0.066  1.409      0.043      0.801       16.6       6      98   1,160
py1s, 64 nodes, 99%     0.012  0.012  0.019  0.128  2.386      0.036      0.937      8.469       3      79     449
py2s, 1 node, start     0.016  0.021  0.018  0.049  1.493      0.111      1.593       19.4       7      76   1,060
py2s, 1 node, 99%       0.008  0.008  0.015  0.127  1.586      0.045      1.196       14.2       6     151     919
py2s, 64 nodes, start   0.008  0.008  0.011  0.106  1.322      0.077      1.156       21.2      10     153   1,912
py2s, 64 nodes, 99%     0.007  0.008  0.013  0.044  0.950      0.056      1.106      9.331       8     136     734
naive, 1 node, start    0.007  0.008  0.010  0.048  1.027      0.038      1.630       12.9       5     215   1,235
naive, 1 node, 99%      0.007  0.007  0.011  0.050  1.168      0.024      0.634      8.777       4      89     772
naive, 64 nodes, start  0.008  0.008  0.010  0.071  1.561      0.053      1.514       16.4       7     198   1,567
naive, 64 nodes, 99%    0.007  0.008  0.012  0.048  1.014      0.025      0.623       13.7       4      80   1,130
memory, MB; x: the reference's, divided by ours
                         10^6   10^7   10^8  10^9  10^10  ref. 10^6  ref. 10^7  ref. 10^8  x 10^6  x 10^7  x 10^8
py1e, 1 node, start      17.8   29.9   31.2  44.0    145       56.5        481      5,604       3      16     180
py1e, 1 node, 99%        17.8   29.9   31.3  56.0    145       56.3        481      5,604       3      16     179
py1e, 64 nodes, start   2.068  3.789  5.059  16.8    153       41.3        411      4,804      20     109     950
py1e, 64 nodes, 99%     2.060  4.121  4.694  16.8    153       24.0        240      3,203      12      58     682
py1br, 1 node, start     14.0   52.3   53.6  66.3    145       40.7        410      4,803       3       8      90
py1br, 1 node, 99%       14.0   30.8   41.6  69.4    181       23.9        242      3,203       2       8      77
py1br, 64 nodes, start  2.187  4.026  6.509  17.0    153       41.0        411      4,803      19     102     738
py1br, 64 nodes, 99%    2.191  4.047  6.550  17.0    153       23.9        240      3,203      11      59     489
py1s, 1 node, start     1.892  2.085  3.277  16.7    145       40.7        410      4,803      21     197   1,466
py1s, 1 node, 99%       1.921  2.101  3.277  16.8    145       24.1        242      3,203      13     115     978
py1s, 64 nodes, start   1.909  2.077  3.273  16.7    153       41.3        411      4,803      22     198   1,468
py1s, 64 nodes, 99%     1.929  2.089  3.297  16.7    153       24.0        240      3,203      12     115     971
py2s, 1 node, start     1.909  2.081  3.285  16.7    145       48.1        411      4,803      25     197   1,462
py2s, 1 node, 99%       2.028  2.236  3.314  16.8    145       40.2        400      4,003      20     179   1,208
py2s, 64 nodes, start   1.970  2.130  3.314  16.8    153       47.4        410      4,803      24     193   1,450
py2s, 64 nodes, 99%     1.946  2.138  3.314  16.8    153       31.5        320      3,211      16     150     969
naive, 1 node, start    2.154  2.273  3.596  17.1    145       40.8        410      4,803      19     180   1,336
naive, 1 node, 99%      2.146  2.257  3.592  17.1    145       23.6        242      3,203      11     107     892
naive, 64 nodes, start  2.216  2.388  3.613  17.1    153       40.8        411      4,803      18     172   1,330
naive, 64 nodes, 99%    2.249  2.417  3.637  17.1    153       24.1        240      3,203      11      99     881
10^9: at most 0.371 s (py1br, 1 node, 99%) and 69 MB (py1br, 1 node, 99%);
required: 1 s and 300 MB
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
