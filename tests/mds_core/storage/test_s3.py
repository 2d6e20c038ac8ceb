"""What is S3's alone: credentials, servers that fail, and processes."""

import multiprocessing
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mds_core.storage import open_storage
from tests.mds_core.storage.servers import CREDENTIALS, environment_of, s3_server


def test_a_bucket_that_is_not_there_is_named() -> None:
    with s3_server("a-bucket") as environment, environment_of(environment):
        with pytest.raises(FileNotFoundError, match=r"s3://another/x.*NoSuchBucket"):
            open_storage("s3://another/x").list()
        with pytest.raises(ValueError, match="expected s3://BUCKET/PREFIX"):
            open_storage("s3:///x")


class Failing(BaseHTTPRequestHandler):
    """A server that answers a status a number of times, and then with data."""

    status, failures, asked = 503, 0, 0

    def do_GET(self) -> None:
        """Answer."""
        kind = type(self)
        kind.asked += 1
        fail = kind.asked <= kind.failures
        body = b"<Error><Code>AccessDenied</Code></Error>" if kind.status == 403 else b"" if fail else b"data"
        self.send_response(kind.status if fail else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Sun, 29 Nov 2026 12:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def failing() -> Iterator[type[Failing]]:
    kind = type("Failing", (Failing,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with environment_of({**CREDENTIALS, "S3_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}):
        yield kind
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [500, 503, 429])
def test_what_may_pass_is_tried_again(status: int, failing: type[Failing]) -> None:
    failing.status, failing.failures = status, 2
    assert open_storage("s3://bucket/x").read("a") == b"data"
    assert failing.asked == 3


def test_what_stays_is_an_error_that_names_path_and_attempts(failing: type[Failing]) -> None:
    failing.status, failing.failures = 503, 100
    with pytest.raises(OSError, match=r"s3://bucket/x/a: could not read it in 5 attempts.*503"):
        open_storage("s3://bucket/x").read("a")
    assert failing.asked == 5


def test_what_cannot_pass_is_not_tried_again(failing: type[Failing]) -> None:
    failing.status, failing.failures = 403, 100
    with pytest.raises(PermissionError, match=r"s3://bucket/x/a: the store refuses to read it.*AWS_ACCESS_KEY_ID"):
        open_storage("s3://bucket/x").read("a")
    assert failing.asked == 1


def read_in_child(path: str) -> None:
    assert open_storage(path).read("a") == b"data"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_each_process_has_a_client_of_its_own(start: str) -> None:
    with s3_server("a-bucket") as environment, environment_of(environment):
        path = f"s3://a-bucket/{start}"
        storage = open_storage(path)
        storage.put("a", [b"data"])
        context = multiprocessing.get_context(start)
        children = [context.Process(target=read_in_child, args=(path,)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0, 0]
        assert storage.read("a") == b"data"
