"""What is Azure's alone: ways to name an account, credentials, and marks of folders."""

import datetime
import logging
import re
import threading
import traceback
from collections.abc import Iterator
from functools import partial

import pytest
from azure.storage.blob import (
    AccountSasPermissions,
    BlobServiceClient,
    ContainerSasPermissions,
    ResourceTypes,
    generate_account_sas,
    generate_container_sas,
)

from mds_core.storage import open_storage, remote
from tests.mds_core.storage.azure_server import ACCOUNT, KEY, azure_server
from tests.mds_core.storage.proxy import proxy_of


@pytest.fixture(scope="module")
def connection() -> Iterator[str]:
    """The connection string of a server with a container."""
    with azure_server("a-container") as environment:
        yield environment["AZURE_STORAGE_CONNECTION_STRING"]


@pytest.fixture
def endpoint(connection: str) -> str:
    return connection.partition("BlobEndpoint=")[2]


@pytest.fixture(autouse=True)
def new_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test's client is of its own environment, in which azure-identity looks at variables only."""
    for name in (
        "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY",
        "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_ID", "AZURE_TENANT_ID",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    remote._clients.clear()
    yield
    remote._clients.clear()


def in_an_hour() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)


@pytest.mark.parametrize(
    "form",
    [
        "azure://a-container/{}",
        "azure-dl://a-container/{}",
        "abfs://a-container@anaccount.dfs.core.windows.net/{}",
        "abfss://a-container@anaccount.dfs.core.windows.net/{}",
        "wasb://a-container@anaccount.blob.core.windows.net/{}",
        "wasbs://a-container@anaccount.blob.core.windows.net/{}",
    ],
)
def test_all_names_of_a_container_are_the_same(form: str, connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    folder = re.sub(r"\W", "-", form)
    open_storage(f"azure://a-container/{folder}").put("a", [b"data"])
    storage = open_storage(form.format(folder))
    assert (storage.root, storage.list()) == (form.format(folder), ["a"])
    assert storage.read("a") == b"data"


@pytest.mark.parametrize(
    "names",
    [("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"), ("AZURE_ACCOUNT_NAME", "AZURE_ACCOUNT_ACCESS_KEY")],
    ids=["Azure's", "Mosaic Streaming's"],
)
def test_keys_come_from_the_environment(names: tuple[str, str], endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names[0], ACCOUNT)
    monkeypatch.setenv(names[1], KEY)
    storage = open_storage(f"azure://a-container/{names[0]}", {"endpoint": endpoint})
    storage.put("a", [b"data"])
    assert storage.list() == ["a"]


def test_credentials_may_be_options(connection: str, endpoint: str) -> None:
    token = generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(container=True, object=True),
        AccountSasPermissions(read=True, list=True),
        in_an_hour(),
    )
    account = {"endpoint": endpoint, "account_name": ACCOUNT}
    open_storage("azure://a-container/o", {**account, "account_key": KEY}).put("a", [b"data"])
    for options in ({"connection_string": connection}, {**account, "sas_token": f"?{token}"}):
        assert open_storage("azure://a-container/o", options).read("a") == b"data"
    with pytest.raises(PermissionError, match="the store refuses to write it"):
        open_storage("azure://a-container/o", {**account, "sas_token": token}).put("b", [b""])


def test_a_public_container_is_read_without_credentials(connection: str, endpoint: str) -> None:
    BlobServiceClient.from_connection_string(connection).create_container("public", public_access="container")
    open_storage("azure://public/x", {"connection_string": connection}).put("a", [b"data"])
    options = {"endpoint": endpoint, "account_name": ACCOUNT, "anonymous": "true"}
    assert open_storage("azure://public/x", options).read("a") == b"data"
    with pytest.raises(PermissionError, match="azure://a-container/x: the store refuses to list it"):
        open_storage("azure://a-container/x", options).list()


def test_a_wrong_key_is_refused_with_an_advice_and_not_shown(endpoint: str) -> None:
    for key in ("d3Jvbmc=", "no base64"):
        options = {"endpoint": endpoint, "account_name": ACCOUNT, "account_key": key}
        storage = open_storage("azure://a-container/x", options)
        with pytest.raises(PermissionError, match=r"azure://a-container/x/a: .*AZURE_STORAGE_ACCOUNT_KEY") as error:
            storage.read("a")
        assert key not in repr(storage) + "".join(traceback.format_exception(error.value))


