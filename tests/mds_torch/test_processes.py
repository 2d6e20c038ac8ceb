"""Real processes: ranks of torchrun that are killed and resumed, errors that reach all, and interrupted loops."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mds_torch import StreamingDataset

Make = Callable[..., Path]
RunScript = Callable[..., Any]
SAMPLES = 203


@pytest.fixture
def folder(make: Make) -> str:
    """A data set of 203 samples in shards of 20."""
    rows = ({"n": n, "s": "x" * (n % 5)} for n in range(SAMPLES))
    return str(make({"n": "int64", "s": "str"}, rows, size_limit=700))


def torchrun(ranks: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


# A rank writes what it had of each batch, and rank 0 a checkpoint after each, which is left whole by a kill.
TRAIN = """
import json, os, signal, sys
import torch.distributed as dist
from mds_torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    folder, out, kill_after, workers, start = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dataset = StreamingDataset(
        local=folder, shuffle=True, batch_size=4, shuffle_block_size=60, num_canonical_nodes=2
    )
    how = {"num_workers": workers, "multiprocessing_context": start} if workers else {}
    loader = StreamingDataLoader(dataset, batch_size=4, **how)
    checkpoint = f"{out}/checkpoint.json"
    if os.path.exists(checkpoint):
        with open(checkpoint) as file:
            loader.load_state_dict(json.load(file))
    while loader.state_dict()["epoch"] < 2:
        epoch = loader.state_dict()["epoch"]
        for step, batch in enumerate(loader):
            had = [epoch, batch["n"].tolist()]
            if step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)  # this batch is lost, and comes again
            all_had = [None] * ranks
            dist.all_gather_object(all_had, had)
            states = [None] * ranks
            dist.all_gather_object(states, loader.state_dict())
            assert all(state == states[0] for state in states)
            if rank == 0:
                with open(checkpoint + ".new", "w") as file:
                    json.dump(states[0], file)
                os.rename(checkpoint + ".new", checkpoint)
                with open(f"{out}/had.jsonl", "a") as file:
                    print(json.dumps(all_had), file=file)
            dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("worlds", "workers", "start"),
    [
        ([1, 2], 0, "fork"),
        ([2, 3], 2, "fork"),
        ([3, 1], 1, "spawn"),
        ([4, 2], 0, "fork"),
        ([2, 4, 1], 1, "fork"),
    ],
)
def test_ranks_that_are_killed_go_on_in_another_world(
    worlds: list[int], workers: int, start: str, folder: str, run_script: RunScript, tmp_path: Path
) -> None:
    for number, ranks in enumerate(worlds):
        last = number == len(worlds) - 1
        kill_after = 10**6 if last else 7
        arguments = (folder, tmp_path, kill_after, workers, start)
        ended = run_script(TRAIN, *arguments, launcher=torchrun(ranks), OMP_NUM_THREADS="1")
        assert (ended.returncode == 0) == last, ended.stderr
    steps = [json.loads(line) for line in (tmp_path / "had.jsonl").read_text().splitlines()]
    for epoch in range(2):
        had = [step for step in steps if step[0][0] == epoch]
        ids = [i for step in had for _, batch in step for i in batch]
        assert set(ids) == set(range(SAMPLES))
        assert len(ids) < SAMPLES + max(worlds)
        # The order is the one of no world at all: each step is its next part.
        dataset = StreamingDataset(local=folder, shuffle=True, shuffle_block_size=60, num_canonical_nodes=2)
        right = dataset.epoch_order(epoch)[:].tolist()
        first = 0
        for step in had[:-1]:
            size = sum(len(batch) for _, batch in step)
            assert sorted(i for _, batch in step for i in batch) == sorted(right[first : first + size])
            first += size


# Errors

READ = """
import sys
import torch.distributed as dist
from mds_torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    if len(sys.argv) > 3:
        dist.init_process_group("gloo")
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=4)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=int(sys.argv[2]))
    print(sum(len(batch["n"]) for batch in loader), "samples", flush=True)
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("harm", ["missing", "short", "no shard"])
def test_a_bad_shard_ends_every_process_with_its_name(
    harm: str, ranks: int, workers: int, folder: str, run_script: RunScript
) -> None:
    path = sorted(Path(folder).glob("*.mds"))[4]
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if harm == "short" else b"\xff" * path.stat().st_size)
    began = time.monotonic()
    launcher = torchrun(ranks) if ranks > 1 else ()
    ended = run_script(READ, folder, workers, *(["ranks"] if ranks > 1 else []), launcher=launcher)
    assert ended.returncode != 0
    assert path.name in ended.stderr
    assert f"{SAMPLES} samples" not in ended.stdout
    assert time.monotonic() - began < 60


# An interrupt that comes while Python runs a __del__, as torch's workers have them at an epoch's end, is printed and
# forgotten: a loop that mostly waits gets it where it counts.
INTERRUPTED = """
import sys
import time
from torch.utils.data import DataLoader
from mds_torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    dataset = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=4)
    kind = {"ours": StreamingDataLoader, "torch": DataLoader}[sys.argv[2]]
    loader = kind(dataset, batch_size=4, num_workers=int(sys.argv[3]), persistent_workers=sys.argv[4] == "1")
    try:
        while True:
            for batch in loader:
                print("a batch", flush=True)
                time.sleep(0.05)
    except KeyboardInterrupt:
        print("\\ninterrupted", flush=True)  # it may have been in the middle of a line
    dataset.set_epoch(0)
    loader = kind(dataset, batch_size=4, num_workers=int(sys.argv[3]))
    print(sorted(i for batch in loader for i in batch["n"].tolist()) == list(range(203)), flush=True)
"""


@pytest.mark.parametrize(("kind", "workers", "stay"), [("ours", 0, 0), ("ours", 2, 0), ("ours", 2, 1), ("torch", 2, 0)])
def test_an_interrupted_loop_can_be_begun_again(
    kind: str, workers: int, stay: int, folder: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(INTERRUPTED)
    # In a group of its own, which gets what a terminal sends: workers are interrupted, too.
    process = subprocess.Popen(
        [sys.executable, str(script), folder, kind, str(workers), str(stay)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for _ in range(20):
        assert process.stdout.readline() == "a batch\n"
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert out.splitlines()[-2:] == ["interrupted", "True"]


def test_a_group_that_is_killed_leaves_nothing_in_the_way(folder: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(READ)
    before = set(os.listdir("/dev/shm"))
    for _ in range(4):
        process = subprocess.Popen([sys.executable, str(script), folder, "2"], start_new_session=True)
        time.sleep(3.5)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    ended = subprocess.run([sys.executable, str(script), folder, "2"], capture_output=True, text=True, timeout=60)
    assert ended.stdout == f"{SAMPLES} samples\n", ended.stderr
    assert {name for name in set(os.listdir("/dev/shm")) - before if "mds" in name} == set()
