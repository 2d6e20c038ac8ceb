"""The main job, from end to end: images in a Spark DataFrame become an MDS data set, and a model trains from it.

    python notebooks/digits.py [FOLDER]

The images are scikit-learn's digits: 1,797 of 8x8 pixels, as PNG files. The data set lies in FOLDER (default:
digits-mds, here), in the subfolders train and test; another run replaces it.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from local_spark import say, start_spark
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from mds_torch import StreamingDataLoader, StreamingDataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 64
EPOCHS = 12

Row = tuple[int, bytes, int]


class Digits(StreamingDataset):
    """The data set as torch wants it: an image as a tensor of 1x8x8 numbers from 0 to 1, and its label."""

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(at)  # {"id": ..., "image": a PIL image, "label": ...}
        pixels = np.asarray(sample["image"], np.float32) / 255
        return torch.from_numpy(pixels).unsqueeze(0), int(sample["label"])


def main(path: str | Path | None = None, epochs: int = EPOCHS, spark: SparkSession | None = None) -> float:
    """Write, read back and train; give the accuracy on the images that were held out.

    Args:
        path: the data set's folder.
        epochs: how often the model sees each image.
        spark: a session to use; without, one is started, and stopped when it has done its part.
    """
    folder = Path("digits-mds" if path is None else path).absolute()
    train, test = load_rows()
    say(f"{len(train)} images to learn from and {len(test)} held out")
    session = start_spark() if spark is None else spark
    try:
        for name, rows in (("train", train), ("test", test)):
            write_and_check(session, rows, folder / name)
    finally:
        if spark is None:
            session.stop()
    accuracy = measure(fit(folder / "train", epochs), folder / "test")
    say(f"accuracy on the {len(test)} images held out: {accuracy:.3f}")
    say(f"the data set lies in {folder}")
    return accuracy


def load_rows() -> tuple[list[Row], list[Row]]:
    """Give the digits as rows (id, PNG file, label): those to learn from, and those held out."""
    digits = load_digits()
    rows = []
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")  # pixels are from 0 to 16
        rows.append((number, file.getvalue(), int(label)))
    train, test = train_test_split(rows, test_size=0.2, random_state=1, stratify=digits.target)
    return train, test


def write_and_check(spark: SparkSession, rows: list[Row], folder: Path) -> None:
    """Write rows as an MDS data set with Spark, read it back with Spark, and compare."""
    import mds_spark

    mds_spark.register(spark)
    df = spark.createDataFrame(rows, "id long, image binary, label int").repartition(4)
    writer = df.write.format("mds").option("columns", '{"image": "png"}')
    if (folder / "index.json").exists():
        writer = writer.mode("overwrite")
    writer.save(str(folder))
    back = spark.read.format("mds").load(str(folder))
    # In the same order, too: a data set keeps that of its DataFrame.
    if back.schema != df.schema or back.collect() != df.collect():
        raise AssertionError(f"{folder}: what Spark reads is not what it wrote")
    say(f"{folder.name}: wrote {len(rows)} rows, and Spark reads the same {back.count()} back")


def fit(folder: Path, epochs: int) -> nn.Module:
    """Train a small model."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    dataset = Digits(local=str(folder), shuffle=True, batch_size=BATCH)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, persistent_workers=True)
    for epoch in range(1, epochs + 1):
        seen, total = 0, 0.0
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            total += loss.item() * len(labels)
        say(f"epoch {epoch} of {epochs}: {seen} images, loss {total / seen:.3f}")
    return model


@torch.no_grad()
def measure(model: nn.Module, folder: Path) -> float:
    """Give the part of a data set's images whose label the model tells."""
    loader = StreamingDataLoader(Digits(local=str(folder), batch_size=BATCH), batch_size=BATCH, num_workers=2)
    right = [model(images).argmax(1) == labels for images, labels in loader]
    return torch.cat(right).float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="the data set's folder (default: digits-mds)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"default: {EPOCHS}")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.epochs)
