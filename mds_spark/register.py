"""register(): the data source and its save modes.

Spark's planner refuses the modes `errorifexists`, the default of `df.write`, and `ignore` for Python data sources.
For format("mds") alone, `save` sends such a write as an append with an option that says the mode, and the data
source's writer, on the server, enforces it.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import readwriter
from pyspark.sql.utils import to_str

from mds_core.index import INDEX
from mds_core.storage import open_storage
from mds_spark.options import NO_TABLES, SAVE_MODE, STORAGE, storage_options
from mds_spark.source import MDSDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's setting for which options' values its plans do not show.
_HIDDEN = "spark.sql.redaction.options.regex"

_MODES = {"error": "errorifexists", "default": "errorifexists", "errorifexists": "errorifexists", "ignore": "ignore"}


def register(spark: SparkSession) -> None:
    """Make `format("mds")` known to a session, classic or Connect, with all four save modes.

    Spark's plans, of which writes' hold the options, do not show those of stores from then on.

    Calling it again does no harm. Other formats' writers stay as they are.

    Example:
        >>> register(spark)
        >>> df.write.format("mds").save("/data/reviews")
    """
    try:
        spark.dataSource.register(MDSDataSource)
    except AnalysisException as error:  # before Spark 4.1, if Spark has found it by itself
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    _hide_storage_options(spark)
    _bring_save_modes(readwriter.DataFrameWriter)
    _refuse_tables(readwriter)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect import readwriter as connect

        _bring_save_modes(connect.DataFrameWriter)
        _refuse_tables(connect)


def _hide_storage_options(spark: SparkSession) -> None:
    pattern = f"(?i:^{re.escape(STORAGE)})"
    # Some servers let nobody change this; there, Spark hides what is named a secret, password or token.
    with contextlib.suppress(PySparkException):
        before = spark.conf.get(_HIDDEN) or ""
        if pattern not in before:
            spark.conf.set(_HIDDEN, f"{before}|{pattern}" if before else pattern)


def _bring_save_modes(writer: Any) -> None:
    if hasattr(writer, "_mds_save"):
        return
    plain_format, plain_mode, plain_save = writer.format, writer.mode, writer.save
    plain_option, plain_options = writer.option, writer.options

    @functools.wraps(plain_option)
    def option(self: Any, key: str, value: Any) -> Any:
        _keep(self, {key: value})
        return plain_option(self, key, value)

    @functools.wraps(plain_options)
    def options(self: Any, **options: Any) -> Any:
        _keep(self, options)
        return plain_options(self, **options)

    @functools.wraps(plain_format)
    def format(self: Any, source: str) -> Any:
        self._mds_source = source
        return plain_format(self, source)

    @functools.wraps(plain_mode)
    def mode(self: Any, saveMode: str | None) -> Any:
        if saveMode is not None:
            self._mds_mode = saveMode
        return plain_mode(self, saveMode)

    @functools.wraps(plain_save)
    def save(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> Any:
        if str(format or getattr(self, "_mds_source", "")).lower() != MDSDataSource.name():
            return plain_save(self, path, format, mode, partitionBy, **options)
        _activate(getattr(self, "_spark", None))
        wanted = str(mode or getattr(self, "_mds_mode", "errorifexists"))
        enforced = _MODES.get(wanted.lower())
        if enforced is None:
            return plain_save(self, path, format, mode, partitionBy, **{**options, SAVE_MODE: "append"})
        _keep(self, options)
        if enforced == "ignore" and path is not None and is_there(path, getattr(self, "_mds_storage", {})):
            return None
        try:
            return plain_save(self, path, format, "append", partitionBy, **{**options, SAVE_MODE: enforced})
        finally:
            self.mode(wanted)

    writer.format, writer.mode, writer.save, writer._mds_save = format, mode, save, plain_save
    writer.option, writer.options = option, options


def _keep(writer: Any, options: Mapping[str, Any]) -> None:
    """Keep the options of a writer that `is_there` needs: Spark does not give them back."""
    found = storage_options({name: to_str(value) or "" for name, value in options.items() if value is not None})
    if found:
        writer._mds_storage = {**getattr(writer, "_mds_storage", {}), **found}


def _refuse_tables(module: Any) -> None:
    """Refuse saveAsTable and writeTo for our format before they write what no table could read."""
    writer, v2 = module.DataFrameWriter, module.DataFrameWriterV2
    if hasattr(writer, "_mds_save_as_table"):
        return
    plain_save, plain_using = writer.saveAsTable, v2.using

    def check(source: Any) -> None:
        if str(source).lower() == MDSDataSource.name():
            raise ValueError(f"can't make an MDS table; use save(path). {NO_TABLES}")

    @functools.wraps(plain_save)
    def saveAsTable(self: Any, name: str, format: str | None = None, *args: Any, **options: Any) -> Any:
        check(format or getattr(self, "_mds_source", ""))
        return plain_save(self, name, format, *args, **options)

    @functools.wraps(plain_using)
    def using(self: Any, provider: str) -> Any:
        check(provider)
        return plain_using(self, provider)

    writer.saveAsTable, writer._mds_save_as_table, v2.using = saveAsTable, plain_save, using


def _activate(spark: Any) -> None:
    """Make a session its thread's active one: classic Spark looks Python data sources up there and nowhere else.

    A thread that the user started has none until, for example, `createDataFrame` has run in it.
    """
    if hasattr(spark, "_jsparkSession"):
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def is_there(path: str, storage: Mapping[str, str]) -> bool:
    """Tell whether the client sees a data set at a path; where it doesn't, the server looks."""
    try:
        return open_storage(path, storage).read(INDEX) is not None
    except (ImportError, OSError, ValueError):
        return False
