"""Hugging Face's Trainer, in this process alone: evaluation, prediction, and what can't be resumed.

tests/docs/test_frameworks.py trains with it on two ranks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import default_collate
from transformers import EvalPrediction, Trainer, TrainingArguments

from mds_torch import StreamingDataset, TrainerMixin

Make = Callable[..., Path]


class Model(nn.Module):
    """Writes down which samples it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))
        self.seen: list[int] = []

    def forward(self, n: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen += n.tolist()
        found = self.weight * n
        return {"loss": (found - n).square().mean(), "logits": found}


class StreamingTrainer(TrainerMixin, Trainer):
    pass


def trainer(folder: str, out: Path, model: Model | None = None, **options: Any) -> Any:
    arguments = {
        "use_cpu": True, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_train_epochs": 2,
        "learning_rate": 1e-4, "label_names": ["n"], "disable_tqdm": True, "report_to": "none", "save_strategy": "no",
    }  # fmt: skip
    keep = {key: options.pop(key) for key in ("eval_dataset", "compute_metrics", "train") if key in options}
    train = keep.pop("train", None) or StreamingDataset(local=folder, columns=["n"], shuffle=True, batch_size=4)
    return StreamingTrainer(
        Model() if model is None else model,
        TrainingArguments(str(out), **{**arguments, **options}),
        data_collator=default_collate,
        train_dataset=train,
        **keep,
    )


def order(folder: str, *epochs: int) -> list[int]:
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    return [i for epoch in epochs for i in dataset.epoch_order(epoch)[:].tolist()]


def evaluated(folder: str) -> StreamingDataset:
    return StreamingDataset(local=folder, columns=["n"], batch_size=4)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_evaluation_counts_each_sample_once(workers: int, thirty: str, tmp_path: Path) -> None:
    def metrics(found: EvalPrediction) -> dict[str, float]:
        assert found.predictions.tolist() == (np.arange(30) * np.float32(0.5)).tolist()
        return {"count": len(found.predictions)}

    persistent = {"dataloader_num_workers": workers, "dataloader_persistent_workers": workers > 0}
    both = {"a": evaluated(thirty), "b": evaluated(thirty)}
    one = trainer(thirty, tmp_path, eval_dataset=both, compute_metrics=metrics, **persistent)
    # 30 samples in batches of 4: the last has 2.
    right = np.square(0.5 * np.arange(30)).mean()
    for found, name in ((one.evaluate(), "eval_a"), (one.evaluate(evaluated(thirty)), "eval")):
        assert found[f"{name}_loss"] == pytest.approx(right)
        assert found[f"{name}_count"] == 30
    assert len(one.predict(evaluated(thirty)).predictions) == 30


def test_an_evaluation_in_the_middle_of_an_epoch_changes_nothing(thirty: str, tmp_path: Path) -> None:
    model = Model()
    dataset = StreamingDataset(local=thirty, columns=["n"], shuffle=True, batch_size=4)
    trainer(thirty, tmp_path, model, eval_dataset=dataset, train=dataset, eval_strategy="steps", eval_steps=3).train()
    assert model.seen == order(thirty, 0, 1)


@pytest.mark.parametrize("save_steps", [3, 4, 8])
def test_what_is_resumed_goes_on_exactly(save_steps: int, thirty: str, tmp_path: Path) -> None:
    every = {"save_strategy": "steps", "save_steps": save_steps, "num_train_epochs": 3}
    trainer(thirty, tmp_path, **every).train()
    for step in range(save_steps, 24, save_steps):
        model = Model()
        trainer(thirty, tmp_path, model, **every).train(resume_from_checkpoint=f"{tmp_path}/checkpoint-{step}")
        epoch, batches = divmod(step, 8)  # an epoch has eight batches
        assert model.seen == order(thirty, epoch)[4 * batches :] + order(thirty, *range(epoch + 1, 3))


def test_steps_of_another_size_are_refused(thirty: str, tmp_path: Path) -> None:
    trainer(thirty, tmp_path, save_strategy="steps", save_steps=3).train()
    for change in ({"per_device_train_batch_size": 5}, {"gradient_accumulation_steps": 2}):
        again = trainer(thirty, tmp_path, **change)
        with pytest.raises(
            ValueError, match=r"expected \{.*\}, as the checkpoint has it, found .*; resume with as many"
        ):
            again.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-3")


def test_other_datasets_are_read_as_ever(thirty: str, tmp_path: Path) -> None:
    plain = [{"n": torch.tensor(float(n))} for n in range(8)]
    model = Model()
    one = trainer(thirty, tmp_path, model, train=plain, eval_dataset=plain, num_train_epochs=1)
    one.train()
    assert sorted(model.seen) == list(range(8))
    assert one.num_examples(one.get_eval_dataloader()) == 8
