"""Video as MP4 files: clips of a square that moves, and a small model that tells whether it goes left or right.

    python docs/data/video.py [FOLDER]

The data set lies in FOLDER (default: a new temporary one). PyAV encodes and decodes: pip install av.
"""

import io
import sys
import tempfile
from pathlib import Path

import av
import numpy as np
import torch
from torch import nn

import mds_spark
from mds_torch import StreamingDataLoader, StreamingDataset

sys.path.append(str(Path(__file__).parents[2] / "notebooks"))
from local_spark import start_spark

SIDE = 48  # of a clip, in pixels
FRAMES = 6  # that the model sees


def main(folder=None, spark=None):
    """Write, stream and train; give the frames that each clip had, by its id, and the accuracy of each epoch."""
    folder = str(folder or tempfile.mkdtemp())
    spark = spark or start_spark()
    mds_spark.register(spark)
    df = spark.createDataFrame(list(make_rows(160)), "id long, clip binary, goes_right int")
    df.write.format("mds").mode("overwrite").save(folder)

    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=16, transform=decode)
    loader = StreamingDataLoader(dataset, batch_size=16, num_workers=2, persistent_workers=True)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv3d(1, 16, (2, 7, 7), stride=(1, 2, 2)), nn.ReLU(), nn.AdaptiveAvgPool3d(1))
    model = nn.Sequential(model, nn.Flatten(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    accuracies = []
    for epoch in range(4):
        frames, right = {}, 0
        for batch in loader:
            scores = model(batch["clip"])
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, batch["goes_right"]).backward()
            optimizer.step()
            frames.update(zip(batch["id"].tolist(), batch["frames"].tolist(), strict=True))
            right += (scores.argmax(1) == batch["goes_right"]).sum().item()
        accuracies.append(right / len(frames))
        print(
            f"video: epoch {epoch}: {len(frames)} clips of {sum(frames.values())} frames, "
            f"{accuracies[-1]:.0%} told rightly",
            flush=True,
        )
    return {"frames": frames, "accuracies": accuracies}


def make_rows(count):
    """Give rows of an id, an MP4 file, and which way the square goes; clip i has 8 + i % 5 frames."""
    random = np.random.default_rng(1)
    for number in range(count):
        frames = 8 + number % 5
        pixels = np.zeros((frames, SIDE, SIDE), np.uint8)
        top = random.integers(0, SIDE - 12)
        lefts = np.linspace(0, SIDE - 12, frames).astype(int)
        for frame, left in zip(pixels, lefts if number % 2 else lefts[::-1], strict=True):
            frame[top : top + 12, left : left + 12] = 255
        yield number, encode(pixels), number % 2


def encode(pixels):
    """Make an MP4 file, H.264, of uint8[frames, height, width]."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=8)
        stream.height, stream.width = pixels.shape[1:]
        stream.pix_fmt = "yuv420p"
        for frame in pixels:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="gray")))
        out.mux(stream.encode(None))
    return file.getvalue()


def decode(sample):
    """Decode a clip, in a worker: some frames at equal distances, float32[1, FRAMES, SIDE, SIDE], from 0 to 1."""
    with av.open(io.BytesIO(sample["clip"])) as file:
        file.streams.video[0].thread_count = 1  # there are as many workers as cores already
        frames = [frame.to_ndarray(format="gray") for frame in file.decode(video=0)]
    chosen = np.linspace(0, len(frames) - 1, FRAMES).round().astype(int)
    clip = np.stack([frames[at] for at in chosen]).astype(np.float32) / 255
    return {
        "id": int(sample["id"]),
        "clip": torch.from_numpy(clip)[None],
        "frames": len(frames),
        "goes_right": int(sample["goes_right"]),
    }


if __name__ == "__main__":
    main(*sys.argv[1:2])
