r"""Hugging Face Accelerate, with its save_state and load_state.

    python -m torch.distributed.run --standalone --nproc-per-node 2 \
        docs/frameworks/train_accelerate.py FOLDER CHECKPOINT

`accelerate launch` does as well. Started again, it goes on from the checkpoint.
"""

import argparse
import os

import torch
from accelerate import Accelerator
from torch import nn

from mds_torch import StreamingDataLoader, StreamingDataset

EPOCHS = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


def main(folder, checkpoint, steps):
    accelerator = Accelerator(cpu=True)  # without cpu=True with GPUs
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=1)
    # The loader comes back as it is: it deals samples to ranks itself. Accelerate keeps its state.
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if os.path.exists(checkpoint):
        accelerator.load_state(checkpoint)

    done = 0
    while (epoch := loader.state_dict()["epoch"]) < EPOCHS:
        for batch in loader:
            x, y = batch["x"].to(accelerator.device), batch["y"].to(accelerator.device)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            done += 1
            if done == steps:
                accelerator.save_state(checkpoint)
                return
        accelerator.save_state(checkpoint)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.checkpoint, arguments.steps)
