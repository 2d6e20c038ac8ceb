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
