"""How well does each shuffle algorithm mix, and how many shards must be at hand for it?

    python benchmarks/shuffle.py              # about 20 minutes; --quick for a look of some minutes

Each algorithm beside mosaicml-streaming's of the same name, with the same block size and as many canonical nodes, on
1,000 shards: of 1,000 samples each, and of 500 to 1,500, other ones for each seed, so that pieces and blocks don't
come out even. Whole orders are made and looked at:

- spread   how far apart two samples come that are neighbours in a shard, in their canonical node's own sequence: mean
           and 90th percentile; pairs whose shard was cut between them are left out
- mixed    how many different shards 1,000 samples in a row have, in the global order: mean and least, over all places
           where such a window can begin
- held     how many shards a canonical node must have at hand to read each once, those that are begun and not done:
           mean over the positions of its own sequence, and most

Spread and mixed are better when they are larger, held when it is smaller. Each figure is averaged over three epochs;
the median of ten seeds is shown. py1s, py2s and naive have no blocks.

The last table (--quick):

2 cores (AMD EPYC), 24 GiB, Python 3.11.7, numpy 2.4.6, 2026-11-29
even shards; ours and the reference's
                         spread     ref.      90%     ref.  mixed   ref.  least   ref.   held   ref.   most   ref.
py1e 20,000, 1 node       6,315    6,311   12,988   13,000   20.9   20.6   15.0   11.0   19.9   19.6   21.0   24.0
py1e 20,000, 4 nodes      6,286    6,306   13,026   13,068   79.6   79.1   59.0   41.0   19.8   19.5   21.0   24.0
py1e 100,000, 1 node     32,492   32,309   67,525   66,937   98.3   97.9   74.5   50.5   97.3   96.9  100.0  108.0
py1e 100,000, 4 nodes    29,996   30,719   64,586   64,844  334.3  337.5  268.5  195.5   89.8   91.2  100.0  108.0
py1br 20,000, 1 node      6,729    6,875   13,816   14,174   22.0   22.6   17.0   15.0   21.1   21.7   26.0   35.5
py1br 20,000, 4 nodes     7,011    6,682   14,394   13,874   87.8   84.7   76.5   38.5   21.9   21.2   25.5   36.0
py1br 100,000, 1 node    33,506   33,683   68,798   70,831  102.0  103.6   88.5   43.0  101.3  106.5  112.5  175.0
py1br 100,000, 4 nodes   41,861   34,161   85,938   74,322  434.4  360.2  397.5  153.5  125.8  108.5  138.0  175.0
py1s, 1 node              333.4    333.8    683.5    684.0    2.0    2.0    1.0    1.0    1.0    1.0    1.0    1.0
py1s, 4 nodes             333.4    333.8    683.5    684.0    5.0    5.0    4.0    4.0    1.0    1.0    1.0    1.0
py2s, 1 node              333.7    333.6    684.0    684.0    2.0    2.0    1.0    1.0    1.0    1.0    1.0    1.0
py2s, 4 nodes             333.7    333.6    683.5    683.5    5.0    5.0    4.0    4.0    1.0    1.0    1.0    1.0
naive, 1 node           333,135  333,262  683,797  683,404  632.4  632.3  590.0  592.5  998.0  998.0  1,000  1,000
naive, 4 nodes           83,387   83,359  170,893  170,786  632.5  632.6  590.0  595.0  992.0  992.1  1,000  1,000
worse by more than 3%:
  even py1br 20,000, 4 nodes: held 21.9 against 21.2 (+3.3%)
  even py1br 100,000, 4 nodes: held 125.8 against 108.5 (+16.0%)

Where a piece has few blocks, py1br makes them larger rather than leave a small one, in which samples would mix little:
with 2.5 blocks a piece it spreads 22% further and holds 16% more shards on average, 21% fewer at most. For each shard
that is held it spreads further than the reference.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import tables

sys.path.insert(0, str(tables.ROOT))

WINDOW = 1_000
SHARDS = ["even", "uneven"]
BLOCKS = {
    "py1e": [20_000, 100_000],
    "py1br": [20_000, 100_000],
    "py1s": [20_000],
    "py2s": [20_000],
    "naive": [20_000],
}
NODES = [1, 4]
# Name: (heading, whether more is better)
MEASURES = {
    "spread": ("spread", True),
    "spread_90": ("90%", True),
    "mixed": ("mixed", True),
    "mixed_least": ("least", True),
    "held": ("held", False),
    "held_most": ("most", False),
}
NOISE = 0.03


def main():
    args = arguments()
    pythons = {"ours": sys.executable, "reference": reference_python()}
    headings = [heading for heading, _ in MEASURES.values()]
    found, worse = {}, []
    for name in ["even"] if args.quick else SHARDS:
        found[name] = []
        for algorithm in args.algorithms:
            for block in BLOCKS[algorithm]:
                for nodes in NODES:
                    of_block = f" {block:,}" if len(BLOCKS[algorithm]) > 1 else ""
                    label = f"{algorithm}{of_block}, {nodes} node{'s' * (nodes > 1)}"
                    job = {"algorithm": algorithm, "block": block, "nodes": nodes, "shards": name}
                    results = {peer: run(python, {**job, "peer": peer}, args) for peer, python in pythons.items()}
                    found[name].append([label, *cells(results)])
                    worse += [f"{name} {label}: {text}" for text in what_is_worse(results)]
                    print(f"{name} {label}: done", file=sys.stderr, flush=True)
    print(tables.machine_line("numpy"))
    for name, rows in found.items():
        print(f"{name} shards; ours and the reference's")
        tables.print_table(["", *(text for heading in headings for text in (heading, "ref."))], rows)
    print(f"worse by more than {NOISE:.0%}:" + "".join(f"\n  {text}" for text in worse or ["nothing"]))


def arguments():
    parser = argparse.ArgumentParser(description="How well does each shuffle algorithm mix?")
    parser.add_argument("--algorithms", nargs="+", default=list(BLOCKS), choices=list(BLOCKS))
    parser.add_argument("--seeds", type=int, help="how many (10, or 2 if quick)")
    parser.add_argument("--epochs", type=int, help="of each seed (3, or 1 if quick)")
    parser.add_argument("--quick", action="store_true", help="few seeds, and shards of one size only")
    args = parser.parse_args()
    args.seeds = args.seeds or (2 if args.quick else 10)
    args.epochs = args.epochs or (1 if args.quick else 3)
    return args


def reference_python():
    from tests.reference import reference_python

    return reference_python()


def run(python, job, args):
    """Run a job in a new process; return the median of the seeds, of each measure."""
    # The reference adds the epoch to the seed: seeds lie apart.
    job = {**job, "window": WINDOW, "seeds": [1000 * seed for seed in range(args.seeds)], "epochs": args.epochs}
    command = [python, str(Path(__file__).with_name("shuffle_peer.py")), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{job['peer']} {job['algorithm']} failed:\n{done.stderr}")
    answers = json.loads(done.stdout)
    return {name: statistics.median(answer[name] for answer in answers) for name in MEASURES}


def cells(results):
    return [number(results[peer][name]) for name in MEASURES for peer in ("ours", "reference")]


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def what_is_worse(results):
    for name, (heading, more) in MEASURES.items():
        ours, theirs = results["ours"][name], results["reference"][name]
        if (theirs - ours if more else ours - theirs) > NOISE * theirs:
            yield f"{heading} {number(ours)} against {number(theirs)} ({ours / theirs - 1:+.1%})"


if __name__ == "__main__":
    main()
