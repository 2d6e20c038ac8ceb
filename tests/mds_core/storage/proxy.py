"""A proxy before a store's server, which answers some requests as servers in trouble do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Proxy(BaseHTTPRequestHandler):
    """Hands requests on, but for those that `faults` says something of, in turn.

    A fault is a status to answer; `lose` hands the request on and loses the answer; `cut` and `stall` send half of the
    answer's body, and end the connection or say no more; None is no fault.
    """

    protocol_version = "HTTP/1.1"
    target, url = "", ""
    faults: Iterator[int | str | None] = iter(())
    asked: list[str]
    end: threading.Event

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append(f"{self.command} {self.path}")
        fault = next(self.faults, None)
        if isinstance(fault, int):
            self.send_response(fault)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = HTTPConnection(self.target, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        self.close_connection = fault is not None
        if fault == "lose":
            return
        self.send_response(answer.status)
        dropped = {"content-length", "transfer-encoding", "connection", "date", "server"}
        for name, value in answer.getheaders():
            if name.lower() not in dropped or (name.lower() == "content-length" and self.command == "HEAD"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if fault else data)
        if fault == "stall":
            self.wfile.flush()
            self.end.wait(60)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def proxy(url: str) -> Iterator[type[Proxy]]:
    """Run a proxy before a server; it has the proxy's address as `url`."""
    kind = type("OneProxy", (Proxy,), {"target": urlsplit(url).netloc, "asked": [], "end": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    kind.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield kind
    finally:
        kind.end.set()
        server.shutdown()
        server.server_close()
