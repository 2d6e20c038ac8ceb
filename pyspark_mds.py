"""Lets Spark find `format("mds")` by itself: it looks into the modules named `pyspark_*`."""

from mds_spark.source import MDSDataSource as DefaultSource

__all__ = ["DefaultSource"]
