"""How fast does training read an MDS data set?

    python benchmarks/read.py                 # about 30 minutes; --scale 0.1 --repeat 1 for a quick look
    python benchmarks/read.py --shuffle       # the same, each epoch shuffled

Four tables on local disk, in the page cache. Peers take turns, each measurement in a new process:

- ours        mds_torch.StreamingDataset
- MDSReader   mds_core.MDSReader, where there is neither loader nor shuffle
- reference   mosaicml-streaming's StreamingDataset, on the same files, in its own environment
- litdata     its StreamingDataset, on the same rows optimised by litdata, in chunks as large as our shards

and four ways to read: `for sample in dataset`; `dataset[i]` at random; and each library's StreamingDataLoader
with default collation, batches of 64, with 0 and with 2 workers.

Rows per second, the median of the repeats, to the end of the epoch or of the time limit, counted from the
first sample or batch on; how long that one took, and how many rows were read, is in the second table. Each
peer's samples are compared with the table first, and what was timed is checked by its sum where the rows are
known.

The last table:

2 cores (AMD EPYC), 24 GiB, Python 3.11.7, torch 2.13.0+cpu, litdata 0.2.76, pyarrow 26.0.1, 2026-11-29
rows/s, shuffle=False
                                 ours  MDSReader  reference  litdata  ours/reference  ours/litdata
numbers: iterate            1,537,433  1,565,118     11,581  365,283          132.75          4.21
numbers: random [i]           678,621    686,845     48,767   13,113           13.92         51.75
numbers: loader, 0 workers  2,533,875          -      7,205  244,956          351.69         10.34
numbers: loader, 2 workers  3,263,792          -      8,518   29,685          383.14        109.95
text: iterate               1,108,604    971,844      9,840  379,327          112.66          2.92
text: random [i]              401,220    422,245     61,729   13,068            6.50         30.70
text: loader, 0 workers     1,470,146          -     10,559  333,906          139.23          4.40
text: loader, 2 workers       674,007          -     21,135  199,181           31.89          3.38
tokens: iterate               269,232    275,882     12,744  118,327           21.13          2.28
tokens: random [i]            210,992    207,637     48,634      889            4.34        237.39
tokens: loader, 0 workers     402,356          -      9,258   76,331           43.46          5.27
tokens: loader, 2 workers      73,806          -      9,752   30,225            7.57          2.44
images: iterate                76,594     82,933      6,125   19,363           12.51          3.96
images: random [i]            123,990    126,573     32,870       80            3.77       1548.00
images: loader, 0 workers      69,188          -      4,590   23,705           15.07          2.92
images: loader, 2 workers      33,453          -      5,906    6,174            5.66          5.42

(--scale 0.2 --repeat 2 --seconds 2; random [i] in a run of its own. 2,000 images are read in a fraction of a second:
take their figures as a hint.)
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import tables

sys.path.insert(0, str(tables.ROOT))

PEERS = ["ours", "MDSReader", "reference", "litdata"]
# Name: (job of read_peer.py, workers)
MEASURES = {
    "iterate": ("iterate", 0),
    "random [i]": ("at_random", 0),
    "loader, 0 workers": ("loader", 0),
    "loader, 2 workers": ("loader", 2),
}


def main():
    args = arguments()
    pythons = {"ours": sys.executable, "MDSReader": sys.executable, "litdata": args.litdata_python}
    if "reference" in args.peers:
        from tests.reference import reference_python

        pythons["reference"] = reference_python()
    rates, details = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.tables:
            jobs = prepare(name, args, pythons, Path(args.data or folder) / name)
            for measure in args.measures:
                results = compare(measure, args, pythons, jobs)
                rates.append([f"{name}: {measure}", *figures(results)])
                details.append([f"{name}: {measure}", *(detail(results.get(peer)) for peer in PEERS)])
    print(tables.machine_line("torch", "litdata", "pyarrow"))
    print(f"rows/s, shuffle={args.shuffle}")
    tables.print_table(["", *PEERS, "ours/reference", "ours/litdata"], rates)
    print(f"rows read in at most {args.seconds:g} s (seconds to the first)")
    tables.print_table(["", *PEERS], details)


def arguments():
    parser = argparse.ArgumentParser(description="How fast does training read an MDS data set?")
    parser.add_argument("--tables", nargs="+", default=list(tables.TABLES), choices=list(tables.TABLES))
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--measures", nargs="+", default=list(MEASURES), choices=list(MEASURES))
    parser.add_argument("--scale", type=float, default=1, help="of the tables' rows")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="the time limit of a measurement")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--data", help="a folder for the data sets, kept and used again (same --scale!)")
    parser.add_argument("--litdata-python", default=sys.executable, help="an interpreter that has litdata")
    return parser.parse_args()


def prepare(name, args, pythons, folder):
    """Make a table's data sets, bring them into the page cache, and check what each peer reads.

    Returns each peer's job, so far as it is the same for all measures.
    """
    jobs = {}
    rows = tables.scaled(tables.TABLES[name].rows, args.scale)
    for peer in args.peers:
        kind = "litdata" if peer == "litdata" else "mds"
        path = folder / kind
        job = {"peer": peer, "table": name, "rows": rows, "path": str(path), "batch_size": args.batch_size}
        if not (path / "index.json").exists():
            print(f"{name}: making {kind}", file=sys.stderr, flush=True)
            run(pythons["litdata" if kind == "litdata" else "ours"], {**job, "do": f"make_{kind}"}, folder)
        for file in path.rglob("*"):
            if file.is_file():
                file.read_bytes()
        run(pythons[peer], {**job, "do": "check", "shuffle": False}, folder)
        jobs[peer] = job
    return jobs


def compare(measure, args, pythons, jobs):
    """Return each peer's results in one measure; the peers take turns."""
    do, workers = MEASURES[measure]
    extra = {"do": do, "workers": workers, "shuffle": args.shuffle, "seconds": args.seconds}
    results = {peer: [] for peer in jobs if peer != "MDSReader" or takes_part(do, args.shuffle)}
    for _ in range(args.repeat):
        for peer, all_results in results.items():
            result = run(pythons[peer], {**jobs[peer], **extra}, Path(jobs[peer]["path"]).parent)
            print(f"{jobs[peer]['table']} {measure} {peer} {result['rate']:,.0f} rows/s", file=sys.stderr)
            all_results.append(result)
    return results


