"""Text: paragraphs of Python's documentation and of its source, and a small model that tells which is which.

    python docs/data/text.py [FOLDER]

The data set lies in FOLDER (default: a new temporary one).
"""

import argparse
import inspect
import re
import sys
import tempfile
import zlib
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn

import mds_spark
from mds_torch import StreamingDataLoader, StreamingDataset

sys.path.append(str(Path(__file__).parents[2] / "notebooks"))
from local_spark import start_spark

WORDS = 4096  # rows of the model's table of words


def main(folder=None, spark=None):
    """Write, stream and train; give the ids that an epoch had, the losses, and how many characters were read."""
    folder = str(folder or tempfile.mkdtemp())
    spark = spark or start_spark()
    mds_spark.register(spark)
    rows = make_rows()
    df = spark.createDataFrame(rows, "id long, text string, is_code boolean")
    df.write.format("mds").mode("overwrite").option("compression", "zstd").save(folder)

    # Without a transform, a batch's text is a list of str, built column by column.
    plain = StreamingDataLoader(
        StreamingDataset(local=folder, columns=["text"], batch_size=256), batch_size=256, num_workers=2
    )
    characters = sum(len(text) for batch in plain for text in batch["text"])
    print(f"text: {len(rows)} paragraphs of {characters} characters", flush=True)

    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=64, transform=to_words)
    loader = StreamingDataLoader(
        dataset, batch_size=64, num_workers=2, persistent_workers=True, collate_fn=put_together
    )
    torch.manual_seed(1)
    model = nn.EmbeddingBag(WORDS, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for epoch in range(3):
        ids, total = [], 0.0
        for batch in loader:
            scores = model(batch["words"], batch["starts"])[:, 0]
            loss = nn.functional.binary_cross_entropy_with_logits(scores, batch["is_code"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids += batch["id"].tolist()
            total += loss.item() * len(batch["id"])
        losses.append(total / len(ids))
        print(f"text: epoch {epoch}: {len(ids)} paragraphs, loss {losses[-1]:.3f}", flush=True)
    return {"ids": ids, "losses": losses, "characters": characters}


def make_rows():
    """Give rows of an id, a paragraph, and whether it is source."""
    texts = [(text, False) for text in topics.values()] + [(inspect.getsource(argparse), True)]
    paragraphs = [(part, code) for text, code in texts for part in re.split(r"\n\s*\n", text) if part.strip()]
    return [(number, *paragraph) for number, paragraph in enumerate(paragraphs)]


def to_words(sample):
    """Turn text into numbers of words, in a worker."""
    # Not hash(): that of a str differs from process to process.
    words = [zlib.crc32(word.encode()) % WORDS for word in re.findall(r"\w+|[^\w\s]", sample["text"])]
    return {"id": int(sample["id"]), "words": torch.tensor(words), "is_code": float(sample["is_code"])}


def put_together(samples):
    """Collate: all words of a batch one after another, and where each text's begin."""
    sizes = torch.tensor([len(sample["words"]) for sample in samples])
    return {
        "id": torch.tensor([sample["id"] for sample in samples]),
        "words": torch.cat([sample["words"] for sample in samples]),
        "starts": sizes.cumsum(0) - sizes,
        "is_code": torch.tensor([sample["is_code"] for sample in samples]),
    }


if __name__ == "__main__":
    main(*sys.argv[1:2])
