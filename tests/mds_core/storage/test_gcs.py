"""What is Google Cloud Storage's alone: credentials, HMAC keys, and marks of folders."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mds_core.storage import gcs, open_storage, remote
from mds_core.storage.gcs import GCSStorage
from tests.mds_core.storage.gcs_server import gcs_server
from tests.mds_core.storage.proxy import proxy_of
from tests.mds_core.storage.servers import CREDENTIALS, environment_of, s3_server


@pytest.fixture(autouse=True)
def new_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test's client is of its own environment, in which Google's library finds nothing."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "GCS_KEY", "GCS_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:1")
    remote._clients.clear()
    yield
    remote._clients.clear()


def test_without_credentials_it_asks_as_anybody() -> None:
    storage = GCSStorage("gs://a-bucket/x", {})
    session = remote.client_of(gcs._make_session, (storage._options,))
    headers: dict[str, str] = {}
    session.credentials.before_request(None, "GET", "https://storage.googleapis.com", headers)
    assert headers == {}


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "key.json")
    with (
        environment_of({"GOOGLE_APPLICATION_CREDENTIALS": missing}),
        pytest.raises(PermissionError, match=rf"gs://a-bucket/x/a: .*{missing}.*check the credentials"),
    ):
        open_storage("gs://a-bucket/x").read("a")
    with pytest.raises(PermissionError, match=rf"{missing}.*check the credentials"):
        open_storage("gs://a-bucket/x", {"credentials_file": missing}).read("a")


class Google(BaseHTTPRequestHandler):
    """Hands out tokens, of which the first is not valid, and keeps one file."""

    tokens, stored = 0, b""

    def do_POST(self) -> None:
        """Give a token, or store the file."""
        kind = type(self)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/token":
            kind.tokens += 1
            self._say(200, {"access_token": f"a-token-{kind.tokens}", "expires_in": 3600, "token_type": "Bearer"})
        elif self._knows():
            kind.stored = body
            self._say(200, {})

    def do_GET(self) -> None:
        """Tell of the file."""
        if self._knows():
            self._say(200, {"name": "x/a", "size": "4", "generation": "7"})

    def _knows(self) -> bool:
        if self.headers.get("Authorization") == "Bearer a-token-2":
            return True
        self._say(401, {"error": {"message": "no valid token"}})
        return False

    def _say(self, status: int, about: object) -> None:
        body = json.dumps(about).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_a_key_file_gives_tokens_and_no_secret_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    google = type("Google", (Google,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), google)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    key = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    about = {"type": "service_account", "private_key": key.decode(), "token_uri": f"{url}/token"}
    file = tmp_path / "key.json"
    file.write_text(json.dumps({**about, "client_email": "a@b", "private_key_id": "1", "project_id": "p"}))
    storage = open_storage("gs://a-bucket/x", {"endpoint": url, "credentials_file": str(file)})
    with caplog.at_level(logging.DEBUG):
        storage.put("a", [b"data"])  # the first token is refused: all of it is sent again with the next
        assert google.stored.count(b"\r\n\r\ndata\r\n") == 1
        assert google.tokens == 2
        google.tokens = 7
        remote._clients.clear()
        with pytest.raises(PermissionError, match="no valid token") as error:
            storage.info("a")
    server.shutdown()
    server.server_close()
    secret = key.decode().splitlines()[1]
    for text in (repr(storage), repr(error.getrepr(style="long")), str(error.value), caplog.text):
        assert secret not in text
        assert "a-token" not in text


def test_the_project_that_pays_goes_with_each_request() -> None:
    with gcs_server("a-bucket") as environment, proxy_of(environment["STORAGE_EMULATOR_HOST"]) as server:
        storage = open_storage("gs://a-bucket/x", {"endpoint": server.url, "user_project": "payer"})
        storage.put("a", [b"data"])
        assert storage.read("a") == b"data"
        assert storage.list() == ["a"]
        storage.delete("a")
        assert [query for query in server.queries if "userProject=payer" not in query] == []


def test_marks_of_folders_are_no_files() -> None:
    with gcs_server("a-bucket") as environment, environment_of(environment):
        for name in ("x/", "x/sub/", "x/sub/a"):
            requests.post(
                f"{environment['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/a-bucket/o",
                params={"uploadType": "media", "name": name},
                timeout=10,
            ).raise_for_status()
        assert open_storage("gs://a-bucket/x").list() == ["sub/a"]


def test_hmac_keys_read_and_do_not_write(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server("a-bucket") as environment:
        with environment_of(environment):
            open_storage("s3://a-bucket/hmac").put("a", [b"data"])
        monkeypatch.setenv("GCS_KEY", CREDENTIALS["AWS_ACCESS_KEY_ID"])
        monkeypatch.setenv("GCS_SECRET", CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
        storage = open_storage("gs://a-bucket/hmac", {"endpoint": environment["S3_ENDPOINT_URL"]})
        assert storage.list() == ["a"]
        assert storage.read("a") == b"data"
        for do in (
            lambda: storage.put("b", [b""]),
            lambda: storage.replace("a", b"", b"data"),
            lambda: storage.delete("a"),
        ):
            with pytest.raises(PermissionError, match=r"gs://a-bucket/hmac/.: .*to write, set GOOGLE_APPLICATION"):
                do()
        assert storage.list() == ["a"]
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in repr(storage)


def test_other_credentials_go_before_hmac_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCS_KEY", "a-key")
    monkeypatch.setenv("GCS_SECRET", "a-secret")
    assert isinstance(open_storage("gs://a-bucket/x", {"anonymous": "true"}), GCSStorage)
    assert not isinstance(open_storage("gs://a-bucket/x"), GCSStorage)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    assert isinstance(open_storage("gs://a-bucket/x"), GCSStorage)
