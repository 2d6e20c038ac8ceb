"""What is Databricks' alone: paths, credentials, servers that fail, and processes."""

import io
import logging
import multiprocessing
import os
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from databricks.sdk import WorkspaceClient

from mds_core import MDSReader, MDSWriter
from mds_core.fetch import fetch_shard
from mds_core.index import File, Layout, Shard
from mds_core.storage import open_storage, remote
from mds_core.storage.info import Version
from tests.mds_core.storage.databricks_server import (
    CLIENT_ID,
    CLIENT_SECRET,
    CUT,
    FINE,
    LOST,
    TOKEN,
    VOLUME,
    Workspace,
    environment,
    workspace,
)  # fmt: skip
from tests.mds_core.storage.servers import environment_of

STORES = [f"dbfs:{VOLUME}/x", "dbfs:/x"]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test's client is of its own environment, in which there are no credentials but the test's."""
    for name in list(os.environ):
        if name.startswith(("DATABRICKS_", "ARM_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", "/nonexistent")
    remote._clients.clear()
    yield
    remote._clients.clear()


@pytest.fixture
def server() -> Iterator[Workspace]:
    """A workspace whose credentials the environment has."""
    with workspace() as server, environment_of(environment(server)):
        yield server


SPELLINGS = [
    ("dbfs:/a/b", "dbfs:/a/b"),
    ("dbfs:///a/b/", "dbfs:/a/b"),
    ("DBFS:/a//b/./c/..", "dbfs:/a/b"),
    (Path("dbfs:///a/b"), "dbfs:/a/b"),
    ("dbfs:/Volumes/c/s/v", "dbfs:/Volumes/c/s/v"),
    ("dbfs:///Volumes/c/s/v/a/", "dbfs:/Volumes/c/s/v/a"),
]


@pytest.mark.parametrize(("path", "root"), SPELLINGS, ids=str)
def test_a_path_has_many_spellings(path: str | Path, root: str) -> None:
    assert open_storage(path).root == root
    assert open_storage(path).describe("index.json") == f"{root}/index.json"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("dbfs:/", "dbfs:/FOLDER"),
        ("dbfs:///", "dbfs:/FOLDER"),
        ("dbfs://host/a", "without a host"),
        ("dbfs:/Volumes/c/s", "dbfs:/Volumes/CATALOG/SCHEMA/VOLUME"),
        ("dbfs:/volumes/c/s/v", "dbfs:/Volumes/CATALOG/SCHEMA/VOLUME"),
    ],
)
def test_a_path_that_is_none_is_refused(path: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"expected .*{expected}.*found '{path}'"):
        open_storage(path)


@pytest.mark.parametrize("path", STORES)
@pytest.mark.parametrize("options", [{}, {"host": "http://127.0.0.1:9"}, {"profile": "another"}], ids=str)
def test_without_credentials_an_error_says_what_to_set_and_where(options: dict[str, str], path: str) -> None:
    began = time.monotonic()
    advice = "DATABRICKS_HOST and DATABRICKS_TOKEN .*under TorchDistributor, set them inside of the training function"
    with pytest.raises(PermissionError, match=f"{path}/a: the store refuses to read it.*no credentials.*{advice}"):
        open_storage(path, options).read("a")
    assert time.monotonic() - began < 60  # no metadata service is waited for


@pytest.mark.parametrize("path", STORES)
def test_a_wrong_token_is_refused_and_never_shown(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "dapi-wrong-token"
    with workspace() as server:
        for options in [{"host": server.url, "token": secret}, {}]:
            with environment_of(environment(server, secret)):
                storage = open_storage(path, options)
                for call in (storage.list, lambda s=storage: s.read("a"), lambda s=storage: s.put("a", [b""])):
                    asked = len(server.asked)
                    with pytest.raises(
                        PermissionError, match=r"403 .*Invalid access token.*DATABRICKS_TOKEN"
                    ) as caught:
                        call()
                    assert secret not in "".join(traceback.format_exception(caught.value))
                    # Once; what a failed write to the DBFS root began is deleted.
                    assert len(server.asked) - asked <= 2
                assert secret not in repr(storage)
    assert caplog.records
    assert secret not in caplog.text


def test_options_go_before_the_environment(server: Workspace) -> None:
    with environment_of(environment(server, "dapi-wrong-token")):
        open_storage(STORES[0], {"token": TOKEN}).put("a", [b"data"])
        with pytest.raises(ValueError, match="no storage option endpoint; expected host, token, profile"):
            open_storage(STORES[0], {"endpoint": "x"})


def test_a_profile_of_the_config_file_is_used(tmp_path: Path) -> None:
    config = tmp_path / "databrickscfg"
    with workspace() as server, environment_of({"DATABRICKS_CONFIG_FILE": str(config)}):
        config.write_text(f"[DEFAULT]\nhost = {server.url}\n\n[training]\nhost = {server.url}\ntoken = {TOKEN}\n")
        open_storage(STORES[0], {"profile": "training"}).put("a", [b"data"])
        with environment_of({"DATABRICKS_CONFIG_PROFILE": "training"}):
            assert open_storage(STORES[0]).read("a") == b"data"
        with pytest.raises(PermissionError, match="no another profile configured"):
            open_storage(STORES[0], {"profile": "another"}).read("a")


def test_oauth_of_a_service_principal_is_used() -> None:
    with workspace() as server:
        given = {"DATABRICKS_HOST": server.url, "DATABRICKS_CLIENT_ID": CLIENT_ID}
        with environment_of({**given, "DATABRICKS_CLIENT_SECRET": CLIENT_SECRET}):
            storage = open_storage(STORES[0])
            storage.put("a", [b"data"])
            assert storage.read("a") == b"data"
        remote._clients.clear()
        with environment_of({**given, "DATABRICKS_CLIENT_SECRET": "dose-wrong"}):
            with pytest.raises(PermissionError, match=r"no credentials.*invalid_client") as caught:
                open_storage(STORES[0]).read("a")
            assert "dose-wrong" not in "".join(traceback.format_exception(caught.value))


def test_a_netrc_does_not_replace_the_token(server: Workspace, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    with environment_of({"NETRC": str(netrc)}):
        assert open_storage(STORES[0]).read("a") is None


@pytest.mark.parametrize("path", STORES)
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, LOST])
def test_what_may_pass_is_tried_again(status: int, path: str, server: Workspace) -> None:
    storage = open_storage(path)
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: storage.put("a", [b"data"]), None),
        (lambda: storage.read("a"), b"data"),
        (lambda: storage.read_range("a", 1, 3)[0], b"at"),
        (storage.list, ["a"]),
        (lambda: storage.replace("a", b"new", b"data"), True),
        (lambda: storage.delete("a"), None),
    ]
    for call, expected in calls:
        server.failures = [status, status]
        assert call() == expected
        assert not server.failures
    assert server.files == {}


def test_a_server_says_how_long_to_wait(server: Workspace) -> None:
    server.failures, server.failure_headers = [429], {"Retry-After": "1"}
    began = time.monotonic()
    assert open_storage(STORES[0]).info("a") is None
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("path", STORES)
def test_what_stays_is_an_error_that_names_path_and_reason(path: str, server: Workspace) -> None:
    server.failures = [503] * 100
    with pytest.raises(OSError, match=f"{path}: could not list it in 5 attempts: 503 FAILED as the test wants"):
        open_storage(path).list()
    assert len(server.asked) == 5
    with pytest.raises(OSError, match=f"{path}/a: could not read it in 5 attempts: 503 FAILED as the test wants"):
        open_storage(path).read("a")
    assert len(server.asked) == 10


@pytest.mark.parametrize("path", STORES)
@pytest.mark.parametrize("status", [400, 403])
def test_what_cannot_pass_is_not_tried_again(status: int, path: str, server: Workspace) -> None:
    server.failures = [status] * 100
    storage = open_storage(path)
    for call in (lambda: storage.read("a"), storage.list, lambda: storage.put("a", [])):
        asked = len(server.asked)
        with pytest.raises(PermissionError if status == 403 else OSError, match=f"{path}.*{status} FAILED as the test"):
            call()
        assert len(server.asked) - asked <= 2  # where it deletes what it began


def test_a_server_that_is_not_there_is_an_error() -> None:
    with workspace() as server:
        pass
    with (
        environment_of(environment(server)),
        pytest.raises(OSError, match=r"could not look at it in 5 attempts: .*Conn"),
    ):
        open_storage(STORES[0]).info("a")


@pytest.mark.parametrize("path", STORES)
def test_a_fetch_makes_one_try_and_fetch_shard_more(path: str, server: Workspace) -> None:
    storage = open_storage(path)
    storage.put("a", [b"data" * 1000])
    server.failures = [LOST]
    with pytest.raises(OSError, match=f"{path}/a: could not read it: "):
        storage.fetch("a", io.BytesIO())
    for failure in (503, LOST, CUT):
        server.failures = [FINE, failure] if path == "dbfs:/x" else [failure]
        with tempfile.TemporaryFile() as file:
            shard = Shard(Layout.of({"a": "bytes"}), 1, File("a", 4000, {}), None)
            fetch_shard(storage, Version("an index", time.time() + 10), shard, file)
            file.seek(0)
            assert file.read() == b"data" * 1000
        assert not server.failures


@pytest.mark.parametrize("path", STORES)
def test_a_fetch_waits_for_a_busy_server(path: str, server: Workspace) -> None:
    storage = open_storage(path)
    data = bytes(range(256)) * 20_000
    storage.put("a", [data])
    server.failures = [429, 503]
    if path == "dbfs:/x":  # in many requests
        server.failures += [FINE, FINE, 429, 503, FINE, 503, FINE, 500, 502, FINE, 429]
    file = io.BytesIO()
    storage.fetch("a", file)
    assert file.getvalue() == data
    assert not server.failures


@pytest.mark.parametrize("path", STORES)
def test_a_body_that_breaks_off_is_no_file(path: str, server: Workspace) -> None:
    storage = open_storage(path)
    storage.put("a", [b"data" * 1000])
    server.failures = [FINE, CUT] if path == "dbfs:/x" else [CUT]
    with pytest.raises(OSError, match=f"{path}/a: could not read it: "):
        storage.fetch("a", io.BytesIO())
    server.failures = [FINE, CUT] if path == "dbfs:/x" else [CUT]
    assert storage.read("a") == b"data" * 1000


@pytest.mark.parametrize("path", STORES)
def test_a_server_that_stalls_is_left(path: str, server: Workspace) -> None:
    storage = open_storage(path)
    storage.put("a", [b"data"])
    server.stall = 30
    began = time.monotonic()
    with pytest.raises(OSError, match=f"{path}/a: could not read it: .*imed out"):
        storage.fetch("a", io.BytesIO(), time.monotonic() + 1)
    assert time.monotonic() - began < 20
    server.stall = 0


@pytest.mark.parametrize("verb", ["PUT", "HEAD"])
def test_a_write_to_a_volume_whose_answer_is_lost_took_place_once(verb: str, server: Workspace) -> None:
    storage, server.failing = open_storage(STORES[0]), (verb,)
    server.failures = [LOST]
    storage.put("a", [b"da", b"ta"])
    server.failures = [LOST] * (verb == "PUT")
    assert storage.replace("b", b"data", None)
    server.failures = [LOST]
    with pytest.raises(FileExistsError, match="another writer"):
        storage.put("a", [b"else"])
    assert {name: storage.read(name) for name in storage.list()} == {"a": b"data", "b": b"data"}


@pytest.mark.parametrize("request_number", range(5), ids=["create", "block", "block2", "close", "move"])
def test_a_write_to_dbfs_whose_answer_is_lost_took_place_once(request_number: int, server: Workspace) -> None:
    storage, server.failing = open_storage("dbfs:/x"), ("POST",)
    data = bytes(range(256)) * 6000
    server.failures = [FINE] * request_number + [LOST]
    storage.put("a", [data])
    assert not server.failures
    server.failures = [LOST]
    assert storage.replace("b", b"data", None)
    assert {name: storage.read(name) for name in storage.list()} == {"a": data, "b": b"data"}


def test_a_file_on_dbfs_has_its_name_when_it_is_whole(server: Workspace) -> None:
    storage, server.failing = open_storage("dbfs:/x"), ("POST",)
    server.failures = [FINE, FINE, 403]
    with pytest.raises(PermissionError, match="dbfs:/x/a: the store refuses to write it"):
        storage.put("a", [bytes(3 << 20)])
    assert storage.list() == []
    storage.put("a", [bytes(3 << 20)])
    assert ("POST", "/api/2.0/dbfs/put") not in [entry[:2] for entry in server.asked]
    assert storage.list() == ["a"]


def test_a_file_on_dbfs_that_changes_while_it_is_read_is_an_error(server: Workspace) -> None:
    storage = open_storage("dbfs:/x")
    storage.put("a", [bytes(3 << 20)])

    class Changing(io.BytesIO):
        def write(self, data: object) -> int:
            server.files["/x/a"] = bytes(4 << 20), time.time()
            return super().write(data)  # type: ignore[arg-type]

    with pytest.raises(OSError, match="it changed while it was read"):
        storage.fetch("a", Changing())


def test_a_server_that_ignores_ranges_is_read_all_the_same(server: Workspace) -> None:
    storage, server.knows_ranges = open_storage(STORES[0]), False
    data = bytes(range(256)) * 10_000
    storage.put("a", [data])
    for start, stop in [(0, 1), (5, 9), (1 << 20, 2 << 20), (len(data) - 1, len(data))]:
        assert storage.read_range("a", start, stop)[0] == data[start:stop]


def test_folders_are_made_where_the_server_does_not(server: Workspace) -> None:
    storage, server.makes_folders = open_storage(f"{STORES[0]}/new"), False
    storage.put("sub/folder/a", [b"data"])
    assert storage.replace("index.json", b"{}", None)
    assert sorted(storage.list()) == ["index.json", "sub/folder/a"]


@pytest.mark.parametrize("path", STORES)
def test_many_files_are_listed(path: str, server: Workspace) -> None:
    names = [f"{folder}{number:02}" for folder in ("", "a/", "a/b/") for number in range(10)]
    for name in names:
        open_storage(path).put(name, [])
    assert sorted(open_storage(path).list()) == sorted(names)


def test_a_volume_that_is_not_there_is_named(server: Workspace) -> None:
    with pytest.raises(FileNotFoundError, match=r"dbfs:/Volumes/main/default/another/x/a: not there.*NOT_FOUND Volume"):
        open_storage("dbfs:/Volumes/main/default/another/x").put("a", [b""])


@pytest.mark.parametrize("path", STORES)
def test_the_sdk_reads_and_writes_the_same_files(path: str, server: Workspace) -> None:
    client, storage = WorkspaceClient(), open_storage(path)
    folder = path.removeprefix("dbfs:")
    data = bytes(range(256)) * 9000
    storage.put("ours ä%20", [data])
    if path == "dbfs:/x":
        client.dbfs.upload(f"{folder}/theirs", io.BytesIO(data))
        assert client.dbfs.download(f"{folder}/ours ä%20").read() == data
        client.dbfs.delete(f"{folder}/ours ä%20")
        listed = [entry.path for entry in client.dbfs.list(folder, recursive=True)]
    else:
        client.files.upload(f"{folder}/theirs", io.BytesIO(data), overwrite=False)
        contents = client.files.download(f"{folder}/ours ä%20").contents
        assert contents is not None
        assert contents.read() == data
        client.files.delete(f"{folder}/ours ä%20")
        listed = [entry.path for entry in client.files.list_directory_contents(folder)]
    assert listed == [f"{folder}/theirs"]
    assert storage.list() == ["theirs"]
    assert storage.read("theirs") == data


@pytest.mark.parametrize("path", STORES)
def test_a_data_set_survives_a_server_that_fails_now_and_then(path: str, server: Workspace) -> None:
    server.failures = random.Random(7).choices([FINE, 429, 503, LOST], [12, 1, 1, 1], k=300)
    with MDSWriter(out=path, columns={"n": "int64"}, size_limit=300) as writer:
        for n in range(100):
            writer.write({"n": n})
    assert [int(sample["n"]) for sample in MDSReader(path)] == list(range(100))


def read_in_child(path: str) -> None:
    storage = open_storage(path)
    for _ in range(3):
        assert storage.read("a") == b"data"


@pytest.mark.parametrize("path", STORES)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_each_process_has_a_client_of_its_own(start: str, path: str, server: Workspace) -> None:
    storage = open_storage(path)
    storage.put("a", [b"data"])
    ours = {port for *_, port in server.asked}
    assert len(ours) == 1  # one connection
    server.asked.clear()
    context = multiprocessing.get_context(start)
    children = [context.Process(target=read_in_child, args=(path,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0, 0]
    theirs = {port for *_, port in server.asked}
    assert len(theirs) == 2
    assert not ours & theirs
    server.asked.clear()
    assert storage.read("a") == b"data"
    assert {port for *_, port in server.asked} == ours
