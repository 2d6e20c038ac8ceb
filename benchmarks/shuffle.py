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

The last tables:

2 cores (AMD EPYC), 24 GiB, Python 3.11.7, numpy 2.4.6, 2026-11-29
even shards; ours and the reference's
                         spread     ref.      90%     ref.  mixed   ref.  least   ref.   held   ref.   most   ref.
py1e 20,000, 1 node       6,320    6,324   12,997   13,039   20.9   20.6   15.0   11.3   19.9   19.6   21.0   24.0
py1e 20,000, 4 nodes      6,289    6,260   13,028   12,961   79.6   78.5   59.0   41.5   19.8   19.4   21.0   24.0
py1e 100,000, 1 node     32,499   32,385   67,554   67,154   98.3   98.1   74.0   50.2   97.3   97.1  100.0  107.8
py1e 100,000, 4 nodes    29,997   30,536   64,624   64,393  334.2  336.0  267.8  194.5   89.8   90.7  100.0  107.3
py1br 20,000, 1 node      6,731    6,807   13,830   14,058   22.1   22.4   16.7    8.7   21.1   21.4   25.3   30.5
py1br 20,000, 4 nodes     7,009    6,736   14,400   14,062   87.9   85.5   77.8   40.0   21.9   21.6   26.2   37.7
py1br 100,000, 1 node    33,636   33,721   69,054   70,129  102.4  103.8   84.3   24.7  101.6  104.4  115.8  149.5
py1br 100,000, 4 nodes   41,865   34,468   85,907   74,431  434.4  363.6  398.2  149.5  125.8  113.0  138.5  185.2
py1s, 1 node              333.7    333.7    683.8    684.0    2.0    2.0    1.0    1.0    1.0    1.0    1.0    1.0
py1s, 4 nodes             333.7    333.7    683.8    684.0    5.0    5.0    4.0    4.0    1.0    1.0    1.0    1.0
py2s, 1 node              333.6    333.6    684.0    684.0    2.0    2.0    1.0    1.0    1.0    1.0    1.0    1.0
py2s, 4 nodes             333.6    333.7    683.7    684.0    5.0    5.0    4.0    4.0    1.0    1.0    1.0    1.0
naive, 1 node           333,312  333,332  683,772  683,765  632.5  632.4  591.0  591.7  998.0  998.0  1,000  1,000
naive, 4 nodes           83,376   83,334  170,910  170,904  632.5  632.5  590.7  592.3  992.0  992.0  1,000  1,000
uneven shards; ours and the reference's
                         spread     ref.      90%     ref.  mixed   ref.  least   ref.   held   ref.   most   ref.
py1e 20,000, 1 node       6,344    6,292   13,045   12,980   20.9   20.6   14.2   11.3   19.9   19.6   23.3   25.8
py1e 20,000, 4 nodes      6,315    6,227   13,085   12,898   79.7   78.4   58.0   41.7   19.8   19.4   23.7   25.7
py1e 100,000, 1 node     32,624   32,336   67,840   67,020   98.9   98.0   72.2   48.8   98.2   97.1  106.3  110.8
py1e 100,000, 4 nodes    30,115   30,461   64,898   64,252  327.8  327.5  261.0  191.7   90.9   90.5  106.5  109.7
py1br 20,000, 1 node      6,775    6,799   13,914   14,047   22.1   22.3   15.7   10.0   21.2   21.4   26.7   31.0
py1br 20,000, 4 nodes     7,037    6,771   14,454   14,112   88.1   86.0   77.0   38.7   22.0   21.7   27.8   38.8
py1br 100,000, 1 node    33,966   33,808   69,752   70,181  102.5  102.7   85.5   29.3  101.9  103.9  119.5  148.3
py1br 100,000, 4 nodes   41,984   32,852   86,166   71,865  422.8  342.5  385.8  140.0  126.1  111.6  139.3  183.3
py1s, 1 node              362.0    362.2    770.5    770.3    2.0    2.0    1.0    1.0    1.0    1.0    1.0    1.0
py1s, 4 nodes             361.7    361.8    770.0    769.8    5.0    5.0    4.0    4.0    1.0    1.0    1.0    1.0
py2s, 1 node              362.1    362.2    770.8    770.5    2.0    2.0    1.0    1.0    1.0    1.0    1.0    1.0
py2s, 4 nodes             362.0    362.1    770.2    770.0    5.0    5.0    4.0    4.0    1.0    1.0    1.0    1.0
naive, 1 node           334,440  334,640  686,203  686,357  616.8  616.9  576.7  575.3  997.8  997.8  1,000  1,000
naive, 4 nodes           83,560   83,653  171,434  171,534  616.9  616.9  575.8  575.8  991.2  991.2  1,000  1,000
worse by more than 3%:
  even py1br 100,000, 4 nodes: held 125.8 against 113.0 (+11.3%)
  uneven py1br 100,000, 4 nodes: held 126.1 against 111.6 (+13.1%)

Where a piece has few blocks, py1br makes them larger rather than leave a small one, in which samples would mix little:
with 2.5 blocks a piece it spreads 21 to 28% further and holds 11 to 13% more shards on average, 24% fewer at most. For
each shard that is held it spreads further than the reference.
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
