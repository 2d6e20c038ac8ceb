"""Audio as WAV files: tones of different lengths, and a small model that tells which note each is.

    python docs/data/audio.py [FOLDER]

The data set lies in FOLDER (default: a new temporary one).
"""

import io
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import mds_spark
from mds_torch import StreamingDataLoader, StreamingDataset

sys.path.append(str(Path(__file__).parents[2] / "notebooks"))
from local_spark import start_spark

RATE = 8000  # of what is made here; each file says its own
HZ = 440 * 2 ** (np.arange(12) / 12)  # of the notes of an octave
POINTS = 4096  # of a spectrum; no tone is longer


def main(folder=None, spark=None):
    """Write, stream and train; give the losses, and each tone's frequency as it was heard, by its id."""
    folder = str(folder or tempfile.mkdtemp())
    spark = spark or start_spark()
    mds_spark.register(spark)
    df = spark.createDataFrame(list(make_rows(240)), "id long, audio binary, note int")
    df.write.format("mds").mode("overwrite").save(folder)

    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=24, transform=decode)
    loader = StreamingDataLoader(dataset, batch_size=24, num_workers=2, persistent_workers=True, collate_fn=pad)
    torch.manual_seed(1)
    model = nn.Linear(POINTS // 2 + 1, len(HZ))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for epoch in range(4):
        heard, total = {}, 0.0
        for batch in loader:
            # For a batch at once, on the device of the model: workers only decode.
            spectra = torch.fft.rfft(batch["wave"], POINTS).abs() / batch["size"][:, None].sqrt()
            loss = nn.functional.cross_entropy(model(spectra), batch["note"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hz = spectra.argmax(1) * batch["rate"] / POINTS
            heard.update(zip(batch["id"].tolist(), hz.tolist(), strict=True))
            total += loss.item() * len(hz)
        losses.append(total / len(heard))
        print(f"audio: epoch {epoch}: {len(heard)} tones, loss {losses[-1]:.2f}", flush=True)
    furthest = max(abs(heard[number] - HZ[number % 12]) for number in heard)
    print(f"audio: tones from {min(heard.values()):.0f} to {max(heard.values()):.0f} Hz, off by {furthest:.1f} at most")
    return {"losses": losses, "heard": heard}


def make_rows(count):
    """Give rows of an id, a WAV file and a note: tones from a quarter to half a second, with noise."""
    random = np.random.default_rng(1)
    for number in range(count):
        time = np.arange(random.integers(RATE // 4, RATE // 2)) / RATE
        tone = 0.5 * np.sin(2 * np.pi * HZ[number % 12] * time) + random.normal(0, 0.05, len(time))
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(RATE)
            out.writeframes((tone * 32767).clip(-32768, 32767).astype("<i2").tobytes())
        yield number, file.getvalue(), number % 12


def decode(sample):
    """Decode a WAV file of one channel and 16 bits, in a worker: float32[n], from -1 to 1."""
    with wave.open(io.BytesIO(sample["audio"])) as file:
        rate, frames = file.getframerate(), file.readframes(file.getnframes())
    values = np.frombuffer(frames, "<i2").astype(np.float32) / 32768
    return {"id": int(sample["id"]), "wave": torch.from_numpy(values), "rate": rate, "note": int(sample["note"])}


def pad(samples):
    """Collate: tones as long as the longest of the batch, with silence behind them; and how long each is."""
    batch = {name: torch.tensor([sample[name] for sample in samples]) for name in ("id", "rate", "note")}
    batch["wave"] = pad_sequence([sample["wave"] for sample in samples], batch_first=True)
    batch["size"] = torch.tensor([len(sample["wave"]) for sample in samples])
    return batch


if __name__ == "__main__":
    main(*sys.argv[1:2])
