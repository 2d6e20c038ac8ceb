"""The README's main job."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "notebooks"))
import digits
import local_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_main_job_writes_reads_back_and_trains(
    spark: "SparkSession", tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert digits.main(tmp_path, epochs=6, spark=spark) > 0.9
    told = capfd.readouterr().out
    assert "wrote 1437 rows, and Spark reads the same 1437 back" in told
    assert f"the data set lies in {tmp_path}" in told


def test_the_main_job_runs_again_over_what_it_left(spark: "SparkSession", tmp_path: Path) -> None:
    train, test = digits.load_rows()
    digits.write_and_check(spark, train, tmp_path / "train")
    digits.write_and_check(spark, test, tmp_path / "train")


def test_a_java_that_is_there_is_found(java: None) -> None:
    assert Path(local_spark.find_java()).exists()
