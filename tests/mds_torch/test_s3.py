"""Training from an object store."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mds_core import MDSWriter
from mds_torch import Stream, StreamingDataLoader, StreamingDataset
from tests.mds_core.storage.servers import environment_of, s3_server


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A data set of 90 samples in a bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with s3_server("a-bucket") as environment, environment_of(environment):
        path = f"s3://a-bucket/{uuid.uuid4().hex}"  # the server's memory is the process's
        with MDSWriter(out=f"{path}/train", columns={"n": "int64", "s": "str"}, size_limit=400) as writer:
            for n in range(90):
                writer.write({"n": n, "s": "x" * (n % 7)})
        yield path


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_each_sample_comes_once_and_resumes(options: dict[str, int], remote: str) -> None:
    def loader() -> StreamingDataLoader:
        dataset = StreamingDataset(remote=remote, split="train", shuffle=True, batch_size=7)
        return StreamingDataLoader(dataset, batch_size=7, **options)

    first = loader()
    ids = [i for batch in first for i in batch["n"].tolist()]
    assert sorted(ids) == list(range(90))
    second, third = loader(), loader()
    iterator = iter(second)
    had = [i for _ in range(4) for i in next(iterator)["n"].tolist()]
    third.load_state_dict(second.state_dict())
    assert had + [i for batch in third for i in batch["n"].tolist()] == ids


def test_streams_may_lie_in_stores(remote: str) -> None:
    dataset = StreamingDataset(streams=[Stream(remote=f"{remote}/train", repeat=0.5)])
    assert len(list(dataset)) == 45
