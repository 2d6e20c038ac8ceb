"""docs/quickstart: from a Parquet folder of images to a training that is killed and goes on."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from mds_core import MDSReader
from tests.environments import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPTS = ROOT / "docs" / "quickstart"


def train(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the training of two processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*torchrun, str(SCRIPTS / "train.py"), "data", "checkpoint.pt", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_parquet_folder_of_images_is_trained_on_and_a_kill_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    runpy.run_path(str(SCRIPTS / "sample_images.py"))["main"](tmp_path / "photos")
    write = runpy.run_path(str(SCRIPTS / "write.py"))["main"]
    write(str(tmp_path / "photos"), str(tmp_path / "data"), "image", "label", spark)
    sizes = [len(MDSReader(str(tmp_path / "data" / split))) for split in ("train", "test")]
    assert sum(sizes) == 1797
    assert 120 < sizes[1] < 240

    first = train(tmp_path)
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("epoch 1: loss"):
            break
    for process in [*psutil.Process(first.pid).children(recursive=True), first]:
        process.kill()
    first.wait()

    out, _ = train(tmp_path, "--epochs", "3").communicate(timeout=200)
    went_on = re.search(r"goes on in epoch (\d), after (\d+) images", out)
    assert went_on, out
    assert went_on[1] == "1"
    assert int(went_on[2]) % 640 == 0
    assert int(went_on[2]) > 0
    accuracies = dict(re.findall(r"epoch (\d): accuracy ([\d.]+)", out))
    assert list(accuracies) == ["1", "2"]
    assert float(accuracies["2"]) > 0.7
