"""Spark's side of MDS: `df.write.format("mds")`, `spark.read.format("mds")` and `dataframe_to_mds`."""

from mds_spark.converter import dataframe_to_mds
from mds_spark.register import register
from mds_spark.source import MDSDataSource

__all__ = ["MDSDataSource", "dataframe_to_mds", "register"]
