"""How soon does training from an object store begin, and how fast is its first epoch?

    python benchmarks/remote.py               # about 8 minutes; --quick for a look of one minute

Two data sets in an S3 server (moto's, a process of its own, on the same two cores), which waits 0, 20 or 100 ms before
it answers a request: tokens, 64 MB in shards of 1.5 MB, and images, 128 MB in shards of 8 MB. Both are shuffled, with
the same algorithm and seed, and read in batches of 32 by each library's StreamingDataset and StreamingDataLoader, with
what else they have by default, which shuffles so few samples all together. Peers take turns; each measurement is a new
process with an empty cache:

- ours        mds_torch
- reference   mosaicml-streaming, on the same files, in its own environment

The first batch's seconds count from just before the dataset is made (all is imported) to when the batch is there. The
epoch's samples/s are all samples by all of the time, from just before the dataset is made to the last batch. Requests
and bytes are what the server answered to ours, with the index; bytes are also set against the whole data set's.
Each epoch's samples are compared with what there is. Medians of the repeats.

The last table, with --repeat 5:

2 cores (AMD EPYC), 24 GiB, Python 3.11.7, torch 2.13.0+cpu, boto3 1.44.8, moto 5.2.5, 2026-11-30
blocks of the usual size: all is shuffled together
                           first, s  ref.  ratio  samples/s   ref.  ratio  requests     MB  /data set
tokens, 0 workers, 0 ms        0.34  0.93   2.76     41,057  1,404  29.25        45   64.1      1.000
tokens, 0 workers, 20 ms       0.43  1.95   4.54     36,469  1,316  27.71        45   64.1      1.000
tokens, 0 workers, 100 ms      0.79  5.84   7.40     21,182  1,010  20.97        45   64.1      1.000
tokens, 2 workers, 0 ms        0.55  1.03   1.86     22,568  3,380   6.68        45   64.1      1.000
tokens, 2 workers, 20 ms       0.57  1.72   3.02     23,088  3,120   7.40        45   64.1      1.000
tokens, 2 workers, 100 ms      0.90  4.74   5.28     18,108  2,353   7.70        45   64.1      1.000
images, 0 workers, 0 ms        0.36  0.78   2.16      3,006    917   3.28        20  127.5      1.000
images, 0 workers, 20 ms       0.47  1.37   2.95      2,457    660   3.72        20  127.5      1.000
images, 0 workers, 100 ms      0.70  3.51   4.98      1,615    342   4.73        20  127.5      1.000
images, 2 workers, 0 ms        0.48  0.78   1.64      2,501  1,380   1.81        20  127.5      1.000
images, 2 workers, 20 ms       0.55  1.21   2.19      2,245    965   2.33        20  127.5      1.000
images, 2 workers, 100 ms      0.86  2.58   2.99      1,355    491   2.76        20  127.5      1.000
promised: first batch at least 2x, epoch at least 1.5x, bytes at most 1.02x the data set's; not kept:
  tokens, 2 workers, 0 ms: first batch 1.86x
  images, 2 workers, 0 ms: first batch 1.64x

Where no latency is added, the two cores are the limit, and the server has its share of them: to give 15 shards of
images to eight of curl's transfers takes it 0.21 s, to eight threads with boto that keep them on disk 0.25 s. Before
that, a client is made (0.06 s) and the index read (0.02 s), and with workers, those are started (0.03 s) and make
clients, too (0.04 s): no less than 0.33 s, and 0.40 s with workers, where twice as soon would be 0.39 s.
With small blocks (--block 5800 for the tokens, of about eight shards) the first batch needs few shards: without latency
it comes 1.9 times as soon as the reference's, with workers 1.4 times, and the epoch is 9 to 30 times as fast.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import tables
from read import median, stop_group

sys.path.insert(0, str(tables.ROOT))

PEERS = ["ours", "reference"]
BUCKET = "benchmark"
BATCH_SIZE = 32
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_DEFAULT_REGION": "us-east-1"}
# What is promised: (what, least, most), of ours against the reference's, or against the data set's bytes.
PROMISES = {"first": ("first batch", 2.0, None), "rate": ("epoch", 1.5, None), "bytes": ("bytes", None, 1.02)}


@dataclass(frozen=True)
class Case:
    """A data set: its column, and how it is cut into shards and shuffled. A sample begins with its number."""

    column: str
    encoding: str
    rows: int
    shard_bytes: int

    def sample(self, row):
        if self.column == "tokens":
            return {"tokens": np.arange(row, row + 512, dtype=np.int32)}
        random = np.random.RandomState(row)
        return {"image": row.to_bytes(4, "little") + random.bytes(random.randint(60_000, 100_000))}


CASES = {
    "tokens": Case("tokens", "ndarray:int32:512", rows=31_250, shard_bytes=1_500_000),
    "images": Case("image", "bytes", rows=1_600, shard_bytes=8_000_000),
}


def main():
    args = arguments()
    from tests.reference import reference_python

    pythons = {"ours": sys.executable, "reference": reference_python()}
    rows, broken = [], []
    with server() as endpoint:
        for name in args.cases:
            stored = store(name, endpoint)
            for workers in args.workers:
                for latency in args.latencies:
                    label = f"{name}, {workers} workers, {latency} ms"
                    ratios, cells = compare(label, name, workers, latency, args, pythons, endpoint, stored)
                    rows.append([label, *cells])
                    broken += [f"{label}: {text}" for text in what_is_broken(ratios)]
    print(tables.machine_line("torch", "boto3", "moto"))
    print(f"blocks of {args.block} samples" if args.block else "blocks of the usual size: all is shuffled together")
    heading = ["first, s", "ref.", "ratio", "samples/s", "ref.", "ratio", "requests", "MB", "/data set"]
    tables.print_table(["", *heading], rows)
    promises = ", ".join(f"{what} {limit(least, most)}" for what, least, most in PROMISES.values())
    print(f"promised: {promises}; not kept:" + "".join(f"\n  {text}" for text in broken or ["none"]))


def arguments():
    parser = argparse.ArgumentParser(description="How soon does training from an object store begin?")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--latencies", nargs="+", type=int, help="in ms (0, 20 and 100, or 20 if quick)")
    parser.add_argument("--repeat", type=int, help="of each measurement (3, or 1 if quick)")
    parser.add_argument("--block", type=int, help="samples that are shuffled together")
    parser.add_argument("--quick", action="store_true", help="one latency, one repeat")
    args = parser.parse_args()
    args.latencies = args.latencies or ([20] if args.quick else [0, 20, 100])
    args.repeat = args.repeat or (1 if args.quick else 3)
    return args


@contextlib.contextmanager
def server():
    """Run the server; give its address."""
    command = [sys.executable, str(Path(__file__).with_name("remote_server.py"))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def counts_of(endpoint, latency):
    """Give what the server has counted, which begins anew, with a latency of so many ms."""
    with urlopen(f"{endpoint}/__stats?latency={latency / 1000}") as answer:
        return json.load(answer)


def store(name, endpoint):
    """Write a case's data set to the server; return its bytes."""
    import boto3

    from mds_core import MDSWriter

    case = CASES[name]
    os.environ.update(CREDENTIALS, S3_ENDPOINT_URL=endpoint)
    counts_of(endpoint, 0)
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=BUCKET)
    columns = {case.column: case.encoding}
    with MDSWriter(out=f"s3://{BUCKET}/{name}", columns=columns, size_limit=case.shard_bytes) as writer:
        for row in range(case.rows):
            writer.write(case.sample(row))
        time.sleep(1.1)  # S3 keeps seconds, and data sets that take longer to write are older than their index
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{name}/")["Contents"]
    print(f"{name}: {len(found) - 1} shards", file=sys.stderr, flush=True)
    return sum(entry["Size"] for entry in found)


