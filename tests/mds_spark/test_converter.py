"""dataframe_to_mds: mosaicml-streaming's signature, return value and rows."""

from __future__ import annotations

import inspect
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from mds_core import MDSReader
from mds_spark import dataframe_to_mds
from tests.mds_spark.rows import assert_nothing_left_over, contents, index, plain
from tests.reference import run_reference


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    return spark.range(0, 10, 1, 2).selectExpr("id", "concat('text ', id) text", "array(id, id * id) pair")


def test_the_signature_is_the_references() -> None:
    names = ["dataframe", "merge_index", "mds_kwargs", "udf_iterable", "udf_kwargs"]
    parameters = inspect.signature(dataframe_to_mds).parameters
    assert list(parameters) == names
    assert [p.default for p in parameters.values()] == [inspect.Parameter.empty, True, None, None, None]
    reference = run_reference(
        "import inspect, json\nfrom streaming.base.converters import dataframe_to_mds\n"
        "parameters = inspect.signature(dataframe_to_mds).parameters.values()\n"
        "print(json.dumps([(p.name, repr(p.default)) for p in parameters]))"
    )
    assert json.loads(reference.splitlines()[-1]) == [[p.name, repr(p.default)] for p in parameters.values()]


def test_it_writes_zstd_unless_told_otherwise_and_returns_the_folder(df: DataFrame, tmp_path: Path) -> None:
    out = str(tmp_path / "data")
    assert dataframe_to_mds(df, mds_kwargs={"out": out}) == (out, "")
    assert {shard["compression"] for shard in index(out)["shards"]} == {"zstd"}
    assert [sample["id"] for sample in MDSReader(out)] == list(range(10))
    assert_nothing_left_over(out)
    again = str(tmp_path / "again")
    dataframe_to_mds(df, True, {"out": again, "compression": None, "hashes": ["sha1"], "size_limit": "1kb"})
    shard = index(again)["shards"][0]
    assert (shard["compression"], shard["hashes"], shard["size_limit"]) == (None, ["sha1"], 1024)


def test_columns_choose_and_encode(df: DataFrame, tmp_path: Path) -> None:
    columns = {"pair": "ndarray:int32:2", "id": "int32"}
    dataframe_to_mds(df, mds_kwargs={"out": str(tmp_path / "data"), "columns": columns})
    reader = MDSReader(str(tmp_path / "data"))
    assert reader.columns == columns
    np.testing.assert_array_equal(reader[3]["pair"], np.array([3, 9], np.int32))


def test_a_pair_of_local_and_remote_writes_the_remote_one(df: DataFrame, tmp_path: Path) -> None:
    local, remote = str(tmp_path / "local"), str(tmp_path / "remote")
    assert dataframe_to_mds(df, mds_kwargs={"out": (local, remote), "keep_local": True}) == (local, remote)
    assert len(MDSReader(remote)) == 10


@pytest.mark.parametrize("hashes", ["sha1", "xxh64, sha1", ("sha1",), ["sha1", "xxh64"], [], None])
def test_hashes_may_be_a_text_or_a_list(df: DataFrame, tmp_path: Path, hashes: Any) -> None:
    dataframe_to_mds(df, mds_kwargs={"out": str(tmp_path / "data"), "hashes": hashes})
    expected = sorted(name for name in ("sha1", "xxh64") if name in str(hashes))
    assert index(tmp_path / "data")["shards"][0]["hashes"] == expected


def test_out_may_be_a_path_and_a_pair_may_lack_one(df: DataFrame, tmp_path: Path) -> None:
    a, b, c, d = (tmp_path / name for name in "abcd")
    assert dataframe_to_mds(df, mds_kwargs={"out": a}) == (str(a), "")
    assert dataframe_to_mds(df, mds_kwargs={"out": (None, b)}) == ("", str(b))
    assert dataframe_to_mds(df, mds_kwargs={"out": (str(c), None)}) == (str(c), "")
    assert dataframe_to_mds(df, mds_kwargs={"out": ["x", d]}) == ("x", str(d))
    for path in (a, b, c, d):
        assert len(MDSReader(str(path))) == 10


def test_what_is_there_is_replaced_only_when_asked(df: DataFrame, tmp_path: Path) -> None:
    out = str(tmp_path / "data")
    dataframe_to_mds(df, mds_kwargs={"out": out})
    before = contents(out)
    with pytest.raises(FileExistsError, match=r"there is an MDS data set at .* mds_kwargs exist_ok=True"):
        dataframe_to_mds(df.limit(2), mds_kwargs={"out": out})
    assert contents(out) == before
    dataframe_to_mds(df.limit(2), mds_kwargs={"out": out, "exist_ok": True})
    assert len(MDSReader(out)) == 2
    assert_nothing_left_over(out)


def test_a_function_makes_the_samples(df: DataFrame, tmp_path: Path) -> None:
    def samples(frame: Any, times: int, suffix: str = "") -> Iterator[dict[str, Any]]:
        for number, text in zip(frame["id"], frame["text"], strict=True):
            for i in range(times):
                yield {"tokens": np.array([number, i], np.int32), "text": text + suffix, "meta": {"i": i}}

    columns = {"tokens": "ndarray:int32", "text": "str", "meta": "json"}
    dataframe_to_mds(
        df,
        mds_kwargs={"out": str(tmp_path / "data"), "columns": columns},
        udf_iterable=samples,
        udf_kwargs={"times": 3, "suffix": "!"},
    )
    reader = MDSReader(str(tmp_path / "data"))
    assert reader.columns == columns
    found = [(sample["tokens"].tolist(), sample["text"], sample["meta"]) for sample in reader]
    assert found == [([n, i], f"text {n}!", {"i": i}) for n in range(10) for i in range(3)]
    back = df.sparkSession.read.format("mds").load(str(tmp_path / "data"))
    assert back.schema.simpleString() == "struct<meta:string,text:string,tokens:array<int>>"
    assert back.count() == 30


