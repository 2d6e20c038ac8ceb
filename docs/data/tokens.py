"""Tokens: documents of all lengths for a small language model, padded, packed while loading, and packed in Spark.

    python docs/data/tokens.py [FOLDER]

The data sets lie in FOLDER (default: a new temporary one), in the subfolders documents and packed.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

import mds_spark
from mds_core import pack_tokens
from mds_torch import PackTokens, StreamingDataLoader, StreamingDataset

sys.path.append(str(Path(__file__).parents[2] / "notebooks"))
from local_spark import start_spark

LENGTH = 128  # tokens a row
END = 256  # the token after a document; the others are bytes
NAMES = ("tokens", "documents", "positions")


def main(folder=None, spark=None):
    """Write, stream and train in three ways; give each one's number of tokens, part of padding, and losses."""
    folder = Path(folder or tempfile.mkdtemp())
    spark = spark or start_spark()
    mds_spark.register(spark)
    df = spark.createDataFrame(make_rows(600), "tokens array<int>").repartition(2)
    df.write.format("mds").mode("overwrite").save(str(folder / "documents"))

    # The same documents in rows of one length: arrays whose shape the data set's index tells.
    packed = df.mapInArrow(pack_batches, ", ".join(f"{name} array<int>" for name in NAMES))
    encodings = json.dumps(dict.fromkeys(NAMES, f"ndarray:int32:{LENGTH}"))
    packed.write.format("mds").mode("overwrite").option("columns", encodings).save(str(folder / "packed"))

    ways = {
        "padded": load(folder / "documents", 32, collate_fn=pad),
        "packed while loading": load(folder / "documents", 32, collate_fn=PackTokens("tokens", LENGTH, split=False)),
        "packed in Spark": load(folder / "packed", 16),
    }
    return {name: train(name, loader) for name, loader in ways.items()}


def make_rows(count):
    """Give rows of one column: paragraphs of Python's documentation as bytes, and an end."""
    text = "\n\n".join(topics.values())
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip()][:count]
    return [([*paragraph.encode()[: LENGTH - 1], END],) for paragraph in paragraphs]


def pack_batches(batches):
    """Pack Arrow batches, in a Spark task; each by itself, so that a task holds no more than one."""
    for batch in batches:
        packed = pack_tokens(batch.column("tokens").to_numpy(zero_copy_only=False), LENGTH, split=False)
        starts = pa.array(np.arange(len(packed.tokens) + 1) * LENGTH, pa.int32())
        values = [pa.array(getattr(packed, name).reshape(-1), pa.int32()) for name in NAMES]
        yield pa.record_batch([pa.ListArray.from_arrays(starts, column) for column in values], list(NAMES))


def pad(samples):
    """Collate documents as they are usually: each a row, as long as the longest of the batch."""
    documents = [torch.tensor(sample["tokens"], dtype=torch.int64) for sample in samples]
    numbers = [torch.full_like(document, number) for number, document in enumerate(documents)]
    positions = [torch.arange(len(document)) for document in documents]
    return {
        "tokens": pad_sequence(documents, batch_first=True),
        "documents": pad_sequence(numbers, batch_first=True, padding_value=-1),
        "positions": pad_sequence(positions, batch_first=True),
    }


def load(folder, batch_size, **arguments):
    """Make a loader of two workers."""
    dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=batch_size)
    return StreamingDataLoader(dataset, batch_size=batch_size, num_workers=2, **arguments)


def train(name, loader):
    """Train a new model for an epoch."""
    torch.manual_seed(1)
    model = TinyModel(64)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses, tokens, places = [], 0, 0
    for batch in loader:
        loss = model(**batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tokens += (batch["documents"] >= 0).sum().item()
        places += batch["tokens"].numel()
    padding = 1 - tokens / places
    print(
        f"tokens: {name}: {tokens} tokens in {len(losses)} batches, {padding:.1%} padding; "
        f"loss from {losses[0]:.2f} to {losses[-1]:.2f}",
        flush=True,
    )
    return {"tokens": tokens, "padding": padding, "losses": losses}


class TinyModel(nn.Module):
    """A language model of one layer, which looks at the tokens of the same document only."""

    def __init__(self, size):
        super().__init__()
        self.token, self.position = nn.Embedding(END + 1, size), nn.Embedding(LENGTH, size)
        self.attention, self.out = nn.Linear(size, 3 * size), nn.Linear(size, END + 1)

    def forward(self, tokens, documents, positions):
        """Give the loss: how well each token's successor is told."""
        x = self.token(tokens) + self.position(positions)
        # Padding, document -1, looks at padding: a token that looks at nothing would make NaN of the whole batch.
        may_look = (documents[:, :, None] == documents[:, None, :]).tril()
        x = x + scaled_dot_product_attention(*self.attention(x).chunk(3, -1), attn_mask=may_look)
        follows = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        return cross_entropy(self.out(x)[:, :-1][follows], tokens[:, 1:][follows].long())


if __name__ == "__main__":
    main(*sys.argv[1:2])
