"""What is S3's alone: credentials, servers that fail, and processes."""

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import UnknownServiceError
from botocore.loaders import create_loader

from mds_core.storage import open_storage
from mds_core.storage.s3 import _loader
from tests.mds_core.storage.proxy import Proxy
from tests.mds_core.storage.servers import environment_of, s3_behind_proxy, s3_server


def test_a_bucket_that_is_not_there_is_named() -> None:
    with s3_server("a-bucket") as environment, environment_of(environment):
        with pytest.raises(FileNotFoundError, match=r"s3://another/x.*NoSuchBucket"):
            open_storage("s3://another/x").list()
        with pytest.raises(ValueError, match="expected s3://BUCKET/PREFIX"):
            open_storage("s3:///x")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with s3_behind_proxy() as (proxy, _):
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


def test_a_profile_may_take_a_role(proxy: Proxy, tmp_path: Path) -> None:
    """The role's credentials come from another of AWS's services, which has a client of its own."""
    config = tmp_path / "config"
    config.write_text(
        "[profile trainer]\nrole_arn = arn:aws:iam::123456789012:role/trainer\ncredential_source = Environment\n"
    )
    asked = {"AWS_CONFIG_FILE": str(config), "AWS_ENDPOINT_URL_STS": proxy.url}
    with environment_of(asked):
        storage = open_storage("s3://a-bucket/x", {"profile": "trainer"})
        storage.put("a", [b"data"])
        assert storage.read("a") == b"data"
    assert proxy.asked["POST", "/"] > 0


@pytest.mark.parametrize(
    "options",
    [
        {"aws_session_token": "a-precious-text\n"},
        {"aws_secret_access_key": "a-precious-text", "aws_access_key_id": "a-key", "endpoint": "http://127.0.0.1:1"},
        {"endpoint": "http://user:a-precious-text@127.0.0.1:1"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_secrets_are_not_shown(options: dict[str, str], proxy: Proxy) -> None:
    with pytest.raises(OSError, match="s3://a-bucket/x") as error:
        open_storage("s3://a-bucket/x", {"aws_access_key_id": "a-key", "aws_secret_access_key": "b", **options}).list()
    assert "a-precious-text" not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("path", ["s3://key:a-precious-text@b/p", "https://h/p?X-Amz-Signature=a-precious-text"])
def test_a_path_with_secrets_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="holds a password or a signature") as error:
        open_storage(path)
    assert "a-precious-text" not in str(error.value)


def test_the_client_knows_what_botocores_own_would(tmp_path: Path) -> None:
    """Models are read in a way of our own, as it is faster: the same ones, a user's own included."""
    own = tmp_path / "s3" / "2999-01-01"
    own.mkdir(parents=True)
    (own / "paginators-1.json").write_text('{"pagination": {}}')
    for paths in (None, str(tmp_path)):
        ours, botocores = _loader.__wrapped__(paths), create_loader(paths)  # new ones: clients change the models
        for kind in ("service-2", "paginators-1", "endpoint-rule-set-1"):
            assert ours.load_service_model("s3", kind) == botocores.load_service_model("s3", kind)
        for name in ("endpoints", "partitions", "sdk-default-configuration"):
            assert ours.load_data(name) == botocores.load_data(name)
        with pytest.raises(UnknownServiceError):
            ours.load_service_model("s4", "service-2")
    assert _loader(str(tmp_path)).load_service_model("s3", "paginators-1") == {"pagination": {}}
