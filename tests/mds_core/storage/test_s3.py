"""What is S3's alone: credentials, servers that fail, and processes."""

from collections.abc import Iterator

import pytest

from mds_core.storage import open_storage
from tests.mds_core.storage.proxy import Proxy, proxy_of
from tests.mds_core.storage.servers import environment_of, s3_server


def test_a_bucket_that_is_not_there_is_named() -> None:
    with s3_server("a-bucket") as environment, environment_of(environment):
        with pytest.raises(FileNotFoundError, match=r"s3://another/x.*NoSuchBucket"):
            open_storage("s3://another/x").list()
        with pytest.raises(ValueError, match="expected s3://BUCKET/PREFIX"):
            open_storage("s3:///x")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with (
        s3_server("a-bucket") as environment,
        proxy_of(environment["S3_ENDPOINT_URL"]) as proxy,
        environment_of({**environment, "S3_ENDPOINT_URL": proxy.url}),
    ):
        yield proxy


def test_an_answer_that_is_lost_is_no_other_writer(proxy: Proxy) -> None:
    storage = open_storage("s3://a-bucket/lost")
    proxy.fault = lambda method, path, n: "lost" if method == "PUT" and n == 0 else ""
    storage.put("a", [b"data"])
    assert storage.read("a") == b"data"
    proxy.clear()
    assert storage.replace("a", b"new", b"data")
    assert proxy.asked["PUT", "/a-bucket/lost/a"] == 2
    with pytest.raises(FileExistsError):
        storage.put("a", [b"other"])


def test_a_profile_that_is_not_there_is_named_at_once(proxy: Proxy) -> None:
    with pytest.raises(PermissionError, match=r"s3://a-bucket/x/a: the store refuses to read it.*ours"):
        open_storage("s3://a-bucket/x", {"profile": "ours"}).read("a")
    assert proxy.count() == 0
