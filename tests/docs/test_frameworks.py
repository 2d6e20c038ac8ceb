"""The scripts of docs/frameworks, each with its framework: every sample once, and resumed exactly.

What the ranks were trained on is written down where each model is called (recorder/sitecustomize.py). The right order
is the dataset's own `epoch_order`, which tests/mds_torch compares with laws.
"""

import json
import os
import re
import runpy
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from mds_core import MDSReader, MDSWriter
from mds_torch import StreamingDataset
from tests.docs.composer_environment import COMPOSER
from tests.environments import ROOT, run

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


def test_the_table_of_frameworks_names_what_is_tested() -> None:
    page = (SCRIPTS / "index.md").read_text()
    for name in ("pyspark", "torch", "lightning", "transformers", "accelerate", "torchdata", "ray"):
        release = ".".join(version(name).split("+")[0].split(".")[:2])
        assert re.search(rf"\| [^|]*\b{name} {re.escape(release)}\b", page), (name, release)
    assert f"mosaicml {COMPOSER.alone[0].partition('==')[2]}" in page


def launch(record: Path, *command: str, python: str = sys.executable, timeout: float = 200) -> str:
    """Run a Python command, which must succeed, with the recorder; give what it printed."""
    record.mkdir(exist_ok=True)
    path = [str(Path(__file__).parent / "recorder"), str(ROOT)]
    environment = {
        **os.environ, "RECORD": str(record), "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    return run([python, *command], timeout, cwd=str(record), env=environment)


def torchrun(ranks: int) -> list[str]:
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


def stop_and_resume(
    tmp_path: Path, command: list[str], said: str, steps: int = 17, python: str = sys.executable
) -> list[list[list[int]]]:
    """Run a script that stops after some steps, in the second epoch unless said, and again; give what was recorded."""
    launch(tmp_path / "record", *command, "--steps", str(steps), python=python)
    assert said in launch(tmp_path / "record", *command, python=python)
    return recorded(tmp_path / "record")


@pytest.mark.parametrize(
    ("script", "launcher", "said"),
    [
        ("train_ddp", torchrun(2), "epoch 1: loss"),
        ("train_lightning", [], "validation loss"),
        ("train_accelerate", torchrun(2), "epoch 1: loss"),
        ("train_torchdata", torchrun(2), "epoch 1: loss"),
        ("train_ray", [], "'epoch': 1"),
    ],
)
def test_each_sample_once_and_resumed_exactly(
    script: str, launcher: list[str], said: str, folder: str, tmp_path: Path
) -> None:
    command = [*launcher, str(SCRIPTS / f"{script}.py"), folder, str(tmp_path / "checkpoints")]
    assert stop_and_resume(tmp_path, command, said) == expected(folder, 2)


def test_fsdp_with_distributed_checkpoints(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun with the mesh, by a rank that is late, and resumed with the same places said by hand."""
    record, checkpoints = tmp_path / "record", tmp_path / "checkpoints"
    command = [*torchrun(4), str(SCRIPTS / "train_fsdp.py"), folder, str(checkpoints)]
    # Once, a late rank looked for checkpoints when the others were saving their first: all hung.
    monkeypatch.setenv("LATE_RANK", "0")
    launch(record, *command, "--by", "mesh", "--steps", "17")
    monkeypatch.delenv("LATE_RANK")
    (checkpoints / "000018").mkdir()  # as a kill leaves it while a checkpoint is saved
    assert "epoch 1: loss" in launch(record, *command, "--by", "replication")
    first, second = expected(folder, 2)
    assert recorded(record) == [first, first, second, second]


# Steps of two batches each; an epoch has thirteen batches, so that 7 steps are an epoch.
@pytest.mark.parametrize("steps", [10, 7])
def test_transformers_trainer(steps: int, folder: str, tmp_path: Path) -> None:
    command = [*torchrun(2), str(SCRIPTS / "train_transformers.py"), folder, str(tmp_path / "output")]
    assert stop_and_resume(tmp_path, command, "after 14 steps", steps) == expected(folder, 2)


def test_torch_distributor(java: None, tmp_path: Path) -> None:
    folder = str(tmp_path / "table")
    command = [str(SCRIPTS / "train_torchdistributor.py"), folder, str(tmp_path / "checkpoint.pt")]
    assert stop_and_resume(tmp_path, command, "loss") == expected(folder, 2)


def test_composer(folder: str, tmp_path: Path) -> None:
    launcher = ["-m", "composer.cli.launcher", "-n", "2"]
    command = [*launcher, str(SCRIPTS / "train_composer.py"), folder, str(tmp_path / "checkpoints")]
    found = stop_and_resume(tmp_path, command, "after 26 batches", python=COMPOSER.python())
    assert found == expected(folder, 2)
