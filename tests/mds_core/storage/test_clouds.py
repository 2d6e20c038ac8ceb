"""What Google's and Azure's stores do when servers fail, and in processes."""

import io
import logging
import multiprocessing
import re
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from mds_core.storage import Storage, azure, gcs, open_storage, remote
from tests.mds_core.storage.azure_server import azure_server
from tests.mds_core.storage.gcs_server import gcs_server
from tests.mds_core.storage.proxy import Proxy, proxy
from tests.mds_core.storage.servers import environment_of


@pytest.fixture(scope="module", params=["gs", "azure"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    """A bucket's or container's path, and the environment of its clients."""
    if request.param == "gs":
        with gcs_server("a-bucket") as environment:
            yield "gs://a-bucket", environment
    else:
        with azure_server("a-container") as environment:
            yield "azure://a-container", environment


@pytest.fixture
def failing(server: tuple[str, dict[str, str]]) -> Iterator[type[Proxy]]:
    """A proxy before the server, which the environment points to."""
    (name, value) = next(iter(server[1].items()))
    found = re.search(r"http://[^/]*", value)
    assert found
    remote._clients.clear()
    with proxy(found[0]) as kind, environment_of({name: value.replace(found[0], kind.url)}):
        yield kind
    remote._clients.clear()


@pytest.fixture
def path(server: tuple[str, dict[str, str]]) -> str:
    return f"{server[0]}/{uuid.uuid4().hex}"


@pytest.fixture
def storage(failing: type[Proxy], path: str) -> Storage:
    """A data set's path with a file, behind the proxy."""
    storage = open_storage(path)
    storage.put("a", [b"data"])
    failing.asked.clear()
    return storage


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(status: int, storage: Storage, failing: type[Proxy]) -> None:
    failing.faults = iter([status, status])
    assert storage.read("a") == b"data"
    assert len(failing.asked) == 3
    for do in (
        lambda: storage.info("a"),
        storage.list,
        lambda: storage.put("b", [b"data"]),
        lambda: storage.replace("a", b"new", b"data"),
        lambda: storage.delete("a"),
    ):
        failing.faults = iter([status])
        do()
    assert (storage.read("b"), storage.read("a")) == (b"data", None)


def test_what_stays_is_an_error_that_names_path_and_attempts(storage: Storage, failing: type[Proxy], path: str) -> None:
    for do in (lambda: storage.read("a"), lambda: storage.info("a"), lambda: storage.put("a", [b""])):
        failing.faults = iter([503] * 100)
        failing.asked.clear()
        with pytest.raises(OSError, match=rf"{path}/a: could not .* it in 5 attempts"):
            do()
        assert len(failing.asked) == 5


@pytest.mark.parametrize("status", [401, 403])
def test_what_cannot_pass_is_not_tried_again(status: int, storage: Storage, failing: type[Proxy], path: str) -> None:
    for do in (lambda: storage.read("a"), storage.list, lambda: storage.put("b", [b""])):
        failing.faults = iter([status] * 100)
        failing.asked.clear()
        with pytest.raises(PermissionError, match=rf"{path}.*: the store refuses to .* it.*check the credentials"):
            do()
        assert len(failing.asked) == 1


@pytest.mark.parametrize("size", [4, 20_000_000])
def test_a_write_whose_answer_is_lost_is_no_conflict(size: int, storage: Storage, failing: type[Proxy]) -> None:
    failing.faults = iter(["lose"] * 3)
    storage.put("b", [bytes(size)])
    assert storage.read("b") == bytes(size)
    with pytest.raises(FileExistsError):
        storage.put("b", [bytes(size)])
    failing.faults = iter([None, "lose"])
    assert storage.replace("a", b"new", b"data")
    failing.faults = iter([None, "lose"])
    assert not storage.replace("a", b"newer", b"data")


def test_a_body_that_is_cut_is_asked_for_again(storage: Storage, failing: type[Proxy]) -> None:
    failing.faults = iter(["cut"])
    assert storage.read("a") == b"data"


def test_a_fetch_makes_one_try(storage: Storage, failing: type[Proxy]) -> None:
    failing.faults = iter([503])
    with pytest.raises(OSError, match="503"):
        storage.fetch("a", io.BytesIO())
    assert len(failing.asked) == 1


def test_a_fetch_ends_when_the_server_stalls(storage: Storage, failing: type[Proxy]) -> None:
    failing.faults = iter(["stall"] * 10)
    begin = time.monotonic()
    with pytest.raises(OSError, match="could not read it"):
        storage.fetch("a", io.BytesIO(), begin + 1)
    assert time.monotonic() - begin < 15


def test_a_bucket_that_is_not_there_is_named(failing: type[Proxy], server: tuple[str, dict[str, str]]) -> None:
    path = f"{server[0]}-else/x"
    with pytest.raises(FileNotFoundError, match=f"{path}: not there"):
        open_storage(path).list()
    with pytest.raises(FileNotFoundError, match=f"{path}/a: not there"):
        open_storage(path).put("a", [b""])
    assert open_storage(path).read("a") is None
    with pytest.raises(ValueError, match=r"expected .*/PREFIX"):
        open_storage(f"{server[0].partition('//')[0]}///x")


def test_a_listing_goes_over_pages(storage: Storage, failing: type[Proxy], monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        storage.put(f"b/{n}", [b""])
    monkeypatch.setattr(gcs, "_PAGE", 2)
    monkeypatch.setattr(azure, "_PAGE", 2)
    failing.asked.clear()
    failing.faults = iter([None, 503, None])
    assert sorted(storage.list()) == ["a", "b/0", "b/1", "b/2", "b/3"]
    assert len(failing.asked) == 4


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
