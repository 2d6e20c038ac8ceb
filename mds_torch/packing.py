"""PackTokens: batches of packed token sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mds_core.packing import pack_tokens


@dataclass(frozen=True)
class PackTokens:
    """A `collate_fn` that packs the token sequences of a batch of samples into rows of one length.

    A batch becomes {"tokens", "documents", "positions"}, int64[rows, length] each, as `mds_core.pack_tokens` makes
    them; documents are numbered within the batch. It is a function of the batch alone, so that a loader resumes as
    exactly as without it. How many rows there are differs from batch to batch: who needs a fixed number packs in
    Spark, before the write.

    Args:
        column: the column that holds the tokens, a 1-D array of integers in each sample.
        length: tokens a row.
        split: cut documents where a row ends; without, those that fit in a row stay whole.
        pad: the token that fills rows.
        end: a token to append to each document.

    Raises:
        ValueError: no such length or token; when called, a sample has no such column, or no tokens in it.

    Example:
        >>> pack = PackTokens("tokens", length=4)  # the collate_fn of a StreamingDataLoader
        >>> pack([{"tokens": [5, 6, 7]}, {"tokens": [8, 9]}])["tokens"]
        tensor([[5, 6, 7, 8],
                [9, 0, 0, 0]])
    """

    column: str
    length: int
    split: bool = True
    pad: int = 0
    end: int | None = None

    def __post_init__(self) -> None:
        self._pack([])  # refuses what is wrong here, and not in a worker

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Pack a batch."""
        for number, sample in enumerate(samples):
            if self.column not in sample:
                raise ValueError(
                    f"PackTokens: sample {number} of the batch: expected a column {self.column!r}, found {[*sample]}"
                )
        return self._pack([sample[self.column] for sample in samples])

    def _pack(self, documents: Sequence[Any]) -> dict[str, torch.Tensor]:
        packed = pack_tokens(documents, self.length, split=self.split, pad=self.pad, end=self.end)
        return {name: torch.from_numpy(getattr(packed, name)) for name in ("tokens", "documents", "positions")}
