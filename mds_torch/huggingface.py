"""TrainerMixin: Hugging Face's Trainer reads a StreamingDataset, and resumes without reading anything again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from mds_torch.dataloader import StreamingDataLoader, same
from mds_torch.dataset import StreamingDataset

# What a Trainer's checkpoint (trainer_state.json) calls the loader's state.
_KEY = "mds_torch"


class TrainerMixin:
    """Make a `transformers.Trainer` that reads `StreamingDataset`s: every sample once over all ranks.

    Trainer alone deals the samples of an iterable dataset to its ranks itself, which a `StreamingDataset` has done
    already: it would leave out half of them on two ranks. With this, training has a `StreamingDataLoader`, whose state
    is in each of Trainer's checkpoints: `train(resume_from_checkpoint=...)` goes on there at once, where Trainer reads
    all that it had. Resume with as many ranks and the same batch size, as Trainer counts by its own steps: else it is a
    ValueError. Evaluation and prediction read samples by their numbers, which Trainer deals and counts.

    The dataset gives what the model's `forward` takes (see `columns` and `transform`). With the `data_collator`
    `torch.utils.data.default_collate`, batches are built column by column.

    Example:
        >>> import transformers
        >>> class StreamingTrainer(TrainerMixin, transformers.Trainer):
        ...     pass
    """

    args: Any
    state: Any
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    _train_batch_size: int

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Give the loader of the training data."""
        if not isinstance(self.train_dataset, StreamingDataset):
            loader: DataLoader[Any] = super().get_train_dataloader()  # type: ignore[misc]
            return loader
        args, dataset = self.args, self.train_dataset
        if not dataset.pad and dataset.world.ranks > 1:
            raise ValueError("train_dataset: expected pad=True, as ranks that train together have as many batches")
        batches = StreamingDataLoader(
            dataset,
            batch_size=self._train_batch_size,
            drop_last=args.dataloader_drop_last,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        loader = DataLoader(_Steps(batches, self), batch_size=None, collate_fn=same)
        loader._is_accelerate_prepared = True  # as StreamingDataLoader has it
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Give the loader of an evaluation's data, by its dataset or by its name."""
        own = self.eval_dataset
        self.eval_dataset = {name: _by_id(one) for name, one in own.items()} if isinstance(own, dict) else _by_id(own)
        loader: DataLoader[Any] = super().get_eval_dataloader(_by_id(eval_dataset))  # type: ignore[misc]
        return loader

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Give the loader of a prediction's data."""
        loader: DataLoader[Any] = super().get_test_dataloader(_by_id(test_dataset))  # type: ignore[misc]
        return loader

    def num_examples(self, dataloader: Any) -> int:
        """Give how many samples a loader has, over all ranks."""
        dataset = dataloader.dataset
        number: int = dataset.samples if isinstance(dataset, _Steps) else super().num_examples(dataloader)  # type: ignore[misc]
        return number


class _ById(Dataset[Any]):
    """A dataset's samples by number, in the order of its first epoch: Trainer deals them to ranks itself.

    An evaluation must not count what is repeated for the sake of ranks, which only Trainer's own loaders can tell.
    """

    def __init__(self, dataset: StreamingDataset):
        self._dataset = dataset
        order = dataset.epoch_order(0)
        self._ids = order[: len(order)]

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, at: int) -> Any:
        return self._dataset[int(self._ids[at])]

    def __getitems__(self, places: list[int]) -> list[Any]:
        return self._dataset.__getitems__(self._ids[places].tolist())


def _by_id(dataset: Any) -> Any:
    return _ById(dataset) if isinstance(dataset, StreamingDataset) else dataset


class _Steps(IterableDataset[Any]):
    """A loader's batches, as Trainer takes them: to resume, it leaves out those that the model has had.

    In their place it gets nothing: the loader goes on where its state is.

    Args:
        loader: the loader.
        trainer: whose checkpoints keep the loader's state.
    """

    def __init__(self, loader: StreamingDataLoader, trainer: TrainerMixin):
        self.loader = loader
        self._trainer = trainer
        self._is_first = True

    @property
    def samples(self) -> int:
        """How many samples an epoch has, over all ranks."""
        dataset: Any = self.loader.dataset
        return int(dataset.epoch_size)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        shape = self._shape()
        if self._is_first:
            yield from repeat(None, self._resume(shape))
        self._is_first = False
        kept = self._trainer.state.stateful_callbacks
        for batch in self.loader:
            kept[_KEY] = {"loader": self.loader.state_dict(), **shape}
            yield batch

    def _shape(self) -> dict[str, int]:
        """Give what Trainer's steps depend on."""
        dataset, args = self.loader.dataset, self._trainer.args
        assert isinstance(dataset, StreamingDataset)
        assert self.loader.batch_size is not None
        return {
            "ranks": dataset.world.ranks,
            "batch_size": self.loader.batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
        }

    def _resume(self, shape: dict[str, int]) -> int:
        """Load the state of the checkpoint that Trainer goes on from, if any; give how many batches it leaves out.

        Raises:
            ValueError: it is of steps of another size.
        """
        trainer = self._trainer.state
        kept = trainer.stateful_callbacks.get(_KEY)
        if not trainer.global_step or kept is None:
            return 0
        expected = {name: kept[name] for name in shape}
        if shape != expected:
            raise ValueError(
                f"resume_from_checkpoint: Trainer counts by its own steps: expected {expected}, as the checkpoint has "
                f"it, found {shape}; resume with as many ranks and the same batch size"
            )
        state, accumulated = kept["loader"], shape["gradient_accumulation_steps"]
        self.loader.load_state_dict(state)
        if self._trainer.args.ignore_data_skip:
            dataset: Any = self.loader.dataset
            dataset.set_epoch(state["epoch"])  # from its beginning
            return 0
        had: int = trainer.global_step % max(1, -(-len(self) // accumulated)) * accumulated
        return had
