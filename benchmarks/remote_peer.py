"""One measurement of remote.py, in a process of its own: a cold epoch, and when its first batch came.

Runs under each peer's interpreter. The job is JSON in the first argument; the answer is JSON on stdout.
"""

import json
import os
import sys
import time
from pathlib import Path


def main():
    job = json.loads(sys.argv[1])
    # Libraries print: what is not the answer goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    dataset_kind, loader_kind = {"ours": ours, "reference": reference}[job["peer"]]()
    column = job["column"]
    ids_of = {"tokens": token_ids, "image": image_ids}[column]
    start = time.perf_counter()
    dataset = dataset_kind(remote=job["remote"], local=job["local"], batch_size=job["batch_size"], **job["order"])
    batches = iter(loader_kind(dataset, batch_size=job["batch_size"], num_workers=job["workers"]))
    batch = next(batches)
    first = time.perf_counter()
    ids = ids_of(batch[column])
    for batch in batches:
        ids += ids_of(batch[column])
    end = time.perf_counter()
    assert sorted(ids) == list(range(job["rows"])), f"{job['peer']} reads other samples than there are"
    print(json.dumps({"first": first - start, "rate": len(ids) / (end - start)}), file=answers, flush=True)


# --- what is imported, boto3 included, does not count


def ours():
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import boto3.s3.transfer

    import mds_core.storage.s3
    from mds_torch import StreamingDataLoader, StreamingDataset

    assert boto3.s3.transfer.TransferConfig
    assert mds_core.storage.s3.S3Storage
    return StreamingDataset, StreamingDataLoader


def reference():
    import boto3.s3.transfer
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    assert boto3.s3.transfer.TransferConfig
    clean_stale_shared_memory()
    return StreamingDataset, StreamingDataLoader


# --- each sample begins with its number


def token_ids(batch):
    return batch[:, 0].tolist()


def image_ids(batch):
    return [int.from_bytes(image[:4], "little") for image in batch]


if __name__ == "__main__":
    main()
