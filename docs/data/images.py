"""Images as JPEG files: parts of two photos, of all sizes, and a small model that tells which photo a part is of.

    python docs/data/images.py [FOLDER]

The data set lies in FOLDER (default: a new temporary one).
"""

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

import mds_spark
from mds_torch import StreamingDataLoader, StreamingDataset

sys.path.append(str(Path(__file__).parents[2] / "notebooks"))
from local_spark import start_spark

SIDE = 32  # of the images that the model sees


def main(folder=None, spark=None):
    """Write, stream and train; give the ids that an epoch had, and the accuracy of each epoch."""
    folder = str(folder or tempfile.mkdtemp())
    spark = spark or start_spark()
    mds_spark.register(spark)
    df = spark.createDataFrame(list(make_rows(300)), "id long, image binary, label int")
    # Spark's binary column holds JPEG files: they are stored as they are, and read as PIL images.
    df.write.format("mds").mode("overwrite").option("columns", '{"image": "jpeg"}').save(folder)

    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=20, transform=to_tensors)
    loader = StreamingDataLoader(dataset, batch_size=20, num_workers=2, persistent_workers=True)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    accuracies = []
    for epoch in range(4):
        ids, right = [], 0
        for batch in loader:
            scores = model(batch["image"])
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, batch["label"]).backward()
            optimizer.step()
            ids += batch["id"].tolist()
            right += (scores.argmax(1) == batch["label"]).sum().item()
        accuracies.append(right / len(ids))
        print(f"images: epoch {epoch}: {len(ids)} images, {accuracies[-1]:.0%} told rightly", flush=True)
    return {"ids": ids, "accuracies": accuracies}


def make_rows(count):
    """Give rows of an id, a JPEG file and a label: parts of scikit-learn's two sample photos, by turns."""
    photos = load_sample_images().images  # uint8[427, 640, 3] each
    random = np.random.default_rng(1)
    for number in range(count):
        photo = photos[number % 2]
        height, width = random.integers(40, 120, 2)
        top, left = random.integers(0, 427 - height), random.integers(0, 640 - width)
        file = io.BytesIO()
        Image.fromarray(photo[top : top + height, left : left + width]).save(file, "JPEG", quality=90)
        yield number, file.getvalue(), number % 2


def to_tensors(sample):
    """Decode an image, in a worker: float32[3, SIDE, SIDE], from 0 to 1."""
    image = sample["image"]  # a PIL image of which only the header has been read
    image.draft("RGB", (SIDE, SIDE))  # a large JPEG is decoded at a half, a quarter or an eighth of its size
    pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.float32) / 255
    return {"id": int(sample["id"]), "image": torch.from_numpy(pixels).permute(2, 0, 1), "label": int(sample["label"])}


if __name__ == "__main__":
    main(*sys.argv[1:2])
