"""The options of `df.write.format("mds")` and `spark.read.format("mds")`: names and checks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import StructType

from mds_core.hashing import check_hashes
from mds_core.index import Layout
from mds_core.storage import open_storage
from mds_core.writer import check_options
from mds_spark.types import check_encoding, default_encoding

NO_TABLES = (
    "Spark hands a table's path to no Python data source: CREATE TEMPORARY VIEW name USING mds OPTIONS (path '…') "
    "instead, which SELECT and INSERT take"
)

# Set by `register`'s save modes and by dataframe_to_mds: not for users.
SAVE_MODE = "__mds_save_mode"
FOREIGN_SCHEMA = "__mds_foreign_schema"

# What begins so is an option of the path's store. Spark makes all names lower-case.
STORAGE = "storage."

WRITE_OPTIONS = ("path", "compression", "hashes", "size_limit", "columns", "nulls", SAVE_MODE, FOREIGN_SCHEMA)
READ_OPTIONS = ("path", "validate_hash")


@dataclass(frozen=True)
class WriteOptions:
    """What a write's options ask for; all of it is checked.

    `drop_nulls` leaves rows with nulls out. `save_mode` is append, overwrite, errorifexists or ignore. With
    `foreign_schema`, Spark's schema is not kept in the index.
    """

    path: str
    layout: Layout
    drop_nulls: bool
    save_mode: str
    foreign_schema: bool
    # The store's options, which may be secrets: they are in no text.
    storage: dict[str, str] = field(default_factory=dict, repr=False)


def write_options(options: dict[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    """Check a write's options and its columns' types.

    Raises:
        ValueError: all that is wrong, in one error.
    """
    mistakes = _unknown(options, WRITE_OPTIONS)
    storage = storage_options(options)
    path = _path(options, storage, mistakes)
    foreign = FOREIGN_SCHEMA in options
    columns = _columns(options.get("columns"), schema, foreign, mistakes)
    compression: str | None = options.get("compression", "none").lower()
    if compression in ("none", "uncompressed", ""):
        compression = None
    limit: str | None = options.get("size_limit", str(1 << 26))
    if str(limit).lower() == "none":
        limit = None
    # Where no column is right, that is said already: the other options are checked all the same.
    layout, wrong = check_options(columns or {"any": "bytes"}, compression, _names(options.get("hashes", "")), limit)
    mistakes += wrong if schema.fields else ["the DataFrame has no columns; select at least one"]
    nulls = options.get("nulls", "fail")
    if nulls not in ("fail", "drop"):
        mistakes.append(f"option nulls: expected fail or drop, found {nulls!r}")
    if mistakes or layout is None:
        raise ValueError(_all(mistakes, "write"))
    mode = "overwrite" if overwrite else options.get(SAVE_MODE, "append")
    return WriteOptions(path, layout, nulls == "drop", mode, foreign, storage)


@dataclass(frozen=True)
class ReadOptions:
    """What a read's options ask for; all of it is checked."""

    path: str
    validate_hash: str | None
    storage: dict[str, str] = field(default_factory=dict, repr=False)


def read_options(options: dict[str, str]) -> ReadOptions:
    """Check a read's options.

    Raises:
        ValueError: all that is wrong, in one error.
    """
    if "paths" in options:
        raise ValueError(
            f"can't read several data sets at once, {options['paths']}; read each and use union(), or merge them "
            "with merge_index()"
        )
    if "provider" in options:  # Spark creates a table, and adds what its catalog knows
        raise ValueError(f"can't make an MDS table. {NO_TABLES}")
    mistakes = _unknown(options, READ_OPTIONS)
    storage = storage_options(options)
    path = _path(options, storage, mistakes)
    validate_hash = options.get("validate_hash")
    if validate_hash is not None:
        try:
            check_hashes([validate_hash])
        except ValueError as error:
            mistakes.append(f"option validate_hash: {error}")
    if mistakes:
        raise ValueError(_all(mistakes, "read"))
    return ReadOptions(path, validate_hash, storage)


def _all(mistakes: list[str], what: str) -> str:
    lines = "".join(f"\n  - {mistake}" for mistake in mistakes)
    return f"can't {what} MDS; {len(mistakes)} mistake{'s' * (len(mistakes) > 1)}:{lines}"


def storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """Give the options of the path's store, by the names that they have there."""
    found = {name.lower(): value for name, value in options.items()}
    return {name.removeprefix(STORAGE): value for name, value in found.items() if name.startswith(STORAGE)}


def _unknown(options: dict[str, str], known: tuple[str, ...]) -> list[str]:
    public = [name for name in known if not name.startswith("__")]
    return [
        f"unknown option {name!r}; expected {', '.join(public)}, or {STORAGE}NAME for one of the path's store"
        for name in sorted(options)
        if name not in known and not name.lower().startswith(STORAGE)
    ]


def _path(options: dict[str, str], storage: dict[str, str], mistakes: list[str]) -> str:
    path = options.get("path", "")
    if not path:
        mistakes.append(f"the path is missing; expected save(path), load(path) or option path. {NO_TABLES}")
        return ""
    try:
        return open_storage(path, storage).root
    except (ImportError, ValueError) as error:
        mistakes.append(str(error))
        return os.path.abspath(path)


def _names(text: str) -> list[str]:
    text = text.strip()
    if text.startswith("["):
        try:
            return [str(name) for name in json.loads(text)]
        except ValueError:
            return [text]
    return [name.strip() for name in text.split(",") if name.strip()]


def _columns(text: str | None, schema: StructType, encoded: bool, mistakes: list[str]) -> dict[str, str]:
    """Give the encoding of each column: the one that the option names, else its type's usual one.

    With `encoded`, all columns hold their encodings' bytes already.
    """
    chosen: Any = {}
    if text is not None:
        try:
            chosen = json.loads(text)
        except ValueError:
            example = """json.dumps({"image": "jpeg"})"""
            mistakes.append(f"option columns: expected JSON text, as of {example}, found {text!r}")
        if not isinstance(chosen, dict) or not all(isinstance(value, str) for value in chosen.values()):
            mistakes.append(f"option columns: expected an encoding for each named column, found {text!r}")
            chosen = {}
    mistakes += [
        f"option columns: no column {name!r} in the DataFrame; it has {schema.names}"
        for name in chosen
        if name not in schema.names
    ]
    if len(set(schema.names)) < len(schema.names):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        mistakes.append(f"columns of one name: {twice}; rename them")
    columns = {}
    for column in schema.fields:
        try:
            if column.name in chosen:
                if not encoded:
                    check_encoding(column.dataType, chosen[column.name])
                columns[column.name] = chosen[column.name]
            else:
                columns[column.name] = default_encoding(column.dataType)
        except ValueError as error:
            mistakes.append(f"column {column.name!r}, {column.dataType.simpleString()}: {error}")
    return columns
