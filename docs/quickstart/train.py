"""A small network learns to tell images apart, on any number of processes; killed, it goes on where it was.

    python -m torch.distributed.run --standalone --nproc-per-node 2 docs/quickstart/train.py DATA CHECKPOINT

DATA is what write.py wrote. Started again by the same command, it goes on from CHECKPOINT, also with another number of
processes.
"""

import argparse
import io
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mds_torch import StreamingDataLoader, StreamingDataset


def to_tensors(side, sample):
    """Decode an image, in a worker: float32[3, side, side], from 0 to 1."""
    image = Image.open(io.BytesIO(sample["image"])).convert("RGB").resize((side, side))
    pixels = np.asarray(image, np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1), int(sample["label"])


def make_model(side, classes):
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (side // 4) ** 2, classes),
    )


@torch.no_grad()
def accuracy(model, loader):
    """Give the part of the images that the model tells rightly; each counts once over all processes."""
    counts = torch.zeros(2)
    for images, labels in loader:
        right = model.module(images).argmax(1) == labels
        counts += torch.tensor([right.sum(), len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main(data, checkpoint, epochs, batch_size, side, save_every):
    dist.init_process_group("gloo")  # "nccl" with GPUs
    say = print if dist.get_rank() == 0 else lambda *text, **how: None
    torch.manual_seed(1)
    classes = json.loads(Path(data, "classes.json").read_text())
    model = DistributedDataParallel(make_model(side, len(classes)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    transform = partial(to_tensors, side)
    train = StreamingDataset(local=f"{data}/train", shuffle=True, batch_size=batch_size, transform=transform)
    # Without padding, each image is tested once; some process may have a batch less.
    test = StreamingDataset(local=f"{data}/test", batch_size=batch_size, transform=transform, pad=False)
    loader = StreamingDataLoader(train, batch_size=batch_size, num_workers=1)
    test_loader = StreamingDataLoader(test, batch_size=batch_size)

    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        at = state["loader"]
        say(f"goes on in epoch {at['epoch']}, after {at['sample_in_epoch']} images of it", flush=True)

    while (epoch := loader.state_dict()["epoch"]) < epochs:
        for step, (images, labels) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % save_every == 0:
                save(checkpoint, model, optimizer, loader)
                say(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        if test.size:
            say(f"epoch {epoch}: accuracy {accuracy(model, test_loader):.3f}", flush=True)
        save(checkpoint, model, optimizer, loader)
    dist.destroy_process_group()


def save(checkpoint, model, optimizer, loader):
    if dist.get_rank() == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),  # the same on every process
        }
        # First beside it, so that a kill leaves the old checkpoint or the new one, and nothing between.
        torch.save(state, f"{checkpoint}.new")
        os.replace(f"{checkpoint}.new", checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("checkpoint")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--side", type=int, default=32, help="pixels to which images are scaled, a multiple of 4")
    parser.add_argument("--save-every", type=int, default=10, help="steps from one checkpoint to the next")
    main(**vars(parser.parse_args()))
