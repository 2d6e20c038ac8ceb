"""Packing token sequences while loading."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mds_core import MDSWriter, pack_tokens
from mds_torch import PackTokens, StreamingDataLoader, StreamingDataset

SAMPLES = 90


def document(number: int) -> Any:
    """Tokens that tell which document they are of, and where in it they are."""
    return np.arange(number * 7 % 23, dtype=np.int32) + 1000 * number


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 0 to 22 tokens in several shards."""
    folder: Path = tmp_path_factory.mktemp("documents") / "data"
    with MDSWriter(out=str(folder), columns={"ids": "ndarray:int32"}, size_limit=900) as writer:
        for number in range(SAMPLES):
            writer.write({"ids": document(number)})
    return folder


@pytest.fixture
def load(folder: Path) -> Callable[..., StreamingDataLoader]:
    """Make a loader: `load(workers=0, **arguments of the dataset)`."""

    def load(workers: int = 0, **arguments: Any) -> StreamingDataLoader:
        dataset = StreamingDataset(local=str(folder), shuffle=True, **arguments)
        pack = PackTokens("ids", 16, split=False, pad=-5, end=-1)
        return StreamingDataLoader(dataset, batch_size=8, num_workers=workers, collate_fn=pack)

    return load


def values(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in batch.items()}


def tokens_of(batches: list[dict[str, torch.Tensor]]) -> list[int]:
    return sorted(token for batch in batches for token in batch["tokens"][batch["documents"] >= 0].tolist())


def test_a_batch_is_what_pack_tokens_makes_of_it() -> None:
    samples = [{"ids": document(number), "other": "text"} for number in range(5)]
    batch = PackTokens("ids", 16, split=False, pad=-5, end=-1)(samples)
    packed = pack_tokens([document(number) for number in range(5)], 16, split=False, pad=-5, end=-1)
    assert list(batch) == ["tokens", "documents", "positions"]
    for name, tensor in batch.items():
        assert tensor.dtype == torch.int64
        assert tensor.tolist() == getattr(packed, name).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_who_stops_and_resumes_gets_the_rows_of_who_did_not(
    load: Callable[..., StreamingDataLoader], workers: int
) -> None:
    whole = list(load(workers))
    assert len({len(batch["tokens"]) for batch in whole}) > 1
    assert tokens_of(whole) == sorted([*np.concatenate([document(n) for n in range(SAMPLES)]), *[-1] * SAMPLES])
    stopped = load(workers)
    batches = iter(stopped)
    first = [next(batches) for _ in range(4)]
    state = json.loads(json.dumps(stopped.state_dict()))
    batches.close()
    resumed = load(workers)
    resumed.load_state_dict(state)
    assert list(map(values, first + list(resumed))) == list(map(values, whole))


def test_another_number_of_ranks_goes_on_with_the_documents_that_are_left(
    load: Callable[..., StreamingDataLoader],
) -> None:
    whole = load()
    batches = iter(whole)
    first = [next(batches) for _ in range(4)]
    state = whole.state_dict()
    rest = []
    for rank in range(2):
        loader = load(rank=rank, world_size=2, local_world_size=2)
        loader.load_state_dict(state)
        rest += list(loader)
    assert tokens_of(first + rest) == tokens_of(first + list(batches))


def test_it_can_be_pickled() -> None:
    pack = PackTokens("ids", 16, end=2)
    again = pickle.loads(pickle.dumps(pack))
    assert again == pack
    assert values(again([{"ids": [5, 6]}])) == values(pack([{"ids": [5, 6]}]))


def test_what_is_wrong_is_said_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="length: expected a whole number of at least 1, found 0"):
        PackTokens("ids", 0)
    with pytest.raises(ValueError, match="end: expected a whole number"):
        PackTokens("ids", 4, end="</s>")  # type: ignore[arg-type]


def test_a_sample_without_the_column_is_named() -> None:
    with pytest.raises(ValueError, match=r"sample 1 of the batch: expected a column 'ids', found \['text'\]"):
        PackTokens("ids", 4)([{"ids": [1]}, {"text": "a"}])