def compare(label, name, workers, latency, args, pythons, endpoint, stored):
    """Measure one line of the table; the peers take turns. Return what is promised about, and the line."""
    case = CASES[name]
    order = {"shuffle": True, "shuffle_algo": "py1e", "shuffle_seed": 9176, "num_canonical_nodes": 1}
    job = {
        "remote": f"s3://{BUCKET}/{name}",
        "column": case.column,
        "rows": case.rows,
        "batch_size": BATCH_SIZE,
        "workers": workers,
        "order": {**order, **({"shuffle_block_size": args.block} if args.block else {})},
    }
    results = {peer: [] for peer in PEERS}
    for _ in range(args.repeat):
        for peer, all_results in results.items():
            counts_of(endpoint, latency)
            result = run(pythons[peer], {**job, "peer": peer}, endpoint)
            counts = counts_of(endpoint, 0)
            result["requests"] = sum(requests for requests, _ in counts.values())
            result["bytes"] = sum(size for _, size in counts.values())
            print(label, peer, " ".join(f"{key} {value:,.2f}" for key, value in result.items()), file=sys.stderr)
            all_results.append(result)
    ours, theirs = ({key: median(results[peer], key) for key in results[peer][0]} for peer in PEERS)
    ratios = {
        "first": theirs["first"] / ours["first"],
        "rate": ours["rate"] / theirs["rate"],
        "bytes": ours["bytes"] / stored,
    }
    cells = [f"{ours['first']:.2f}", f"{theirs['first']:.2f}", f"{ratios['first']:.2f}"]
    cells += [f"{ours['rate']:,.0f}", f"{theirs['rate']:,.0f}", f"{ratios['rate']:.2f}"]
    return ratios, [*cells, f"{ours['requests']:,.0f}", f"{ours['bytes'] / 1e6:.1f}", f"{ratios['bytes']:.3f}"]


def run(python, job, endpoint):
    """Run a job in a new process, with an empty cache; return its answer. All that the process started ends with it."""
    environment = {**os.environ, **CREDENTIALS, "S3_ENDPOINT_URL": endpoint}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        job = {**job, "local": f"{folder}/cache"}
        command = [python, "-W", "ignore", str(Path(__file__).with_name("remote_peer.py")), json.dumps(job)]
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


def limit(least, most):
    return f"at least {least:g}x" if most is None else f"at most {most:g}x the data set's"


def what_is_broken(ratios):
    for name, (what, least, most) in PROMISES.items():
        if (least is not None and ratios[name] < least) or (most is not None and ratios[name] > most):
            yield f"{what} {ratios[name]:.2f}x"


if __name__ == "__main__":
    main()
