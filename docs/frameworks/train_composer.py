"""Composer on two processes, with its checkpoints, which hold the data set's state.

    composer -n 2 docs/frameworks/train_composer.py FOLDER CHECKPOINTS

Started again, it goes on from the last checkpoint.
"""

import argparse
import os

import torch
from composer import Trainer
from composer.models import ComposerModel
from torch import nn

from mds_torch import StreamingDataLoader, StreamingDataset

EPOCHS = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


class Regression(ComposerModel):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def forward(self, batch):
        return self.model(batch["x"])

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs, batch["y"])


def main(folder, checkpoints, steps):
    torch.manual_seed(1)
    model = Regression()
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    trainer = Trainer(
        model=model,
        train_dataloader=StreamingDataLoader(dataset, batch_size=8, num_workers=1),
        optimizers=torch.optim.Adam(model.parameters(), lr=0.05),
        max_duration=f"{steps}ba" if steps else f"{EPOCHS}ep",
        device="cpu",
        run_name="table",
        save_folder=checkpoints,
        save_interval="1ba",
        save_overwrite=True,
        autoresume=not steps,
        progress_bar=False,
    )
    trainer.fit()
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"loss {trainer.state.loss.item():.4f} after {trainer.state.timestamp.batch.value} batches")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("checkpoints")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.checkpoints, arguments.steps)