def takes_part(do, shuffle):
    """Whether MDSReader can do this: it has no loader, and one order."""
    return do == "at_random" or (do == "iterate" and not shuffle)


def run(python, job, folder):
    """Run a job in a new process; return its answer. All that the process started ends with it."""
    # litdata's scratch folders
    scratch = {"DATA_OPTIMIZER_CACHE_FOLDER": "chunks", "DATA_OPTIMIZER_DATA_CACHE_FOLDER": "data"}
    environment = {**os.environ, **{key: str(folder / f"scratch-{name}") for key, name in scratch.items()}}
    command = [python, "-W", "ignore", str(Path(__file__).with_name("read_peer.py")), json.dumps(job)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
        )
        try:
            answer, _ = process.communicate(timeout=600)
        finally:
            stop_group(process)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{job} failed:\n{errors.read()}")
    return json.loads(answer)


def stop_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def median(results, key):
    return statistics.median(result[key] for result in results)


def figures(results):
    """Return the peers' rows/s, and ours against the two others'."""
    rates = {peer: median(all_results, "rate") for peer, all_results in results.items()}
    cells = [f"{rates[peer]:,.0f}" if peer in rates else "-" for peer in PEERS]
    for other in ("reference", "litdata"):
        both = "ours" in rates and other in rates
        cells.append(f"{rates['ours'] / rates[other]:.2f}" if both else "-")
    return cells


def detail(results):
    return f"{median(results, 'rows'):,.0f} ({median(results, 'first'):.2f})" if results else "-"


if __name__ == "__main__":
    main()
