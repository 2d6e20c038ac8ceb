"""The scripts of docs/frameworks, each with its framework: every sample once, and resumed exactly.

What the ranks were trained on is written down where each model is called (recorder/sitecustomize.py). The right order
is the dataset's own `epoch_order`, which tests/mds_torch compares with laws.
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from mds_core import MDSReader, MDSWriter
from mds_torch import StreamingDataset
from tests.docs.composer_environment import COMPOSER

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "docs" / "frameworks"
ROWS, BATCH, EPOCHS = 203, 8, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table, in several shards."""
    out = tmp_path_factory.mktemp("table") / "table"
    rows = runpy.run_path(str(SCRIPTS / "table.py"))["rows"]()
    with MDSWriter(out=str(out), columns={"x": "ndarray:float32:8", "y": "float32"}, size_limit=1000) as writer:
        for x, y in rows:
            writer.write({"x": x, "y": y})
    return str(out)


def test_the_table_is_written_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    table = runpy.run_path(str(SCRIPTS / "table.py"))
    table["write"](spark, str(tmp_path / "table"))
    found = [(sample["x"].tolist(), sample["y"]) for sample in MDSReader(str(tmp_path / "table"))[:]]
    assert sorted(found) == sorted((x, np.float32(y)) for x, y in table["rows"]())


def launch(record: Path, *command: str, python: str = sys.executable, timeout: float = 200) -> str:
    """Run a Python command, which must succeed, with the recorder; give what it printed."""
    record.mkdir(exist_ok=True)
    path = [str(Path(__file__).parent / "recorder"), str(ROOT)]
    environment = {
        **os.environ, "RECORD": str(record), "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    process = subprocess.Popen(
        [python, *command], env=environment, cwd=record, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, errors = process.communicate()
        pytest.fail(f"took more than {timeout} s:\n{out[-2000:]}\n{errors[-5000:]}")
    assert process.returncode == 0, f"{out[-2000:]}\n{errors[:8000]}"
    return out


def torchrun(ranks: int = 2) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def recorded(record: Path) -> list[list[list[int]]]:
    """Give, for each rank, the samples of each batch that its model was trained on."""
    files = sorted(record.iterdir(), key=lambda file: int(file.name))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def expected(folder: str, ranks: int) -> list[list[list[int]]]:
    """Give, for each rank, the samples of each of its batches, by the numbers that are in their first feature."""
    numbers = [round(float(sample["x"][0]) * ROWS) for sample in MDSReader(folder)[:]]
    assert sorted(numbers) == list(range(ROWS))
    found = []
    for rank in range(ranks):
        dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH, rank=rank, world_size=ranks)
        batches = [ids for epoch in range(EPOCHS) for ids in dataset.epoch_order(epoch).batches(rank=rank)]
        found.append([[numbers[i] for i in ids] for ids in batches])
    return found


def test_ddp(folder: str, tmp_path: Path) -> None:
    record, checkpoint = tmp_path / "record", str(tmp_path / "checkpoint.pt")
    command = [str(SCRIPTS / "train_ddp.py"), folder, checkpoint]
    launch(record, *torchrun(), *command, "--steps", "17")  # in the second epoch
    assert "epoch 1: loss" in launch(record, *torchrun(), *command)
    assert recorded(record) == expected(folder, 2)


@pytest.mark.parametrize("by", ["mesh", "replication"])
def test_fsdp_with_distributed_checkpoints(by: str, folder: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    command = [str(SCRIPTS / "train_fsdp.py"), folder, str(tmp_path / "checkpoints"), "--by", by]
    launch(record, *torchrun(4), *command, "--steps", "17")
    assert "epoch 1: loss" in launch(record, *torchrun(4), *command)
    first, second = expected(folder, 2)
    assert recorded(record) == [first, first, second, second]


def test_lightning(folder: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    command = [str(SCRIPTS / "train_lightning.py"), folder, str(tmp_path / "checkpoints")]
    launch(record, *command, "--steps", "17")
    assert "validation loss" in launch(record, *command)
    assert recorded(record) == expected(folder, 2)


def test_accelerate(folder: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    command = [str(SCRIPTS / "train_accelerate.py"), folder, str(tmp_path / "checkpoint")]
    launch(record, *torchrun(), *command, "--steps", "17")
    assert "epoch 1: loss" in launch(record, *torchrun(), *command)
    assert recorded(record) == expected(folder, 2)


@pytest.mark.parametrize("steps", [10, 7])  # two batches each; an epoch has thirteen, so that 7 are an epoch
def test_transformers_trainer(steps: int, folder: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    command = [str(SCRIPTS / "train_transformers.py"), folder, str(tmp_path / "output")]
    launch(record, *torchrun(), *command, "--steps", str(steps))
    assert "after 14 steps" in launch(record, *torchrun(), *command)
    assert recorded(record) == expected(folder, 2)


def test_torchdata(folder: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    command = [str(SCRIPTS / "train_torchdata.py"), folder, str(tmp_path / "checkpoints")]
    launch(record, *torchrun(), *command, "--steps", "17")
    assert "epoch 1: loss" in launch(record, *torchrun(), *command)
    assert recorded(record) == expected(folder, 2)


def test_ray(folder: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    command = [str(SCRIPTS / "train_ray.py"), folder, str(tmp_path / "storage")]
    launch(record, *command, "--steps", "17")
    assert "'epoch': 1" in launch(record, *command)
    assert recorded(record) == expected(folder, 2)


def test_torch_distributor(java: None, tmp_path: Path) -> None:
    record, folder = tmp_path / "record", str(tmp_path / "table")
    command = [str(SCRIPTS / "train_torchdistributor.py"), folder, str(tmp_path / "checkpoint.pt")]
    launch(record, *command, "--steps", "17")
    assert "loss" in launch(record, *command)
    assert recorded(record) == expected(folder, 2)


def test_composer(folder: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    command = [str(SCRIPTS / "train_composer.py"), folder, str(tmp_path / "checkpoints")]
    python = COMPOSER.python()
    launcher = ["-m", "composer.cli.launcher", "-n", "2"]
    launch(record, *launcher, *command, "--steps", "17", python=python)
    assert "after 26 batches" in launch(record, *launcher, *command, python=python)
    assert recorded(record) == expected(folder, 2)
