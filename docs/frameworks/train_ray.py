"""Ray Train on two workers, with Ray's own checkpoints.

    python docs/frameworks/train_ray.py FOLDER STORAGE

Started again with the same STORAGE, it goes on from the last checkpoint.
"""

import argparse
import os
import tempfile

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

from mds_torch import StreamingDataLoader, StreamingDataset

EPOCHS = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


def train(options):
    torch.manual_seed(1)
    model = prepare_model(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    # Ray has set up torch.distributed, and the data set asks that. prepare_data_loader is not needed.
    dataset = StreamingDataset(local=options["folder"], shuffle=True, batch_size=8)
    loader = StreamingDataLoader(dataset, batch_size=8)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"))
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
            done += 1
            if done == options["steps"]:
                break
        report(model, optimizer, loader, {"epoch": epoch, "loss": loss.item()})
        if done == options["steps"]:
            return


def report(model, optimizer, loader, metrics):
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),  # the same on every rank
            }
            torch.save(state, os.path.join(folder, "state.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("storage")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": os.path.abspath(arguments.folder), "steps": arguments.steps},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(name="table", storage_path=os.path.abspath(arguments.storage)),
    )
    print(trainer.fit().metrics)
