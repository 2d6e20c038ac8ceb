"""Options of the store by name: they reach the driver and the executors, and are shown nowhere."""

import json
import os
import pickle
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from mds_core import MDSReader, MDSWriter, merge_index
from mds_core.storage import open_storage
from mds_spark.options import read_options, write_options
from tests.mds_core.storage.servers import s3_server
from tests.mds_spark.rows import run_python

SECRET = "a-made-up-5ecret"
SCHEMA = StructType([StructField("id", LongType())])


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The options of a server that the environment says nothing of."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "S3_", "MOSAICML_"))]:
        monkeypatch.delenv(name)
    with s3_server("a-bucket") as environment:
        yield {
            "endpoint": environment["S3_ENDPOINT_URL"],
            "aws_access_key_id": "a-key",
            "aws_secret_access_key": SECRET,
            "region": "us-east-1",
        }


WRITE_AND_READ = """
import json, os, sys, traceback
from pyspark.sql import SparkSession
import mds_spark

assert not [name for name in os.environ if name.startswith(("AWS_", "S3_"))]
path, given, result, texts = sys.argv[1], json.loads(sys.argv[2]), {}, []
options = {f"storage.{name}": value for name, value in given.items()}
upper = {f"Storage.{name.upper()}": value for name, value in given.items()}
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
# Shows the whole plans of writes, too.
builder = builder.config("spark.sql.ui.explainMode", "extended").config("spark.log.level", "INFO")
spark = builder.getOrCreate()
mds_spark.register(spark)
mds_spark.register(spark)
try:
    def write(df, mode, options):
        df.write.format("mds").mode(mode).options(**options).option("size_limit", "300").save(path)

    def read():
        df = spark.read.format("mds").options(**options).load(path)
        df.explain(True)
        texts.append(df._jdf.queryExecution().toString() + repr(df))
        return sorted(row.id for row in df.collect())

    def failure(act):
        try:
            act()
        except Exception:
            texts.append(traceback.format_exc())
            return texts[-1]

    write(spark.range(0, 50, 1, 3), "error", options)
    result["first"] = read()
    write(spark.range(50, 60), "append", upper)
    result["append"] = len(read())
    result["again"] = failure(lambda: write(spark.range(1), "error", options))
    write(spark.range(0, 9).selectExpr("raise_error('never run') id"), "ignore", options)
    write(spark.range(7), "overwrite", options)
    result["overwrite"] = read()
    out = mds_spark.dataframe_to_mds(spark.range(3), mds_kwargs={"out": path + "-2", "storage_options": given})
    result["out"] = out
    wrong = {**options, "storage.profil": "x", "nuls": "drop"}
    result["wrong"] = failure(lambda: write(spark.range(1), "append", wrong))
    result["wrong read"] = failure(lambda: spark.read.format("mds").options(**wrong).load(path))
    result["none"] = failure(lambda: spark.read.format("mds").options(**options).load(path + "-3"))
    failing = spark.range(0, 9).selectExpr("if(id = 8, raise_error('no'), id) id")
    result["failed"] = failure(lambda: write(failing, "append", options))
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [executions.apply(i).physicalPlanDescription() for i in range(executions.size())]
    assert any("AppendData" in plan and "storage.endpoint" in plan for plan in plans)
    texts += plans
finally:
    spark.stop()
print()
print("\\n".join(texts))
print(json.dumps(result))
"""


