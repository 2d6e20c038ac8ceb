"""How fast does a DataFrame become an MDS data set?

    python benchmarks/write.py                # about 5 minutes; --scale 0.1 for a quick look

Four tables, each cached by Spark (local[2], default settings, 2 partitions) before anything is timed. Peers
take turns on the same cached DataFrame:

- ours        df.write.format("mds"), no compression, no hashes
- counting    a Python data source that only counts its rows: what Spark takes to hand them over
- parquet     Spark's own writer, uncompressed
- reference   mosaicml-streaming's dataframe_to_mds, no compression, in its own environment and Spark session,
              on the first rows of the same table: about half a second's work, which is mostly starting
- long ref.   the same on 5 to 30 times as many rows, some seconds' work

Rows per second, the median of the repeats after a first run that does not count (processes start and import
in it); "ours/…" are quotients of these medians. Each write's rows are counted afterwards.

On long tables the counting writer, which bounds what any Python data source can reach, is itself only some 19, 10,
3 and 4 times as fast as the reference.

The last table:

2 cores (AMD EPYC), 24 GiB, Python 3.11.7, pyspark 4.3.0, pyarrow 26.0.1, 2026-11-29
table         ours   counting    parquet  reference  long ref.  /counting  /parquet  /reference  /long ref.
numbers  2,924,057  3,646,209  6,170,292     54,547    194,442       0.80      0.47       53.61       15.04
text     1,430,306  2,348,074  1,241,956     50,874    231,767       0.61      1.15       28.11        6.17
tokens      49,617     64,608     16,807      5,809     21,077       0.77      2.95        8.54        2.35
images       7,146      9,809      8,547      1,139      2,789       0.73      0.84        6.27        2.56
numbers: 10,000,000 rows; reference 20,000; long ref. 600,000
text: 1,000,000 rows; reference 10,000; long ref. 300,000
tokens: 60,000 rows; reference 1,000; long ref. 30,000
images: 10,000 rows; reference 300; long ref. 5,000
(images from a run of their own, --tables images --repeat 5, after their samples were no longer copied together)

The figures of tables that fill the disk's cache, text and images, vary by a third from run to run on this machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tables
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

sys.path.insert(0, str(tables.ROOT))

PEERS = ["ours", "counting", "parquet", "reference", "long ref."]
OTHERS = PEERS[1:]
HEADER = ["table", *PEERS, *(f"/{peer}" for peer in OTHERS)]


class CountMessage(WriterCommitMessage):
    def __init__(self, rows):
        self.rows = rows


class CountingWriter(DataSourceArrowWriter):
    def __init__(self, rows):
        self.rows = rows

    def write(self, iterator):
        return CountMessage(sum(batch.num_rows for batch in iterator))

    def commit(self, messages):
        counted = sum(message.rows for message in messages)
        assert counted == self.rows, f"counted {counted} rows of {self.rows}"


class CountingSource(DataSource):
    @classmethod
    def name(cls):
        return "counting"

    def writer(self, schema, overwrite):
        return CountingWriter(int(self.options["rows"]))


class SparkPeers:
    """The peers in this process's Spark session."""

    def __init__(self, memory):
        self.spark = tables.make_spark(memory)
        self.spark.dataSource.register(CountingSource)
        self.frame = None

    def load(self, name, rows):
        if self.frame is not None:
            self.frame.unpersist(blocking=True)
        self.frame, self.rows = tables.cached_frame(self.spark, name, rows), rows

    def write(self, peer, path):
        start = time.perf_counter()
        getattr(self, peer)(path)
        seconds = time.perf_counter() - start
        assert self.written(peer, path) == self.rows, f"{peer}: not all rows were written"
        return self.rows / seconds

    def ours(self, path):
        self.frame.write.format("mds").mode("overwrite").save(path)

    def counting(self, path):
        self.frame.write.format("counting").option("rows", self.rows).mode("append").save()

    def parquet(self, path):
        self.frame.write.option("compression", "uncompressed").mode("overwrite").parquet(path)

    def written(self, peer, path):
        if peer == "counting":
            return self.rows  # checked in its commit
        if peer == "parquet":
            return self.spark.read.parquet(path).count()
        return samples(path)

    def close(self):
        self.spark.stop()