@pytest.mark.parametrize(
    ("sample", "part"),
    [
        ({"n": 1, "m": 2}, "expected a sample of ['n'], found ['m', 'n']"),
        (None, "expected a sample of ['n'], found None"),
        ([1], "expected a sample of ['n'], found [1]"),
        ({1: 1, "n": 2}, "expected a sample of ['n'], found ['1', 'n']"),
        ({"n": 1.9}, "column 'n'"),
        ({"n": 2**31}, "column 'n'"),
    ],
)
def test_a_wrong_sample_of_a_function_is_named(df: DataFrame, tmp_path: Path, sample: Any, part: str) -> None:
    with pytest.raises(Exception, match="udf_iterable") as caught:
        dataframe_to_mds(
            df, mds_kwargs={"out": str(tmp_path / "data"), "columns": {"n": "int32"}}, udf_iterable=lambda _: [sample]
        )
    assert part in str(caught.value)
    assert not (tmp_path / "data" / "index.json").exists()


def test_a_function_that_returns_nothing_is_named(df: DataFrame, tmp_path: Path) -> None:
    kwargs = {"out": str(tmp_path / "data"), "columns": {"n": "int32"}}
    with pytest.raises(Exception, match="udf_iterable: expected an iterable of samples to be returned, found None"):
        dataframe_to_mds(df, mds_kwargs=kwargs, udf_iterable=lambda _: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("out", [None, "", 7, (None, None), ("", ""), ("a", "b", "c"), ("a", 7), [], {"a": "b"}])
def test_an_out_that_names_no_folder_is_refused(df: DataFrame, out: Any) -> None:
    with pytest.raises(ValueError, match=r"dataframe_to_mds: expected mds_kwargs\['out'\], .* found") as caught:
        dataframe_to_mds(df, mds_kwargs={"out": out})
    assert repr(out) in str(caught.value)


@pytest.mark.parametrize(
    ("kwargs", "part"),
    [
        ({}, "expected mds_kwargs['out'], the folder of the data set or (local, remote), found None"),
        ({"out": "x", "column": {}, "size": 1}, "unknown mds_kwargs ['column', 'size']; expected some of ['columns'"),
        ({"out": "x", "columns": {"z": "int32"}}, "no column ['z'] in the DataFrame; it has ['id', 'text', 'pair']"),
    ],
)
def test_wrong_arguments_are_refused(df: DataFrame, kwargs: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match="dataframe_to_mds") as caught:
        dataframe_to_mds(df, mds_kwargs=kwargs)
    assert part in str(caught.value)


def test_an_empty_frame_none_and_a_function_without_columns_are_refused(df: DataFrame, tmp_path: Path) -> None:
    for empty in (df.limit(0), None):
        with pytest.raises(ValueError, match="the DataFrame is None or empty"):
            dataframe_to_mds(empty, mds_kwargs={"out": str(tmp_path / "data")})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"udf_iterable needs mds_kwargs\['columns'\]"):
        dataframe_to_mds(df, mds_kwargs={"out": str(tmp_path / "data")}, udf_iterable=lambda frame: [])
    assert not (tmp_path / "data").exists()


SQL = """
SELECT CAST(id AS INT) i, id * 1000000007 l, CAST(id / 3 AS FLOAT) f, id / 7 d, concat('text ', id) s,
    encode(concat('b', id), 'utf-8') b, CAST(id / 8 AS DECIMAL(10, 3)) dec, array(CAST(id AS INT), nullif(7, 0)) a
FROM range(0, 50, 1, 3)
"""
REFERENCE = """
import pickle, sys
from pyspark.sql import SparkSession
from streaming import StreamingDataset
from streaming.base.converters import dataframe_to_mds

sql, theirs, ours, out = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.sql.warehouse.dir", theirs + "-warehouse").getOrCreate()
)
returned = dataframe_to_mds(spark.sql(sql), mds_kwargs={"out": theirs})
spark.stop()
found = [returned]
for path in (theirs, ours):
    dataset = StreamingDataset(local=path, batch_size=1)
    found.append([dataset[i] for i in range(len(dataset))])
with open(out, "wb") as file:
    pickle.dump(found, file)
"""


def test_the_references_converter_and_ours_give_equal_rows(spark: SparkSession, tmp_path: Path) -> None:
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    returned = dataframe_to_mds(spark.sql(SQL), mds_kwargs={"out": ours})
    shutil.copytree(ours, tmp_path / "copy")
    run_reference(REFERENCE, SQL, theirs, str(tmp_path / "copy"), str(tmp_path / "found.pkl"))
    their_return, their_rows, our_rows = pickle.loads((tmp_path / "found.pkl").read_bytes())
    assert returned == (ours, "")
    assert their_return == (theirs, "")
    assert len(our_rows) == 50
    for found, right in zip(our_rows, their_rows, strict=True):
        assert found.keys() == right.keys()
        for name in right:
            assert plain(np.asarray(found[name]).tolist()) == plain(np.asarray(right[name]).tolist()), name
    assert MDSReader(ours).columns.keys() == MDSReader(theirs).columns.keys()
