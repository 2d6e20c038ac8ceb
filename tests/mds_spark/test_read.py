"""spark.read: data sets of other writers, projections, what is missing, broken or hostile, and partitions."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import shutil
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mds_core import MDSWriter
from mds_core.encodings import get_encoding
from mds_spark.options import ReadOptions
from mds_spark.reader import MDSDataSourceReader
from tests.mds_spark.rows import contents, index, named, plain

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
DATA_SETS = sorted(path.parent for path in GOLDEN.rglob("expected.json"))


def load(spark: SparkSession, path: Path | str, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("mds").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(path))


def message_of(spark: SparkSession, path: Path | str, schema: str | None = None, **options: str) -> str:
    with pytest.raises(Exception, match=r"mds|MDS") as caught:
        load(spark, path, schema, **options).collect()
    return str(caught.value)


def stated(value: dict[str, Any]) -> Any:
    """The value that expected.json states, an image as what compares."""
    if "ndarray" in value:
        return np.array(value["ndarray"], value["dtype"]).reshape(value["shape"])
    if "image" in value:
        image = value["image"]
        return image["mode"], image["size"], base64.b64decode(image["base64"])
    if "images" in value:
        return [stated(item) for item in value["images"]]
    if "base64" in value:
        return base64.b64decode(value["base64"])
    if "scalar" in value:
        return value["scalar"]
    return Decimal(value["decimal"]) if "decimal" in value else value["value"]


def comparable(value: Any) -> Any:
    if isinstance(value, Image.Image):
        return value.mode, list(value.size), value.tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), plain(value.tolist())
    return [comparable(item) for item in value] if isinstance(value, list) else plain(value)


def as_spark_has_it(value: Any, encoding: str, kind: T.DataType) -> Any:
    """What Spark must give for a stated value of an encoding."""
    if isinstance(kind, T.ArrayType):
        return value.tolist()
    if encoding == "uint64":
        return Decimal(value)
    if encoding in ("float16", "float32"):
        return float(np.dtype(encoding).type(value))
    return str(value) if encoding in ("str_int", "str_decimal") else value


@pytest.mark.parametrize("folder", DATA_SETS, ids=lambda folder: str(folder.relative_to(GOLDEN)))
def test_the_reference_writers_data_sets_read_to_their_values(spark: SparkSession, folder: Path) -> None:
    before = set(contents(folder))
    expected = json.loads((folder / "expected.json").read_text())
    df = load(spark, folder)
    assert df.columns == sorted(expected["columns"])
    found = df.collect()
    assert len(found) == len(expected["samples"])
    for row, sample in zip(found, expected["samples"], strict=True):
        for name, encoding in expected["columns"].items():
            right, value, kind = stated(sample[name]), row[name], df.schema[name].dataType
            if encoding == "json":
                assert json.loads(value) == right
            elif isinstance(kind, T.BinaryType) and encoding != "bytes":
                decoded = comparable(get_encoding(encoding).decode(bytes(value)))
                assert decoded == (list(right) if isinstance(right, list) else comparable_stated(right))
            else:
                assert plain(value) == plain(as_spark_has_it(right, encoding, kind)), name
    assert set(contents(folder)) == before, "reading leaves nothing behind"


def comparable_stated(right: Any) -> Any:
    return right if isinstance(right, tuple) else comparable(right)


def test_types_of_data_sets_that_spark_did_not_write(spark: SparkSession) -> None:
    assert load(spark, GOLDEN / "scalars").schema.simpleString() == (
        "struct<float16:float,float32:float,float64:double,int:bigint,int16:smallint,int32:int,int64:bigint,int8:tinyint,"
        "uint16:int,uint32:bigint,uint64:decimal(20,0),uint8:smallint>"
    )
    assert load(spark, GOLDEN / "variable").schema.simpleString() == (
        "struct<bytes:binary,json:string,str:string,str_decimal:string,str_float:double,str_int:string>"
    )
    schema = load(spark, GOLDEN / "ndarrays").schema
    assert schema["nd_static"].dataType.simpleString() == "array<array<smallint>>"
    assert schema["nd_half"].dataType.simpleString() == "array<array<float>>"
    assert schema["nd_dyn"].dataType.simpleString() == "binary", "its arrays' types have nothing in common"
    assert {field.dataType.simpleString() for field in load(spark, GOLDEN / "images").schema} == {"binary"}


def test_a_schema_projects_and_renames_no_column(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT id a, 'x' b, array(1, 2) c FROM range(3)").write.format("mds").save(str(tmp_path / "data"))
    assert sorted(load(spark, tmp_path / "data", "a long").collect()) == [(0,), (1,), (2,)]
    back = load(spark, tmp_path / "data", "c array<int>, a long")
    assert back.columns == ["c", "a"]
    assert sorted(row.a for row in back.collect()) == [0, 1, 2]
    assert load(spark, tmp_path / "data", "c binary").count() == 3
    assert "no column z" in message_of(spark, tmp_path / "data", "z long, a long")
    wrong = message_of(spark, tmp_path / "data", "b array<int>")
    assert f"column 'b' in {tmp_path}/data was written as string, and can't be read as array<int>; name it" in wrong


def test_a_schema_without_columns_counts_rows(spark: SparkSession, written: Path) -> None:
    back = spark.read.schema(T.StructType([])).format("mds").load(str(written))
    assert back.count() == 1000
    assert back.collect() == [()] * 1000


def test_a_schema_asks_for_wider_types(spark: SparkSession, tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / "data"), columns={"n": "int16", "j": "json"}) as writer:
        writer.write({"n": -3, "j": {"x": [1, None]}})
    assert load(spark, tmp_path / "data", "n long, j struct<x: array<int>>").first() == (-3, ([1, None],))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1], "struct<a: binary>"),
        ({"a": "no base64!"}, "struct<a: binary>"),
        ({"a": 1.5}, "struct<a: date>"),
        ({"a": "1,5"}, "struct<a: decimal(2,1)>"),
        ([1], "array<struct<b: array<timestamp>>>"),
        ([[1, 2, 3]], "map<long, date>"),
        ("text", "map<string, date>"),
    ],
)
def test_json_of_another_shape_than_the_schema_is_named(
    spark: SparkSession, tmp_path: Path, value: Any, kind: str
) -> None:
    with MDSWriter(out=str(tmp_path / "mds"), columns={"j": "json"}) as writer:
        writer.write({"j": value})
    message = message_of(spark, tmp_path / "mds", f"j {kind}")
    assert "shard.00000.mds: column 'j', encoding json, can't be read as" in message


WRITTEN = {
    "boolean": "true",
    "byte": "5Y",
    "long": "5L",
    "float": "1.5F",
    "double": "1.5D",
    "decimal(5,2)": "1.50",
    "string": "'5'",
    "date": "DATE '2020-01-02'",
    "timestamp": "TIMESTAMP '2020-01-02 03:04:05'",
    "timestamp_ntz": "TIMESTAMP_NTZ '2020-01-02 03:04:05'",
    "interval day to second": "INTERVAL '1 02:03:04' DAY TO SECOND",
    "array<byte>": "array(5Y)",
    "array<long>": "array(5L)",
    "array<boolean>": "array(true)",
    "array<date>": "array(DATE '2020-01-02')",
    "array<string>": "array('5')",
    "map<string, timestamp>": "map('k', TIMESTAMP '2020-01-02 03:04:05')",
    "map<string, long>": "map('k', 5L)",
    "struct<a: date, b: byte>": "struct(DATE '2020-01-02' AS a, 5Y AS b)",
    "struct<a: long, b: long>": "struct(5L AS a, 5L AS b)",
}


def test_a_schema_never_gives_a_value_that_spark_wrote_another_meaning(spark: SparkSession, tmp_path: Path) -> None:
    written = spark.sql(f"SELECT {', '.join(f'{sql} c{i}' for i, sql in enumerate(WRITTEN.values()))}")
    written.coalesce(1).write.format("mds").save(str(tmp_path / "data"))
    options, read = ReadOptions(str(tmp_path / "data"), None), 0
    for (i, kind), wanted in itertools.product(enumerate(WRITTEN), WRITTEN):
        schema = T.StructType.fromDDL(f"c{i} {wanted}")
        try:
            reader = MDSDataSourceReader(options, schema)
            ((value,),) = [batch.column(0) for part in reader.partitions() for batch in reader.read(part)]
        except ValueError:
            assert kind != wanted
            continue
        ((expected,),) = arrow_rows(written.select(F.col(f"c{i}").cast(wanted)))
        assert value.as_py() == expected, f"{kind} as {wanted}"
        read += kind != wanted
    assert read > 10, "numbers of any width"


def arrow_rows(df: DataFrame) -> Any:
    return [row.values() for row in df.toArrow().to_pylist()]


def test_a_schemas_names_match_in_any_case_unless_that_is_ambiguous(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"Label": "int32", "x": "int32", "X": "int32", "Ä": "bytes"}
    with MDSWriter(out=str(tmp_path / "mds"), columns=columns) as writer:
        writer.write({"Label": 1, "x": 2, "X": 3, "Ä": b"a"})
    back = load(spark, tmp_path / "mds", "label int, X long, `ä` binary")
    assert back.columns == ["label", "X", "ä"]
    assert back.collect() == [(1, 3, b"a")]
    df = spark.sql("SELECT DATE '2020-01-02' Day, 'text' XX, 'TEXT' xx")
    df.write.format("mds").save(str(tmp_path / "spark"))
    assert load(spark, tmp_path / "spark", "DAY date, xx string").collect() == [(datetime.date(2020, 1, 2), "TEXT")]
    assert "column 'Day' in" in message_of(spark, tmp_path / "spark", "day int")
    assert "no column Xx in" in message_of(spark, tmp_path / "spark", "Xx string")


def test_a_schema_takes_a_part_of_a_struct(spark: SparkSession, tmp_path: Path) -> None:
    sql = "SELECT struct(1 AS x, struct(DATE '2020-01-02' AS d, 'e' AS e) AS y) s"
    spark.sql(sql).write.format("mds").save(str(tmp_path / "mds"))
    back = load(spark, tmp_path / "mds", "s struct<y: struct<e: string>>")
    assert back.collect() == [((("e",),),)]
    assert "was written as struct<x:int," in message_of(spark, tmp_path / "mds", "s struct<z: int>")
    assert "was written as struct<x:int," in message_of(spark, tmp_path / "mds", "s string")


def test_a_missing_data_set_says_so(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "not there"):
        with pytest.raises(AnalysisException, match=f"no MDS data set at {path}: there is no index.json"):
            load(spark, path)
    (tmp_path / "file").touch()
    with pytest.raises(AnalysisException, match="no MDS data set at"):
        load(spark, tmp_path / "file")


def test_wrong_read_options_come_in_one_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="can't read MDS; 2 mistakes") as caught:
        load(spark, tmp_path, validate_hash="crc9", compression="zstd")
    assert "unknown option 'compression'; expected path, validate_hash" in str(caught.value)
    assert "crc9" in str(caught.value)
    with pytest.raises(AnalysisException, match="can't read several data sets at once"):
        spark.read.format("mds").load([str(tmp_path), str(tmp_path)])


@pytest.fixture
def written(spark: SparkSession, tmp_path: Path) -> Path:
    df = spark.range(0, 1000, 1, 1).selectExpr("id", "concat('text ', id) text")
    df.write.format("mds").option("hashes", "sha1").option("size_limit", "4kb").save(str(tmp_path / "written"))
    return tmp_path / "written"


def change(path: Path, edit: Any) -> None:
    document = index(path)
    edit(document)
    (path / "index.json").write_text(json.dumps(document))


def test_broken_indexes_are_refused(spark: SparkSession, written: Path) -> None:
    text = (written / "index.json").read_text()
    (written / "index.json").write_text(text[:-10])
    assert "index.json: not JSON" in message_of(spark, written)
    (written / "index.json").write_text(text)
    change(written, lambda document: document["shards"][1]["raw_data"].update(basename="../secret"))
    assert "shards[1].raw_data.basename: expected a path inside the data set, found '../secret'" in message_of(
        spark, written
    )
    (written / "index.json").write_text(text)
    change(written, lambda document: document["mds_spark"].update(schema={"type": "struct"}))
    assert "the schema in the index is broken" in message_of(spark, written)
    (written / "index.json").write_text(text)
    change(written, lambda document: document["mds_spark"]["schema"]["fields"].pop())
    assert "the schema in the index has the columns ['id'], not ['id', 'text']" in message_of(spark, written)


def test_broken_shards_are_named(spark: SparkSession, written: Path) -> None:
    name = named(written)[1]
    data = (written / name).read_bytes()
    (written / name).write_bytes(data[: len(data) // 2])
    assert name in message_of(spark, written)
    (written / name).unlink()
    assert name in message_of(spark, written)


def test_validate_hash_finds_a_changed_byte(spark: SparkSession, written: Path) -> None:
    name = named(written)[1]
    data = bytearray((written / name).read_bytes())
    data[-1] ^= 1
    (written / name).write_bytes(data)
    assert load(spark, written).count() == 1000, "unless asked, hashes are not checked"
    message = message_of(spark, written, validate_hash="sha1")
    assert name in message
    assert "sha1" in message
    assert "xxh64" in message_of(spark, written, validate_hash="xxh64")


UDT = {"type": "udt", "module": "evil", "class": "evil.Evil", "pyClass": "evil_module.Evil", "sqlType": "string"}


@pytest.mark.parametrize("nest", ["plain", "array", "struct", "serialized"])
def test_a_schema_that_would_import_code_is_refused_unseen(
    spark: SparkSession, written: Path, tmp_path: Path, nest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Were it imported, by the driver or a worker, it would leave a file. Workers look where the driver's folder is.
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nclass Evil: pass\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    udt: Any = {**UDT, "serializedClass": base64.b64encode(b"cos\nsystem\n(S'true'\ntR.").decode()}
    if nest == "serialized":
        udt.pop("class"), udt.update(pyClass="pyspark.ml.linalg.VectorUDT.Evil")
    array = {"type": "array", "elementType": udt, "containsNull": True}
    struct = {"type": "struct", "fields": [{"name": "x", "type": udt, "nullable": True, "metadata": {}}]}
    kind = {"plain": udt, "serialized": udt, "array": array, "struct": struct}[nest]
    change(written, lambda document: document["mds_spark"]["schema"]["fields"][1].update(type=kind))
    with pytest.raises(AnalysisException, match="the schema in the index names a class to be imported"):
        load(spark, written)
    assert not (tmp_path / "imported").exists()


def test_small_shards_share_a_partition(spark: SparkSession, written: Path) -> None:
    assert len(named(written)) > 4
    df = load(spark, written)
    assert df.select(F.spark_partition_id()).distinct().count() == 1
    assert [row.id for row in df.collect()] == list(range(1000))


def test_large_shards_have_partitions_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 2000, 1, 1).select("id", F.repeat(F.lit("x"), 50_000).alias("text"))
    df.write.format("mds").option("size_limit", "40mb").save(str(tmp_path / "data"))
    back = load(spark, tmp_path / "data", "id long")
    assert len(named(tmp_path / "data")) == 3
    assert back.rdd.getNumPartitions() == 2, "40 MB, and 40 and 20 MB"
    assert [row.id for row in back.collect()] == list(range(2000))


def test_shards_without_samples_are_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    # The reference writer puts an empty shard before a first sample that is larger than a shard, and so do we.
    with MDSWriter(out=str(tmp_path / "data"), columns={"text": "str"}, size_limit=500) as writer:
        writer.write({"text": "x" * 1000})
        writer.write({"text": "y"})
    assert index(tmp_path / "data")["shards"][0]["samples"] == 0
    assert [len(row.text) for row in load(spark, tmp_path / "data").collect()] == [1000, 1]
    only = tmp_path / "only"
    shutil.copytree(tmp_path / "data", only)
    change(only, lambda document: document.update(shards=document["shards"][:1]))
    assert load(spark, only).collect() == []
    assert load(spark, only).columns == ["text"]


def test_an_index_without_columns_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "index.json").write_text('{"version": 2, "shards": []}')
    assert load(spark, tmp_path / "data", None).columns == []


def stream_message(query: Any) -> str:
    with pytest.raises(Exception, match="MDS") as caught:
        query.start().awaitTermination(60)
    return str(caught.value)


def test_streams_are_refused_with_advice(spark: SparkSession, written: Path, tmp_path: Path) -> None:
    message = stream_message(spark.readStream.format("mds").load(str(written)).writeStream.format("noop"))
    assert "can't read MDS as a stream; use spark.read, again when there is more" in message
    assert "UnboundLocalError" not in message
    writer = spark.readStream.format("rate").load().writeStream.format("mds")
    message = stream_message(writer.options(path=tmp_path / "data", checkpointLocation=tmp_path / "checkpoint"))
    assert "can't write a stream as MDS; use writeStream.foreachBatch" in message
