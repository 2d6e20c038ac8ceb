"""torchrun and DistributedDataParallel, with a checkpoint after each step.

    python -m torch.distributed.run --standalone --nproc-per-node 2 docs/frameworks/train_ddp.py FOLDER CHECKPOINT

Killed at any moment, and started again by the same command, it goes on where the checkpoint is; also with another
--nproc-per-node.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mds_torch import StreamingDataLoader, StreamingDataset

EPOCHS = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


def save(path, **state):
    # First beside it, so that a kill leaves the old checkpoint or the new one, and nothing between.
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def main(folder, checkpoint, steps):
    dist.init_process_group("gloo")  # "nccl" with GPUs
    torch.manual_seed(1)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    # The data set asks torch.distributed who it is.
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=1)

    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])

    done = 0
    while (epoch := loader.state_dict()["epoch"]) < EPOCHS:
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                # The loader's state is the same on every rank.
                save(
                    checkpoint,
                    model=model.module.state_dict(),
                    optimizer=optimizer.state_dict(),
                    loader=loader.state_dict(),
                )
            done += 1
            if done == steps:
                break
        if done == steps:
            break
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.checkpoint, arguments.steps)
