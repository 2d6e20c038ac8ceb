"""The S3 server of remote.py, in a process of its own: moto's, which answers late, and counts what it answers.

    python benchmarks/remote_server.py        # prints its port; ends when its stdin does

`GET /__stats?latency=0.02` gives what was asked for since the last time as JSON, {"GET /bucket/key": [requests, bytes
of bodies]}, forgets it, and makes each request from now on wait 20 ms before it is looked at.
"""

import json
import sys
import threading
import time
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

CONTROL = "/__stats"


def main():
    server = make_server(
        "127.0.0.1", 0, Counted(DomainDispatcherApplication(create_backend_app)), threaded=True, request_handler=Handler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


class Counted:
    """A WSGI application in front of another."""

    def __init__(self, application):
        self.application = application
        self.latency = 0.0
        self.counts = {}
        self.lock = threading.Lock()

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"]
        if path == CONTROL:
            return self.control(environ, start_response)
        name = f"{environ['REQUEST_METHOD']} {path}"
        self.count(name, 1, 0)
        time.sleep(self.latency)
        return self.body(name, self.application(environ, start_response))

    def body(self, name, chunks):
        try:
            for chunk in chunks:
                self.count(name, 0, len(chunk))
                yield chunk
        finally:
            if hasattr(chunks, "close"):
                chunks.close()

    def count(self, name, requests, size):
        with self.lock:
            counted = self.counts.setdefault(name, [0, 0])
            counted[0] += requests
            counted[1] += size

    def control(self, environ, start_response):
        with self.lock:
            counts, self.counts = self.counts, {}
        latency = parse_qs(environ["QUERY_STRING"]).get("latency")
        if latency:
            self.latency = float(latency[0])
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(counts).encode()]


class Handler(MotoRequestHandler):
    # Headers and a short body are two packets: the second would wait for the client to confirm the first.
    disable_nagle_algorithm = True

    def log(self, *args):
        """Write no log."""


if __name__ == "__main__":
    main()
