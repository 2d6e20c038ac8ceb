"""A server between clients and a store: it counts what is asked for, and fails where a test wants it to."""

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# From method, path and how often this was asked for, counted from 0, to what goes wrong: "close" the connection before
# anything is done, or when it is done and not answered yet ("lost"); in the middle of the body, "reset" it, "truncate"
# the body or "stall"; "flip" a bit of it; a status such as "503"; or "" for nothing.
Fault = Callable[[str, str, int], str]


class Proxy:
    """What passed, and what is to go wrong. `url` is where clients ask."""

    def __init__(self, target: str):
        self.url = ""
        self.target = urlsplit(target)
        self.fault: Fault = lambda method, path, n: ""
        self.latency = 0.0
        self.asked: Counter[tuple[str, str]] = Counter()
        self.queries: list[str] = []
        self.ended = threading.Event()
        self.lock = threading.Lock()

    def fail_in_turn(self, *faults: str) -> None:
        """Make the next requests fail, each its own way, and those after them pass."""
        left = iter(faults)
        self.fault = lambda method, path, n: next(left, "")

    def count(self) -> int:
        """Give how many requests there were."""
        with self.lock:
            return sum(self.asked.values())

    def fetched(self, ending: str = ".mds") -> dict[str, int]:
        """Give how often each file of an ending was asked for as a whole, by its name."""
        with self.lock:
            return {
                path.rpartition("/")[2]: count
                for (method, path), count in self.asked.items()
                if method == "GET" and path.endswith(ending)
            }

    def clear(self) -> None:
        """Count from 0."""
        with self.lock:
            self.asked.clear()
            self.queries.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def answer(self) -> None:
        proxy = self.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        what = self.command, urlsplit(self.path).path
        with proxy.lock:
            n = proxy.asked[what]
            proxy.asked[what] += 1
            proxy.queries.append(urlsplit(self.path).query)
        time.sleep(proxy.latency)
        fault = proxy.fault(*what, n)
        if fault == "close":
            self.close_connection = True
            return
        if fault.isdigit():
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = http.client.HTTPConnection(proxy.target.hostname or "", proxy.target.port or 80)
        connection.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k != "Expect"})
        found = connection.getresponse()
        data = found.read()
        connection.close()
        if fault == "lost":
            self.close_connection = True
            return
        self.send_response(found.status)
        for name, value in found.getheaders():
            dropped = ("transfer-encoding", "connection", "date", "server", "content-length")
            if name.lower() not in dropped or (name.lower() == "content-length" and self.command == "HEAD"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "flip" and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        half = len(data) // 2
        if fault in ("reset", "stall", "truncate"):
            self.wfile.write(data[:half])
            self.wfile.flush()
            if fault == "stall":
                proxy.ended.wait(60)
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *args: object) -> None:
        """Say nothing of clients that are killed."""


@contextmanager
def proxy_of(target: str) -> Iterator[Proxy]:
    """Run a proxy of a server, such as `http://127.0.0.1:5000`."""
    proxy = Proxy(target)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.ended.set()
        server.shutdown()
        with contextlib.suppress(OSError):
            server.server_close()
