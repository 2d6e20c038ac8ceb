"""dataframe_to_mds(): mosaicml-streaming's converter, on this writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mds_core.encodings import get_encoding
from mds_core.errors import EncodeError
from mds_core.writer import UNNEEDED, places_of
from mds_spark.options import FOREIGN_SCHEMA, STORAGE
from mds_spark.register import is_there, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ACCEPTED = {"out", "columns", "compression", "hashes", "size_limit", "exist_ok", "keep_local", "storage_options"}


def dataframe_to_mds(
    dataframe: DataFrame,
    merge_index: bool = True,
    mds_kwargs: dict[str, Any] | None = None,
    udf_iterable: Callable[..., Iterable[dict[str, Any]]] | None = None,
    udf_kwargs: dict[str, Any] | None = None,
) -> tuple[str, str]:
    """Write a DataFrame as an MDS data set, as `streaming.base.converters.dataframe_to_mds` does.

    Args:
        dataframe: what to write.
        merge_index: accepted; there is always one index, at the data set's root.
        mds_kwargs: `out`, a folder or a pair (local, remote), of which the remote one is written; and `columns`,
            `compression` (zstd unless given), `hashes`, `size_limit`; `exist_ok=True` replaces a data set;
            `storage_options` are those of the store.
        udf_iterable: from a pandas DataFrame (a part of a partition) to an iterable of samples; needs
            `mds_kwargs["columns"]`, the encodings of the samples' values.
        udf_kwargs: keyword arguments for `udf_iterable`.

    Returns:
        (local, remote): where the data set lies, in the place that `out` named it; the other is as given, or empty.

    Raises:
        ValueError: wrong arguments, or an empty DataFrame.
        FileExistsError: there is a data set at `out`, and not `exist_ok`.

    Example:
        >>> dataframe_to_mds(df, mds_kwargs={"out": "/Volumes/main/default/reviews", "columns": {"text": "str"}})
        ('/Volumes/main/default/reviews', '')
    """
    kwargs = dict(mds_kwargs or {})
    if dataframe is None or dataframe.isEmpty():
        raise ValueError("dataframe_to_mds: the DataFrame is None or empty")
    local, remote = places_of(kwargs.get("out"), "dataframe_to_mds: expected mds_kwargs['out']")
    path = remote or local
    unknown = sorted(set(kwargs) - _ACCEPTED - UNNEEDED)
    if unknown:
        raise ValueError(f"dataframe_to_mds: unknown mds_kwargs {unknown}; expected some of {sorted(_ACCEPTED)}")
    columns = kwargs.get("columns")
    if udf_iterable is not None:
        if not columns:
            raise ValueError("dataframe_to_mds: udf_iterable needs mds_kwargs['columns'], its samples' encodings")
        dataframe = _encoded_samples(dataframe, columns, udf_iterable, udf_kwargs or {})
    elif columns:
        missing = [name for name in columns if name not in dataframe.columns]
        if missing:
            raise ValueError(f"dataframe_to_mds: no column {missing} in the DataFrame; it has {dataframe.columns}")
        dataframe = dataframe.select(*[f"`{name.replace('`', '``')}`" for name in columns])
    if not kwargs.get("exist_ok") and is_there(path, kwargs.get("storage_options") or {}):
        raise FileExistsError(
            f"dataframe_to_mds: there is an MDS data set at {path} already; choose another `out`, or replace it with "
            "mds_kwargs exist_ok=True"
        )
    register(dataframe.sparkSession)
    writer = dataframe.write.format("mds").mode("overwrite" if kwargs.get("exist_ok") else "errorifexists")
    for name, value in _options(kwargs).items():
        writer = writer.option(name, value)
    if udf_iterable is not None:
        writer = writer.option(FOREIGN_SCHEMA, "true")
    writer.save(path)
    return local, remote


def _options(kwargs: dict[str, Any]) -> dict[str, str]:
    options = {"compression": str(kwargs.get("compression", "zstd") or "none")}
    if kwargs.get("columns"):
        options["columns"] = json.dumps(kwargs["columns"])
    hashes = kwargs.get("hashes")
    if hashes:
        options["hashes"] = hashes if isinstance(hashes, str) else json.dumps(list(hashes))
    if "size_limit" in kwargs:
        options["size_limit"] = str(kwargs["size_limit"])
    return {**options, **{STORAGE + name: value for name, value in (kwargs.get("storage_options") or {}).items()}}


def _encoded_samples(
    dataframe: DataFrame, columns: dict[str, str], udf: Callable[..., Iterable[dict[str, Any]]], kwargs: dict[str, Any]
) -> DataFrame:
    """Give a DataFrame of the samples that a user's function makes, each value as the bytes of its encoding."""
    for encoding in columns.values():
        get_encoding(encoding)

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encodings = {name: get_encoding(encoding) for name, encoding in columns.items()}
        for batch in batches:
            values: dict[str, list[bytes]] = {name: [] for name in encodings}
            samples = udf(batch.to_pandas(), **kwargs)
            if not isinstance(samples, Iterable):
                raise ValueError(f"udf_iterable: expected an iterable of samples to be returned, found {samples!r}")
            for sample in samples:
                if not isinstance(sample, dict) or sample.keys() != encodings.keys():
                    found = sorted(map(str, sample)) if isinstance(sample, dict) else repr(sample)[:100]
                    raise ValueError(f"udf_iterable: expected a sample of {list(encodings)}, found {found}")
                for name, encoding in encodings.items():
                    try:
                        values[name].append(encoding.encode(sample[name]))
                    except EncodeError as error:
                        raise ValueError(f"udf_iterable: column {name!r}: {error.reason}") from None
            yield pa.RecordBatch.from_pydict({name: pa.array(v, pa.binary()) for name, v in values.items()})

    return dataframe.mapInArrow(encode, ", ".join(f"`{name.replace('`', '``')}` binary" for name in columns))
