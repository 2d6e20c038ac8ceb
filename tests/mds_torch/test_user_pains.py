"""What users of mosaicml-streaming ran into, and must not run into here."""

import functools
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from mds_torch import StreamingDataLoader, StreamingDataset

Make = Callable[..., Path]


@pytest.fixture
def ten(make: Make) -> str:
    return str(make({"n": "int64"}, ({"n": n} for n in range(10))))


def test_ten_samples_on_four_ranks_deliver_twelve_and_none_is_missing(ten: str) -> None:
    counts: Counter[int] = Counter()
    for rank in range(4):
        dataset = StreamingDataset(local=ten, shuffle=True, rank=rank, world_size=4)
        ids = [i for batch in StreamingDataLoader(dataset, batch_size=2) for i in batch["n"].tolist()]
        assert len(ids) == len(dataset) == 3
        counts.update(ids)
    assert counts.total() == 12
    assert set(counts) == set(range(10))
    assert max(counts.values()) == 2


def test_a_list_column_as_json_is_what_default_collation_makes_of_it(make: Make) -> None:
    # Transposed, for torch takes a list for a structure; an ndarray column gives a row a sample.
    rows = [{"j": [n, n + 1, n + 2], "a": [n, n + 1, n + 2]} for n in range(4)]
    dataset = StreamingDataset(local=str(make({"j": "json", "a": "ndarray:int64"}, rows)))
    (batch,) = StreamingDataLoader(dataset, batch_size=4)
    right = default_collate([dataset[i] for i in range(4)])
    assert [column.tolist() for column in batch["j"]] == [column.tolist() for column in right["j"]]
    assert [column.tolist() for column in batch["j"]] == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert batch["a"].tolist() == right["a"].tolist() == [row["a"] for row in rows]


MANY = """
import multiprocessing, os, sys
from mds_torch import StreamingDataLoader, StreamingDataset

def construct(start, out):
    start.wait()
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True)
    ids = [i for batch in StreamingDataLoader(dataset, batch_size=7, num_workers=0) for i in batch["n"].tolist()]
    out.put(sorted(ids) == list(range(30)))

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    start, out = context.Event(), context.Queue()
    processes = [context.Process(target=construct, args=(start, out)) for _ in range(20)]
    for process in processes:
        process.start()
    start.set()
    print(sum(out.get(timeout=60) for _ in processes))
    for process in processes:
        process.join()
"""


def test_twenty_processes_construct_and_read_at_once(thirty: str, run_script: Callable[..., Any]) -> None:
    ended = run_script(MANY, thirty)
    assert ended.stdout.strip() == "20", ended.stderr
    assert ended.stderr == ""


# It mostly waits: an interrupt that comes while Python runs a __del__ is printed and forgotten.
TRAIN = """
import sys
import time
from mds_torch import StreamingDataLoader, StreamingDataset
dataset = StreamingDataset(local=sys.argv[1], shuffle=True)
loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
for epoch in range(10**9 if sys.argv[2] == "forever" else 2):
    count = 0
    for batch in loader:
        count += len(batch["n"])
        time.sleep(0.02)
    print(count, flush=True)
"""


@pytest.fixture
def training(thirty: str, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A training process that is in its second epoch, and never ends."""
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    process = subprocess.Popen(
        [sys.executable, str(program), thirty, "forever"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "30\n"
    yield process
    process.kill()
    process.communicate(timeout=30)


def test_after_kill_9_the_workers_end_and_the_next_start_works(
    training: "subprocess.Popen[str]", thirty: str, run_script: Callable[..., Any]
) -> None:
    before = {path.name for path in Path(thirty).iterdir()}
    training.send_signal(signal.SIGKILL)
    # The workers hold the pipe: it is closed when they have ended, too.
    training.communicate(timeout=30)
    for _ in range(2):
        ended = run_script(TRAIN, thirty, "twice")
        assert ended.stdout == "30\n30\n", ended.stderr
    assert {path.name for path in Path(thirty).iterdir()} == before


def test_after_ctrl_c_everything_ends(training: "subprocess.Popen[str]") -> None:
    os.killpg(training.pid, signal.SIGINT)  # the terminal's way: to the whole group
    training.communicate(timeout=30)
    assert training.returncode != 0


def test_datasets_are_made_without_a_process_group_and_without_a_gpu(thirty: str) -> None:
    dataset = StreamingDataset(local=thirty)
    list(StreamingDataLoader(dataset, batch_size=4))
    assert not torch.distributed.is_initialized()
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_epochs_end_and_the_next_begins_soon(method: str, thirty: str) -> None:
    dataset = StreamingDataset(local=thirty, shuffle=True)
    loader = StreamingDataLoader(
        dataset, batch_size=4, num_workers=1, persistent_workers=True, multiprocessing_context=method, timeout=60
    )
    assert len(list(loader)) == 8
    for _ in range(3):
        start = time.monotonic()
        next(batches := iter(loader))
        assert time.monotonic() - start < 3  # a second on a quiet machine
        assert len(list(batches)) == 7


class Picky(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        return refuse_seven(super().__getitem__(at))


def refuse_seven(sample: Any) -> Any:
    if sample["n"] == 7:
        raise OSError("broken image")
    return sample


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Picky, functools.partial(StreamingDataset, transform=refuse_seven)])
def test_an_error_of_a_users_function_names_the_sample(kind: Any, workers: int, thirty: str) -> None:
    loader = StreamingDataLoader(kind(local=thirty, batch_size=4), batch_size=4, num_workers=workers)
    with pytest.raises(OSError, match="broken image") as caught:
        list(loader)
    text = "".join(traceback.format_exception(caught.value))
    assert "raised for sample 7, which dataset.reader[7] gives as stored" in text
    assert loader.dataset.reader[7]["n"] == 7
