r"""torchdata's StatefulDataLoader, instead of StreamingDataLoader.

    python -m torch.distributed.run --standalone --nproc-per-node 2 \
        docs/frameworks/train_torchdata.py FOLDER CHECKPOINTS

Each rank keeps the state of its own workers, and goes on from there with as many ranks and workers as before.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

from mds_torch import StreamingDataset

EPOCHS = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


def main(folder, checkpoints, steps):
    dist.init_process_group("gloo")  # "nccl" with GPUs
    torch.manual_seed(1)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    # The batch size twice: the dataset deals its samples to ranks and workers in such portions.
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    loader = StatefulDataLoader(dataset, batch_size=8, num_workers=2)

    first = 0
    checkpoint = os.path.join(checkpoints, f"{dist.get_rank()}.pt")
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        first = state["epoch"]

    done = 0
    for epoch in range(first, EPOCHS):
        losses = []  # none, where the checkpoint is of an epoch's end
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            done += 1
            if done == steps:
                break
        if done == steps:
            break
        if losses and dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}")
    torch.save(
        {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
            "epoch": epoch,
        },
        checkpoint,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("checkpoints")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()
    os.makedirs(arguments.checkpoints, exist_ok=True)
    main(arguments.folder, arguments.checkpoints, arguments.steps)
