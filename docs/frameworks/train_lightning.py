"""PyTorch Lightning on two processes: training, validation, and checkpoints in the middle of an epoch.

    python docs/frameworks/train_lightning.py FOLDER CHECKPOINTS

Started again, it goes on from the last checkpoint: Lightning keeps the loader's state, and puts it back.
"""

import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from mds_torch import StreamingDataLoader, StreamingDataset

EPOCHS = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.model(batch["x"]), batch["y"])

    def validation_step(self, batch, index):
        loss = nn.functional.mse_loss(self.model(batch["x"]), batch["y"])
        self.log("validation_loss", loss, batch_size=len(batch["y"]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def main(folder, checkpoints, steps):
    # Made before Lightning starts the other process: a dataset asks for its rank when it is read.
    train = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    validation = StreamingDataset(local=folder, batch_size=8)
    last = os.path.join(checkpoints, "last.ckpt")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=EPOCHS,
        max_steps=steps or -1,
        logger=False,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(checkpoints, every_n_train_steps=1, save_last=True)],
    )
    torch.manual_seed(1)
    trainer.fit(
        Regression(),
        StreamingDataLoader(train, batch_size=8, num_workers=1),
        StreamingDataLoader(validation, batch_size=8, num_workers=1),
        ckpt_path=last if os.path.exists(last) else None,
    )
    if trainer.is_global_zero and "validation_loss" in trainer.callback_metrics:
        print(f"validation loss {trainer.callback_metrics['validation_loss']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("checkpoints")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.checkpoints, arguments.steps)
