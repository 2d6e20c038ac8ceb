"""Hugging Face Trainer: checkpoints every few steps, and resume_from_checkpoint without reading anything again.

    python -m torch.distributed.run --standalone --nproc-per-node 2 docs/frameworks/train_transformers.py FOLDER OUTPUT

Started again, it goes on from the last checkpoint.
"""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from mds_torch import StreamingDataset, TrainerMixin

EPOCHS = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x, y):
        found = self.layer(x).squeeze(1)
        return {"loss": nn.functional.mse_loss(found, y), "logits": found}


class StreamingTrainer(TrainerMixin, Trainer):
    """The line that makes the difference: Trainer alone would read half of the samples on two ranks."""


class Stop(TrainerCallback):
    """Ends the training after so many steps, as a lost machine would."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **others):
        if state.global_step == self.steps:
            control.should_save = control.should_training_stop = True


def main(folder, output, steps):
    os.makedirs(output, exist_ok=True)
    torch.manual_seed(1)
    arguments = TrainingArguments(
        output,
        use_cpu=True,  # not with GPUs
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=EPOCHS,
        label_names=["y"],
        learning_rate=0.05,
        save_steps=2,
        dataloader_num_workers=1,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = StreamingTrainer(
        Model(),
        arguments,
        # Whole batches, column by column, which no other collator has.
        data_collator=default_collate,
        train_dataset=StreamingDataset(local=folder, shuffle=True, batch_size=8),
        eval_dataset=StreamingDataset(local=folder, batch_size=8),
        callbacks=[Stop(steps)],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(output))
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"loss {loss:.4f} after {trainer.state.global_step} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.output, arguments.steps)
