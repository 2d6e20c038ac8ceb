"""TrainerMixin: Hugging Face's Trainer reads a StreamingDataset, and resumes without reading anything again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from mds_torch.dataloader import StreamingDataLoader, same
from mds_torch.dataset import StreamingDataset

# What a Trainer's checkpoint (trainer_state.json) calls the loader's state.
_KEY = "mds_torch"


class TrainerMixin:
    """Make a `transformers.Trainer` that reads `StreamingDataset`s: every sample once over all ranks.

    Trainer alone deals the samples of an iterable dataset to its ranks itself, which a `StreamingDataset` has done
    already: it would leave out half of them on two ranks. With this, its loaders are `StreamingDataLoader`s, the
    loader's state is in each of its checkpoints, and `train(resume_from_checkpoint=...)` goes on there at once, where
    Trainer reads all that it had. Resume with as many ranks and the same batch size: Trainer counts by its own steps.

    The dataset gives what the model's `forward` takes (see `columns` and `transform`). With the `data_collator`
    `torch.utils.data.default_collate`, batches are built column by column. An evaluation counts at most ranks-1 samples
    twice, so that all ranks have as many batches.

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
        steps = _Steps(self._loader(self.train_dataset, self._train_batch_size, self.args.dataloader_drop_last), self)
        loader = DataLoader(steps, batch_size=None, collate_fn=same)
        loader._is_accelerate_prepared = True  # as StreamingDataLoader has it
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Give the loader of an evaluation's data, by its dataset or by its name."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        dataset = self.eval_dataset[dataset] if isinstance(dataset, str) else dataset
        if not isinstance(dataset, StreamingDataset):
            loader: DataLoader[Any] = super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
            return loader
        return self._loader(dataset, self.args.eval_batch_size)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Give the loader of a prediction's data."""
        if not isinstance(test_dataset, StreamingDataset):
            loader: DataLoader[Any] = super().get_test_dataloader(test_dataset)  # type: ignore[misc]
            return loader
        return self._loader(test_dataset, self.args.eval_batch_size)

    def num_examples(self, dataloader: Any) -> int:
        """Give how many samples a loader has, over all ranks."""
        dataset = dataloader.dataset
        dataset = dataset.loader.dataset if isinstance(dataset, _Steps) else dataset
        if not isinstance(dataset, StreamingDataset):
            number: int = super().num_examples(dataloader)  # type: ignore[misc]
            return number
        return dataset.epoch_size

    def _loader(self, dataset: StreamingDataset, batch_size: int, drop_last: bool = False) -> StreamingDataLoader:
        args = self.args
        return StreamingDataLoader(
            dataset,
            batch_size=batch_size,
            drop_last=drop_last,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )


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

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self._is_first:
            yield from repeat(None, self._resume())
        self._is_first = False
        kept = self._trainer.state.stateful_callbacks
        for batch in self.loader:
            kept[_KEY] = self.loader.state_dict()
            yield batch

    def _resume(self) -> int:
        """Load the state of the checkpoint that Trainer goes on from, if any; give how many batches it leaves out."""
        args, trainer = self._trainer.args, self._trainer.state
        state = trainer.stateful_callbacks.get(_KEY)
        if not trainer.global_step or state is None:
            return 0
        self.loader.load_state_dict(state)
        accumulated: int = args.gradient_accumulation_steps
        had: int = trainer.global_step % max(1, -(-len(self) // accumulated)) * accumulated
        if had and not args.ignore_data_skip:
            return had
        # An epoch from its beginning: the next one where the last batch of one has been had.
        dataset: Any = self.loader.dataset
        dataset.set_epoch(state["epoch"] + (not had and state["sample_in_epoch"] > 0))
        return 0
