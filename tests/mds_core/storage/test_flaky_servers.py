"""What stores do when servers fail, and in processes: the same tests for all that are reached by HTTP."""

import io
import logging
import multiprocessing
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from mds_core.storage import Storage, azure, gcs, open_storage
from tests.mds_core.storage import databricks_server
from tests.mds_core.storage.azure_server import azure_server
from tests.mds_core.storage.gcs_server import gcs_server
from tests.mds_core.storage.proxy import Proxy, proxy_of
from tests.mds_core.storage.servers import environment_of, s3_server


@contextmanager
def databricks() -> Iterator[dict[str, str]]:
    with databricks_server.workspace() as server:
        yield databricks_server.environment(server)


SERVERS = {
    "s3": ("s3://a-bucket", lambda: s3_server("a-bucket")),
    "gs": ("gs://a-bucket", lambda: gcs_server("a-bucket")),
    "azure": ("azure://a-container", lambda: azure_server("a-container")),
    "volumes": (f"dbfs:{databricks_server.VOLUME}", databricks),
}


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    """A bucket's, container's or volume's path, and the environment of its clients."""
    path, run = SERVERS[request.param]
    with run() as environment:
        yield path, environment


@pytest.fixture
def failing(server: tuple[str, dict[str, str]]) -> Iterator[Proxy]:
    """A proxy before the server, which the environment points to."""
    (found,) = {url for value in server[1].values() for url in re.findall(r"http://[^/]*", value)}
    with ExitStack() as stack:
        proxy = stack.enter_context(proxy_of(found))
        environment = {name: value.replace(found, proxy.url) for name, value in server[1].items()}
        stack.enter_context(environment_of(environment))
        yield proxy


@pytest.fixture
def path(server: tuple[str, dict[str, str]]) -> str:
    return f"{server[0]}/{uuid.uuid4().hex}"


@pytest.fixture
def storage(failing: Proxy, path: str) -> Storage:
    """A data set's path with a file, behind the proxy."""
    storage = open_storage(path)
    storage.put("a", [b"data"])
    failing.clear()
    return storage


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(status: int, storage: Storage, failing: Proxy) -> None:
    failing.fail_in_turn(str(status), str(status))
    assert storage.read("a") == b"data"
    assert failing.count() == 3
    for do in (
        lambda: storage.info("a"),
        storage.list,
        lambda: storage.put("b", [b"data"]),
        lambda: storage.replace("a", b"new", b"data"),
        lambda: storage.delete("a"),
    ):
        failing.fail_in_turn(str(status))
        do()
    assert (storage.read("b"), storage.read("a")) == (b"data", None)


def test_what_stays_is_an_error_that_names_path_and_attempts(storage: Storage, failing: Proxy, path: str) -> None:
    for do in (lambda: storage.read("a"), lambda: storage.info("a"), lambda: storage.put("a", [b""])):
        failing.fail_in_turn(*["503"] * 100)
        failing.clear()
        with pytest.raises(OSError, match=rf"{path}/a: could not .* it in 5 attempts"):
            do()
        assert failing.count() == 5


@pytest.mark.parametrize("status", [401, 403])
def test_what_cannot_pass_is_not_tried_again(status: int, storage: Storage, failing: Proxy, path: str) -> None:
    for do in (lambda: storage.read("a"), storage.list, lambda: storage.put("b", [b""])):
        failing.fail_in_turn(*[str(status)] * 100)
        failing.clear()
        with pytest.raises(PermissionError, match=rf"{path}.*: the store refuses to .* it.*check the credentials"):
            do()
        assert failing.count() == 1


@pytest.mark.parametrize("size", [4, 20_000_000])
def test_a_write_whose_answer_is_lost_is_no_conflict(size: int, storage: Storage, failing: Proxy) -> None:
    failing.fail_in_turn(*["lost"] * 3)
    storage.put("b", [bytes(size)])
    assert storage.read("b") == bytes(size)
    with pytest.raises(FileExistsError):
        storage.put("b", [bytes(size)])
    failing.fail_in_turn("", "lost")
    assert storage.replace("a", b"new", b"data")
    failing.fail_in_turn("", "lost")
    assert not storage.replace("a", b"newer", b"data")


def test_a_body_that_is_cut_is_asked_for_again(storage: Storage, failing: Proxy) -> None:
    failing.fail_in_turn("truncate")
    assert storage.read("a") == b"data"


def test_a_fetch_waits_for_a_busy_server_and_leaves_broken_bodies_to_others(storage: Storage, failing: Proxy) -> None:
    file = io.BytesIO()
    failing.fail_in_turn("503", "429")
    storage.fetch("a", file)
    assert file.getvalue() == b"data"
    failing.fail_in_turn(*["truncate"] * 3)  # one library tries so often by itself
    with pytest.raises(OSError, match="could not read it"):
        storage.fetch("a", io.BytesIO())
    failing.clear()
    failing.fail_in_turn(*["503"] * 100)
    with pytest.raises(OSError, match="could not read it"):
        storage.fetch("a", io.BytesIO(), time.monotonic() + 0.3)
    assert failing.count() < 5


def test_a_fetch_ends_when_the_server_stalls(storage: Storage, failing: Proxy) -> None:
    failing.fail_in_turn(*["stall"] * 10)
    begin = time.monotonic()
    with pytest.raises(OSError, match="could not read it"):
        storage.fetch("a", io.BytesIO(), begin + 1)
    assert time.monotonic() - begin < 15


@pytest.mark.parametrize("server", ["s3", "gs", "azure"], indirect=True)
def test_a_bucket_that_is_not_there_is_named(failing: Proxy, server: tuple[str, dict[str, str]]) -> None:
    path = f"{server[0]}-else/x"
    with pytest.raises(FileNotFoundError, match=f"{path}: not there"):
        open_storage(path).list()
    with pytest.raises(FileNotFoundError, match=f"{path}/a: not there"):
        open_storage(path).put("a", [b""])
    assert open_storage(path).read("a") is None
    with pytest.raises(ValueError, match=r"expected .*/PREFIX"):
        open_storage(f"{server[0].partition('//')[0]}///x")


@pytest.mark.parametrize("server", ["gs", "azure"], indirect=True)
def test_a_listing_goes_over_pages(storage: Storage, failing: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        storage.put(f"b/{n}", [b""])
    monkeypatch.setattr(gcs, "_PAGE", 2)
    monkeypatch.setattr(azure, "_PAGE", 2)
    failing.clear()
    failing.fail_in_turn("", "503", "")
    assert sorted(storage.list()) == ["a", "b/0", "b/1", "b/2", "b/3"]
    assert failing.count() == 4


def test_many_threads_share_connections(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    start = threading.Barrier(32)

    def read() -> None:
        start.wait()
        assert storage.read("a") == b"data"

    with caplog.at_level(logging.WARNING):
        threads = [threading.Thread(target=read) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert caplog.records == []


def read_in_child(path: str) -> None:
    assert open_storage(path).read("a") == b"data"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_each_process_has_a_client_of_its_own(start: str, storage: Storage, path: str) -> None:
    context = multiprocessing.get_context(start)
    children = [context.Process(target=read_in_child, args=(path,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert storage.read("a") == b"data"
