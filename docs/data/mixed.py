"""Columns of several kinds in one data set: digits as PNG files, captions, their tokens, and what is known of them.

    python docs/data/mixed.py [FOLDER]

Two small models learn, as CLIP does, to give an image and its caption the same vector. The data set lies in FOLDER
(default: a new temporary one).
"""

import io
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from pyspark.sql import Row
from sklearn.datasets import load_digits
from torch import nn

import mds_spark
from mds_torch import StreamingDataLoader, StreamingDataset

sys.path.append(str(Path(__file__).parents[2] / "notebooks"))
from local_spark import start_spark

SCHEMA = """
    id long, image binary, caption string, tokens array<int>,
    meta struct<source: string, size: struct<width: int, height: int>, tags: array<string>>
"""
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VOCABULARY = {word: number for number, word in enumerate(["a", "an", "odd", "even", *NAMES])}


def main(folder=None, spark=None):
    """Write, stream and train; give the ids that an epoch had, the losses, and the tags and captions counted."""
    folder = str(folder or tempfile.mkdtemp())
    spark = spark or start_spark()
    mds_spark.register(spark)
    df = spark.createDataFrame(list(make_rows(600)), SCHEMA)
    df.write.format("mds").mode("overwrite").option("columns", '{"image": "png"}').save(folder)

    # Some columns: no image is decoded.
    few = StreamingDataset(local=folder, columns=["caption", "meta"], batch_size=50)
    captions, tags = Counter(), Counter()
    for batch in StreamingDataLoader(few, batch_size=50, num_workers=2, collate_fn=list):
        captions.update(sample["caption"] for sample in batch)
        tags.update(tag for sample in batch for tag in sample["meta"]["tags"])  # json is dicts and lists again
    print(f"mixed: {captions.total()} captions, {len(captions)} different ones; tags: {dict(tags)}", flush=True)

    columns = ["id", "image", "tokens"]
    dataset = StreamingDataset(local=folder, columns=columns, shuffle=True, batch_size=50, transform=to_tensors)
    loader = StreamingDataLoader(dataset, batch_size=50, num_workers=2, persistent_workers=True, collate_fn=collate)
    torch.manual_seed(1)
    see, read = nn.Linear(64, 16), nn.EmbeddingBag(len(VOCABULARY), 16)
    optimizer = torch.optim.Adam([*see.parameters(), *read.parameters()], lr=2e-2)
    losses = []
    for epoch in range(3):
        ids, total = [], 0.0
        for batch in loader:
            scores = see(batch["image"]) @ read(batch["tokens"], batch["starts"]).T  # of each image with each caption
            # Captions of the same digit are all right for its image.
            right = (batch["digit"][:, None] == batch["digit"]).float()
            loss = nn.functional.cross_entropy(scores, right / right.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids += batch["id"].tolist()
            total += loss.item() * len(batch["id"])
        losses.append(total / len(ids))
        print(f"mixed: epoch {epoch}: {len(ids)} pairs, loss {losses[-1]:.2f}", flush=True)
    return {"ids": ids, "losses": losses, "captions": captions, "tags": tags}


def make_rows(count):
    """Give rows of SCHEMA."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:count], digits.target, strict=False)):
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")  # pixels are from 0 to 16
        parity = "odd" if label % 2 else "even"
        caption = f"an {parity} {NAMES[label]}" if number % 3 else f"a {NAMES[label]}"
        tokens = [VOCABULARY[word] for word in caption.split()]
        meta = Row(source="digits", size=Row(width=8, height=8), tags=[parity] if number % 3 else [])
        yield number, file.getvalue(), caption, tokens, meta


def to_tensors(sample):
    """Decode an image, in a worker: float32[64], from 0 to 1."""
    pixels = np.asarray(sample["image"], np.float32).reshape(-1) / 255
    tokens = torch.tensor(sample["tokens"], dtype=torch.int64)
    return {"id": int(sample["id"]), "image": torch.from_numpy(pixels), "tokens": tokens}


def collate(samples):
    """Put samples together: captions of different lengths one after another, and where each begins."""
    sizes = torch.tensor([len(sample["tokens"]) for sample in samples])
    return {
        "id": torch.tensor([sample["id"] for sample in samples]),
        "image": torch.stack([sample["image"] for sample in samples]),
        "tokens": torch.cat([sample["tokens"] for sample in samples]),
        "starts": sizes.cumsum(0) - sizes,
        "digit": torch.stack([sample["tokens"][-1] for sample in samples]),  # a caption's last word
    }


if __name__ == "__main__":
    main(*sys.argv[1:2])
