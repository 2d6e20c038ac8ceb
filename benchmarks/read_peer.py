"""One job of read.py, in a process of its own: make a data set, check what a peer reads, or time it.

Runs under each peer's interpreter. The job is JSON in the first argument; the answer is JSON on stdout.
"""

import json
import os
import random
import sys
import time
from functools import partial
from itertools import islice
from operator import itemgetter

import tables

sys.path.insert(0, str(tables.ROOT))

MIB = 1 << 20
# A clock is looked at after this many samples or batches.
SAMPLES, BATCHES = 256, 8


def main():
    job = json.loads(sys.argv[1])
    # Libraries print: what is not the answer goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(globals()[job["do"]](job)), file=answers, flush=True)


# --- making data sets


def make_mds(job):
    from mds_core import MDSWriter

    with MDSWriter(out=job["path"], columns=tables.TABLES[job["table"]].encodings) as writer:
        for batch in tables.make_batches(job["table"], 0, job["rows"]):
            writer.write_batch(batch)


def make_litdata(job):
    import litdata

    step = tables.TABLES[job["table"]].block
    litdata.optimize(
        partial(litdata_samples, job["table"], step, job["rows"]),
        list(range(0, job["rows"], step)),
        output_dir=job["path"],
        chunk_bytes=64 * MIB,  # as large as our shards
        num_workers=1,
        keep_data_ordered=True,
    )


def litdata_samples(name, step, rows, start):
    """Yield a block's samples as litdata keeps them best: numbers, text and bytes, and tokens as an array."""
    batch = tables.make_batch(name, start, min(start + step, rows))
    if name == "tokens":
        for tokens in batch.column(0):
            yield {"tokens": tokens.values.to_numpy()}
    else:
        yield from batch.to_pylist()


# --- opening them


def open_dataset(job):
    path, options = job["path"], {"shuffle": job["shuffle"], "batch_size": job["batch_size"]}
    if job["peer"] == "ours":
        from mds_torch import StreamingDataset

        return StreamingDataset(local=path, **options)
    if job["peer"] == "MDSReader":
        from mds_core import MDSReader

        return MDSReader(path)
    if job["peer"] == "reference":
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        return StreamingDataset(local=path, **options)
    from litdata import StreamingDataset

    return StreamingDataset(path, shuffle=job["shuffle"])


def open_loader(job, dataset):
    if job["peer"] == "ours":
        from mds_torch import StreamingDataLoader
    elif job["peer"] == "reference":
        from streaming import StreamingDataLoader
    else:
        from litdata import StreamingDataLoader
    return StreamingDataLoader(dataset, batch_size=job["batch_size"], num_workers=job["workers"])


# --- checking what they give


def check(job):
    """Compare a peer's first samples, and some from anywhere, with the table."""
    dataset = open_dataset(job)
    assert len(dataset) == job["rows"], f"{job['peer']} has {len(dataset)} samples of {job['rows']}"
    for row, sample in enumerate(islice(iter(dataset), 200)):
        compare(job, row, sample)
    for row in random.Random(0).sample(range(job["rows"]), 100):
        compare(job, row, dataset[row])


def compare(job, row, sample):
    expected = tables.make_batch(job["table"], row, row + 1).to_pylist()[0]
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}
    assert plain == expected, f"{job['peer']} reads row {row} of {job['table']} wrongly"


# --- timing


def iterate(job):
    dataset = open_dataset(job)
    weigh = weigher(job["table"])
    return timed(job, lambda: map(weigh, dataset), SAMPLES, lambda weights: (len(weights), sum(weights)))


def loader(job):
    batches = open_loader(job, open_dataset(job))
    weigh = batch_weigher(job["table"])
    return timed(job, lambda: map(weigh, batches), BATCHES, lambda pairs: map(sum, zip(*pairs, strict=True)))


def at_random(job):
    """Time dataset[i] at random places; a few come first and do not count: they open the shards."""
    dataset = open_dataset(job)
    rows = random.Random(0).choices(range(job["rows"]), k=1_000_000)
    weigh, get = weigher(job["table"]), dataset.__getitem__
    start = time.perf_counter()
    for row in rows[-200:]:
        get(row)
    ready = time.perf_counter()
    taken = []
    places = iter(rows)
    while time.perf_counter() - ready < job["seconds"] and len(taken) < len(rows):
        taken += [weigh(get(row)) for row in islice(places, SAMPLES)]
    end = time.perf_counter()
    weights = tables.weights(job["table"], job["rows"])
    assert sum(taken) == weights[rows[: len(taken)]].sum(), f"{job['peer']} reads other rows"
    return {"rows": len(taken), "rate": len(taken) / (end - ready), "first": ready - start}


def timed(job, begin, step, add):
    """Time an epoch from its first item on, to its end or to the time limit.

    begin() starts it and gives weights, of samples or of batches; add() makes of some: (samples, their weight).
    """
    start = time.perf_counter()
    items = begin()
    first, total = add([next(items)])
    ready = time.perf_counter()
    rows = first
    while time.perf_counter() - ready < job["seconds"]:
        taken = list(islice(items, step))
        if not taken:
            break
        more, weight = add(taken)
        rows, total = rows + more, total + weight
    end = time.perf_counter()
    weights = tables.weights(job["table"], job["rows"])
    # Some shuffle, and some deal shards to workers: only their whole epochs have a known sum.
    in_order = not job["shuffle"] and not job["workers"]
    if in_order or rows >= job["rows"]:
        assert rows <= job["rows"], f"{job['peer']} reads {rows} rows of {job['rows']}"
        assert total == weights[:rows].sum(), f"{job['peer']} reads other rows"
    return {"rows": rows, "rate": (rows - first) / (end - ready), "first": ready - start}


def weigher(name):
    """Return the function that weighs a sample, as tables.weights does."""
    column = tables.TABLES[name].schema.names[0]
    if name == "numbers":
        return itemgetter(column)
    return lambda sample: len(sample[column])


def batch_weigher(name):
    """Return the function that gives a batch's samples and their weight."""
    column = tables.TABLES[name].schema.names[0]
    if name == "numbers":
        return lambda batch: (len(batch[column]), int(batch[column].sum()))
    if name == "tokens":
        return lambda batch: (len(batch[column]), batch[column].numel())
    return lambda batch: (len(batch[column]), sum(map(len, batch[column])))


if __name__ == "__main__":
    main()