class ReferenceProcess:
    """The reference library: write_peer.py, under its own interpreter."""

    def __init__(self, memory):
        from tests.reference import reference_python

        script = str(Path(__file__).with_name("write_peer.py"))
        self.process = subprocess.Popen(
            [reference_python(), script, memory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the reference library's process ended; see above")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


class ReferencePeer:
    """A table of some length in the reference library's process."""

    def __init__(self, process):
        self.process = process

    def load(self, name, rows):
        self.name, self.rows = name, rows
        self.process.ask(do="load", name=name, rows=rows)

    def write(self, peer, path):
        seconds = self.process.ask(do="write", name=self.name, rows=self.rows, path=path)
        assert samples(path) == self.rows, "reference: not all rows were written"
        return self.rows / seconds


def samples(path):
    index = json.loads(Path(path, "index.json").read_text())
    return sum(shard["samples"] for shard in index["shards"])


def main():
    parser = argparse.ArgumentParser(description="How fast does a DataFrame become an MDS data set?")
    parser.add_argument("--tables", nargs="+", default=list(tables.TABLES), choices=list(tables.TABLES))
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--scale", type=float, default=1, help="of the tables' rows")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--memory", default="6g", help="of Spark's driver")
    args = parser.parse_args()

    spark = SparkPeers(args.memory)
    if "ours" in args.peers:
        import mds_spark

        mds_spark.register(spark.spark)
    runners = {peer: spark for peer in args.peers if peer in ("ours", "counting", "parquet")}
    process = None
    if set(args.peers) - set(runners):
        process = ReferenceProcess(args.memory)
        runners |= {peer: ReferencePeer(process) for peer in args.peers if peer not in runners}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.tables:
            load(name, runners, args.scale)
            lines.append([name, *figures(measure(name, runners, args.repeat, Path(folder)))])
    spark.close()
    if process:
        process.close()
    print(tables.machine_line("pyspark", "pyarrow"))
    tables.print_table(HEADER, lines)
    for name in args.tables:
        table = tables.TABLES[name]
        counts = [tables.scaled(n, args.scale) for n in (table.rows, table.reference_rows, table.reference_long_rows)]
        print(f"{name}: {counts[0]:,} rows; reference {counts[1]:,}; long ref. {counts[2]:,}")


def load(name, runners, scale):
    """Cache a table in each session."""
    table = tables.TABLES[name]
    rows = {"reference": table.reference_rows, "long ref.": table.reference_long_rows}
    loaded = set()
    for peer, runner in runners.items():
        if runner not in loaded:
            runner.load(name, tables.scaled(rows.get(peer, table.rows), scale))
            loaded.add(runner)


def measure(name, runners, repeat, folder):
    """Return each peer's rows/s: peers take turns, and the first turn does not count."""
    rates = {peer: [] for peer in runners}
    for turn in range(repeat + 1):
        for peer, runner in runners.items():
            path = tables.empty_folder(folder / peer)
            rate = runner.write(peer, str(path))
            tables.empty_folder(path)
            if turn:
                rates[peer].append(rate)
            note = "" if turn else " (first)"
            print(f"{name} {peer} {rate:,.0f} rows/s{note}", file=sys.stderr, flush=True)
    return {peer: statistics.median(values) for peer, values in rates.items()}


def figures(rates):
    """Return the peers' cells, and those of ours against each other peer."""
    cells = [f"{rates[peer]:,.0f}" if peer in rates else "-" for peer in PEERS]
    for other in OTHERS:
        both = "ours" in rates and other in rates
        cells.append(f"{rates['ours'] / rates[other]:.2f}" if both else "-")
    return cells


if __name__ == "__main__":
    main()