def test_no_credentials_at_all_is_an_advice() -> None:
    for path in ("azure://a-container/x", "abfss://a-container@anaccount.dfs.core.windows.net/x"):
        options = {"account_name": ACCOUNT}
        with pytest.raises(PermissionError, match=rf"{path}/a: .*DefaultAzureCredential.*AZURE_STORAGE_SAS_TOKEN"):
            open_storage(path, options).read("a")


def test_credentials_of_another_account_are_not_sent(connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "abfss://a-container@another.dfs.core.windows.net/x"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    with pytest.raises(PermissionError, match="DefaultAzureCredential"):
        open_storage(path).read("a")
    with pytest.raises(ValueError, match="is of the account anaccount, expected another"):
        open_storage(path, {"connection_string": connection}).read("a")
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    with pytest.raises(PermissionError, match="DefaultAzureCredential"):
        open_storage(path, {"endpoint": "https://127.0.0.1:1"}).read("a")


def test_mistakes_are_named(endpoint: str) -> None:
    with pytest.raises(ValueError, match="does not say of which account: set AZURE_STORAGE_ACCOUNT_NAME"):
        open_storage("azure://a-container/x").read("a")
    secret = KEY
    with pytest.raises(ValueError, match="expected AccountName=") as error:
        open_storage("azure://a-container/x", {"connection_string": secret}).read("a")
    assert secret not in "".join(traceback.format_exception(error.value))
    with pytest.raises(ValueError, match="the option account_name is other"):
        open_storage("abfss://c@anaccount.dfs.core.windows.net/x", {"account_name": "other"})
    with pytest.raises(ValueError, match="tokens do not go in the clear"):
        open_storage("azure://a-container/x", {"account_name": ACCOUNT, "endpoint": endpoint}).read("a")
    for path in ("abfss://a-container@anaccount/x", "azure:///x"):
        with pytest.raises(ValueError, match=r"expected azure://CONTAINER/PREFIX, or abfss://"):
            open_storage(path)


def test_signatures_are_not_shown(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    token = generate_container_sas(
        ACCOUNT, "a-container", account_key=KEY, permission=ContainerSasPermissions(read=True), expiry=in_an_hour()
    )
    signature = token.partition("sig=")[2].partition("&")[0]
    options = {"account_name": ACCOUNT, "sas_token": token}
    with caplog.at_level(logging.DEBUG), proxy_of(endpoint) as server:
        for url in (f"{server.url}/{ACCOUNT}", "http://127.0.0.1:1"):
            storage = open_storage("azure://a-container/x", {**options, "endpoint": url})
            faults = iter(["503"] * 2 + ["lost"] * 3 + ["403"] * 9)
            server.fault = lambda method, path, n, faults=faults: next(faults)
            for do in (partial(storage.read, "a"), storage.list):
                with pytest.raises(OSError, match="azure://a-container/x") as error:
                    do()
                assert signature not in repr(storage) + "".join(traceback.format_exception(error.value))
    assert "sig=" in caplog.text
    assert signature not in caplog.text


def test_marks_of_folders_are_no_files(connection: str) -> None:
    container = BlobServiceClient.from_connection_string(connection).get_container_client("a-container")
    container.upload_blob("marks/sub", b"", metadata={"hdi_isfolder": "true"})
    container.upload_blob("marks/a", b"", metadata={"other": "true"})
    assert open_storage("azure://a-container/marks", {"connection_string": connection}).list() == ["a"]


def test_writers_of_one_file_at_once_do_not_mix_its_pieces(connection: str) -> None:
    storage = open_storage("azure://a-container/race", {"connection_string": connection})
    start, failed = threading.Barrier(4), []

    def put(number: int) -> None:
        start.wait()
        try:
            storage.put("a", [bytes([number]) * (9 << 20)])
        except FileExistsError:
            failed.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = {*range(4)} - {*failed}
    assert storage.read("a") == bytes([winner]) * (9 << 20)
