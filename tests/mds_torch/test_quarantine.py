"""on_error="quarantine": a bad shard does not end a run, and no rank has less than others."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mds_core import FormatError, MDSReader
from mds_torch import StreamingDataLoader, StreamingDataset
from tests.mds_torch.remote import Remote, remote_data

SAMPLES = 200


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    with remote_data() as remote:
        remote.write(SAMPLES, hashes=["xxh64"])
        yield remote


def bad_ids(remote: Remote, how: str, numbers: list[int]) -> list[int]:
    """Break some shards, and give the ids of their samples."""
    reader = MDSReader(remote.path)
    for number in numbers:
        name = reader.shards[number].raw_data.basename
        data = reader.storage.read(name)
        assert data is not None
        reader.storage.delete(name)
        if how == "cut":
            reader.storage.put(name, [data[:-1]])
        elif how == "flipped":
            reader.storage.put(name, [data[:-1], b"\1"])
    return [i for number in numbers for i in range(reader.starts[number], reader.starts[number + 1])]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_bad_shards_are_left_out_on_all_ranks_alike(
    shuffle: bool, how: str, workers: int, remote: Remote, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = list(range(SAMPLES))
    bad = bad_ids(remote, how, [2, 3])

    def dataset(rank: int, local: str) -> StreamingDataset:
        return StreamingDataset(
            remote=remote.path, local=str(tmp_path / local), rank=rank, world_size=2, shuffle=shuffle, batch_size=5,
            on_error="quarantine", validate_hash="xxh64", download_retry=0, num_canonical_nodes=1,
        )  # fmt: skip

    batches = []
    with caplog.at_level(logging.ERROR, "mds_torch"):
        for rank in range(2):
            one = dataset(rank, f"local {rank}")
            loader = StreamingDataLoader(one, batch_size=5, num_workers=workers)
            batches.append([batch["n"].tolist() for batch in loader])
            assert len(batches[-1]) == len(loader) == SAMPLES // 10
            assert {len(batch) for batch in batches[-1]} == {5}
            if shuffle or how != "missing":
                assert sorted(i for ids in one.quarantined.values() for i in ids) == bad
                assert all(path.startswith(remote.path) for path in one.quarantined)
    had = [i for batch in zip(*batches, strict=True) for part in batch for i in part]
    assert set(had) == set(good) - set(bad)
    # All others stand where they would stand.
    order = dataset(0, "local 0").epoch_order(0)[:].tolist()
    assert [i for i, wanted in zip(had, order, strict=True) if wanted not in bad] == [i for i in order if i not in bad]
    if not workers:
        assert "is left out, samples" in caplog.text


def test_by_itself_a_bad_shard_is_an_error(remote: Remote, tmp_path: Path) -> None:
    bad = bad_ids(remote, "cut", [1])
    dataset = StreamingDataset(remote=remote.path, local=str(tmp_path / "local"), download_retry=0)
    with pytest.raises(FormatError, match=r"could not be fetched in 1 try.*bytes: expected"):
        list(dataset)
    tolerant = StreamingDataset(
        remote=remote.path,
        local=str(tmp_path / "local"),
        download_retry=0,
        on_error="quarantine",
        validate_hash="xxh64",
    )
    with pytest.raises(FormatError, match="bytes: expected"):
        tolerant[bad[0]]


def test_a_data_set_of_bad_shards_alone_is_an_error(remote: Remote, tmp_path: Path) -> None:
    bad_ids(remote, "cut", list(range(len(MDSReader(remote.path).shards))))
    dataset = StreamingDataset(
        remote=remote.path, local=str(tmp_path / "local"), download_retry=0, on_error="quarantine"
    )
    with pytest.raises(FormatError, match="bytes: expected"):
        list(dataset)


def test_a_local_data_set_has_a_quarantine_too(remote: Remote, tmp_path: Path) -> None:
    reader = MDSReader(remote.path)
    for name in reader.storage.list():
        (tmp_path / name).write_bytes(reader.storage.read(name) or b"")
    (tmp_path / reader.shards[0].raw_data.basename).write_bytes(b"")
    dataset = StreamingDataset(local=str(tmp_path), on_error="quarantine")
    assert len(list(dataset)) == SAMPLES
    assert list(dataset.quarantined.values()) == [range(reader.starts[1])]


def test_wrong_ways_are_named(remote: Remote) -> None:
    with pytest.raises(ValueError, match="on_error: expected one of raise, quarantine, found 'ignore'"):
        StreamingDataset(remote=remote.path, on_error="ignore")
    with pytest.raises(ValueError, match="on_error: expected raise where there is a filter"):
        StreamingDataset(remote=remote.path, on_error="quarantine", filter=lambda ids: ids > 3)