def test_options_reach_driver_and_executors_and_are_shown_nowhere(
    java: None, options: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    path = "s3://a-bucket/by-options"
    # Python's output, and what Spark logs
    code = f"import os\nos.dup2(1, 2)\n{WRITE_AND_READ}"
    output = run_python(code, path, json.dumps(options))
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert result["first"] == list(range(50))
    assert result["append"] == 60
    assert f"{path}: there is an MDS data set already" in result["again"]
    assert result["overwrite"] == list(range(7))
    assert result["out"] == [path + "-2", ""]
    for name in ("wrong", "wrong read"):
        assert "2 mistakes" in result[name]
        assert "unknown option 'nuls'" in result[name]
        assert f"{path}: no storage option profil; expected endpoint, profile" in result[name]
    assert f"no MDS data set at {path}-3" in result["none"]
    assert "no" in result["failed"]
    assert "== Physical Plan ==" in output
    assert SECRET not in output
    assert options["endpoint"] not in output.partition("\n\n")[0]
    assert len(MDSReader(path, storage_options=options)) == 7
    assert len(MDSReader(path + "-2", storage_options=options)) == 3


def test_options_are_in_no_text(options: dict[str, str]) -> None:
    given = {"path": "s3://a-bucket/x", **{f"storage.{name}": value for name, value in options.items()}}
    for checked in (write_options(given, SCHEMA, False), read_options(given)):
        assert checked.storage == options
        assert SECRET not in f"{checked} {checked!r}"
        assert pickle.loads(pickle.dumps(checked)).storage == options
    assert SECRET not in repr(open_storage("s3://a-bucket/x", options))
    wrong = {**given, "storage.profil": SECRET, "nuls": SECRET}
    for check in (lambda: write_options(wrong, SCHEMA, False), lambda: read_options(wrong)):
        with pytest.raises(ValueError, match="2 mistakes") as caught:
            check()
        assert SECRET not in str(caught.value)


def test_a_folder_takes_none(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="no storage option endpoint; expected none for a folder"):
        read_options({"path": str(tmp_path), "storage.endpoint": "x"})


def test_data_sets_are_written_merged_and_read_with_options(options: dict[str, str]) -> None:
    path = "s3://a-bucket/merged"
    for part in range(2):
        with MDSWriter(out=f"{path}/{part}", columns={"n": "int64"}, storage_options=options) as writer:
            writer.write({"n": part})
    merge_index([f"{path}/1", f"{path}/0"], path, storage_options=options)
    assert [int(sample["n"]) for sample in MDSReader(path, storage_options=options)] == [1, 0]
    assert len(merge_index(path, storage_options=options).shards) == 2


def test_who_has_no_keys_and_who_pays_are_options(options: dict[str, str]) -> None:
    path = "s3://a-bucket/public"
    with MDSWriter(out=path, columns={"n": "int64"}, storage_options=options) as writer:
        writer.write({"n": 7})
    storage: Any = open_storage(path, options)
    storage._client.put_object_acl(**storage._object("index.json"), ACL="public-read")
    sent: list[dict[str, str]] = []

    def read(**more: str) -> Any:
        storage: Any = open_storage(path, {**options, **more})
        storage._reading_client.meta.events.register(
            "before-send.s3", lambda request, **_: sent.append(dict(request.headers))
        )
        assert storage.info("index.json").size > 0
        return storage

    with pytest.raises(PermissionError, match=r"shard.00000.mds: the store refuses to read it"):
        read(unsigned="true").read("shard.00000.mds")
    assert "authorization" not in {name.lower() for headers in sent for name in headers}
    read(requester_pays="true")
    last = {name.lower(): value for name, value in sent[-1].items()}
    assert "authorization" in last
    assert last["x-amz-request-payer"] in ("requester", b"requester")


def test_a_profile_is_an_option(options: dict[str, str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text(f"[ours]\naws_access_key_id = a-key\naws_secret_access_key = {SECRET}\n")
    (tmp_path / "config").write_text(f"[profile ours]\nregion = us-east-1\nendpoint_url = {options['endpoint']}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    storage = open_storage("s3://a-bucket/profile", {"profile": "ours"})
    storage.put("a", [b"data"])
    client = boto3.client("s3", endpoint_url=options["endpoint"], aws_access_key_id="a", aws_secret_access_key="b")
    assert client.get_object(Bucket="a-bucket", Key="profile/a")["Body"].read() == b"data"
