"""Lightning's epochs, in this process alone; tests/docs/test_frameworks.py trains with it on two ranks."""

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from mds_torch import StreamingDataLoader, StreamingDataset


class Module(lightning.LightningModule):
    """Writes down which samples it is trained on, by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.5))
        self.seen: dict[int, list[int]] = {}

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.seen.setdefault(self.current_epoch, []).extend(batch["n"].tolist())
        return (self.weight * batch["n"]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def fit(
    folder: str, out: Path, every: dict[str, int], checkpoint: str | None = None, **options: Any
) -> dict[int, list[int]]:
    """Train until four epochs have been; give what each had."""
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(out, filename="{epoch}", save_top_k=-1, **every)], **options,
    )  # fmt: skip
    dataset = StreamingDataset(local=folder, columns=["n"], shuffle=True, batch_size=4)
    trainer.fit(module, StreamingDataLoader(dataset, batch_size=4), ckpt_path=checkpoint)
    return module.seen


# An epoch has eight batches. Lightning puts a loader's state back only if the checkpoint is of steps.
@pytest.mark.parametrize(
    ("every", "options"),
    [
        ({"every_n_epochs": 1}, {}),
        ({"every_n_train_steps": 8}, {}),
        ({"every_n_epochs": 1}, {"limit_train_batches": 3}),
        ({"every_n_train_steps": 3}, {"limit_train_batches": 3}),
    ],
    ids=str,
)
def test_a_checkpoint_of_an_epochs_end_goes_on_with_the_next_epoch(
    every: dict[str, int], options: dict[str, Any], thirty: str, tmp_path: Path
) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True, batch_size=4)
    samples = 4 * options.get("limit_train_batches", 8)
    right = {epoch: dataset.epoch_order(epoch)[:].tolist()[:samples] for epoch in range(4)}
    assert fit(thirty, tmp_path, every, **options) == right
    for epoch in (0, 2):
        found = fit(thirty, tmp_path / str(epoch), every, f"{tmp_path}/epoch={epoch}.ckpt", **options)
        assert found == {later: right[later] for later in range(epoch + 1, 4)}
