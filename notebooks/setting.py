"""What the notebooks share: Spark without its chatter, a folder that goes away again, and the look of the figures."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import digits
import matplotlib.pyplot as plt

import mds_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"]  # told apart by the colour-blind, too

plt.rcParams.update(
    {
        "figure.dpi": 72,
        "figure.constrained_layout.use": True,
        "axes.prop_cycle": plt.cycler(color=COLORS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": "large",
        "axes.titlelocation": "left",
        "legend.frameon": False,
    }
)


def start_spark() -> SparkSession:
    """Start Spark on this machine, with `format("mds")` registered."""
    # torchrun warns, once for each process, where this is not set.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with contextlib.redirect_stdout(io.StringIO()):
        spark = digits.start_spark()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    mds_spark.register(spark)
    return spark


def scratch() -> Path:
    """Make a folder that is deleted when the notebook ends."""
    folder = Path(tempfile.mkdtemp(prefix="mds-notebook-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
