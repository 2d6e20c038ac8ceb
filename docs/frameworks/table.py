"""The data set that the scripts beside this one train on: a table of 203 rows, written by Spark.

    python docs/frameworks/table.py FOLDER

Each row has eight numbers `x`, and `y`, which is a sum of them with weights that a model is to find.
"""

from __future__ import annotations

import sys

import numpy as np
from pyspark.sql import SparkSession

import mds_spark

ROWS = 203


def rows() -> list[tuple[list[float], float]]:
    """Give the rows."""
    x = np.random.default_rng(1).random((ROWS, 8), np.float32)
    x[:, 0] = np.arange(ROWS) / ROWS
    return list(zip(x.tolist(), (x @ np.linspace(-1, 1, 8, dtype=np.float32)).tolist(), strict=True))


def write(spark: SparkSession, folder: str) -> None:
    """Write them, unless they are there."""
    mds_spark.register(spark)
    df = spark.createDataFrame(rows(), "x array<float>, y float").repartitionByRange(4, "y")
    df.write.format("mds").mode("ignore").option("columns", '{"x": "ndarray:float32:8"}').save(folder)


if __name__ == "__main__":
    write(SparkSession.builder.master("local[*]").getOrCreate(), sys.argv[1])
