"""What is OCI's alone: where its endpoint is, and what it says when that is not known."""

import pytest

from mds_core.storage import open_storage
from mds_core.storage.oci import OCIStorage
from tests.mds_core.storage.servers import CREDENTIALS, environment_of, s3_server


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OCI_NAMESPACE", "OCI_REGION", "AWS_REGION", "S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def endpoint(path: str, **options: str) -> str:
    storage = open_storage(path, options)
    assert isinstance(storage, OCIStorage)
    url = storage._client.generate_presigned_url("get_object", Params=storage._object("a"))
    return str(url.partition("?")[0])


def test_the_endpoint_is_of_namespace_and_region_and_the_bucket_is_in_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "https://ours.compat.objectstorage.eu-frankfurt-1.oraclecloud.com/bucket/a/b/a"
    assert endpoint("oci://bucket@ours/a/b", region="eu-frankfurt-1") == expected
    monkeypatch.setenv("OCI_NAMESPACE", "ours")
    monkeypatch.setenv("AWS_REGION", "eu-frankfurt-1")
    assert endpoint("oci://bucket/a/b") == expected
    monkeypatch.setenv("OCI_REGION", "us-ashburn-1")
    assert endpoint("oci://bucket/a/b") == expected.replace("eu-frankfurt-1", "us-ashburn-1")


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("oci://bucket/x", {"region": "r"}, "give the namespace .in the path or OCI_NAMESPACE.$"),
        ("oci://bucket@ours/x", {}, "give the region .*OCI_REGION"),
        ("oci:///x", {}, "give the bucket .* and the namespace .* and the region"),
        ("oci://bucket@ours/x", {"region": "r", "unknown": ""}, "no storage option unknown"),
    ],
)
def test_what_is_missing_is_named(path: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_storage(path, options)


def test_an_endpoint_and_keys_may_be_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with s3_server("a-bucket") as environment:
        options = {
            "endpoint": environment["S3_ENDPOINT_URL"],
            "region": "us-ashburn-1",
            "aws_access_key_id": "a-key",
            "aws_secret_access_key": "a-secret",
        }
        storage = open_storage("oci://a-bucket@ours/options", options)
        storage.put("a", [b"data"])
        assert (storage.list(), storage.read("a")) == (["a"], b"data")
        assert storage.describe("a") == "oci://a-bucket@ours/options/a"
        assert "secret" not in repr(storage)


def test_more_files_than_a_page_holds_are_listed() -> None:
    with s3_server("a-bucket") as environment, environment_of(environment):
        storage = open_storage("oci://a-bucket@ours/many")
        assert isinstance(storage, OCIStorage)
        for number in range(1100):
            storage._client.put_object(**storage._object(f"{number}"), Body=b"")
        assert len(storage.list()) == 1100
