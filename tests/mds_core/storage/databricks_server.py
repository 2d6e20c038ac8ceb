"""A Databricks workspace for the tests: a server of the REST calls for files, in volumes and in the DBFS root.

Paths, verbs, limits and errors are those that the SDK's source and the API's reference show. It knows no multipart
uploads and no presigned URLs: the SDK then falls back on the calls that are here.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "dapi-a-token"
CLIENT_ID, CLIENT_SECRET = "a-client", "dose-a-secret"
VOLUME = "/Volumes/main/default/a_volume"
BLOCK = 1 << 20
LOST, CUT, FINE = 0, -1, -2


class Refused(Exception):
    """What a request is answered instead of success."""

    def __init__(self, status: int, code: str | int, message: str):
        super().__init__(message)
        self.status, self.body = status, {"error_code": code, "message": message}


class Workspace(ThreadingHTTPServer):
    """A workspace in memory, with what a test may let fail."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.RLock()
        self.files: dict[str, tuple[bytes, float]] = {}
        self.folders: set[str] = {VOLUME}
        self.handles: dict[int, str] = {}
        self.numbers = count(1)
        # The requests that came: verb, path, and the client's port.
        self.asked: list[tuple[str, str, int]] = []
        # The next requests of these verbs are answered a status, or none (LOST), or half (CUT), or as ever (FINE).
        self.failures: list[int] = []
        self.failing = ("GET", "HEAD", "PUT", "POST", "DELETE")
        self.failure_headers: dict[str, str] = {}
        # How long an answer's body takes to begin.
        self.stall = 0.0
        self.page_size = 3
        self.knows_ranges = True
        self.makes_folders = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go away in the tests."""

    def store(self, path: str, data: bytes, overwrite: bool, exists: Refused) -> None:
        """Store a file, with its folders."""
        with self.lock:
            if path in self.folders or (path in self.files and not overwrite):
                raise exists
            parts = path.split("/")[1:-1]
            for end in range(1, len(parts) + 1):
                folder = "/" + "/".join(parts[:end])
                if folder in self.files:
                    raise exists
                self.folders.add(folder)
            self.files[path] = data, time.time()

    def children(self, folder: str) -> list[tuple[str, bool, int, int]]:
        """Paths in a folder: whether they are folders, their sizes, and their times in milliseconds."""
        with self.lock:
            found = [(path, False, len(data), int(at * 1000)) for path, (data, at) in self.files.items()]
            found += [(path, True, 0, 0) for path in self.folders]
        return sorted(entry for entry in found if entry[0].rpartition("/")[0] == folder.rstrip("/"))


class Handler(BaseHTTPRequestHandler):
    """Answers a request."""

    server: Workspace
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def answer(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        cut = self.failure == CUT and len(body) > 1
        if self.failure == LOST:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.server.stall:
            self.wfile.flush()
            time.sleep(self.server.stall)
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def answer_json(self, value: Any, status: int = 200, **headers: str) -> None:
        body = b"" if self.command == "HEAD" else json.dumps(value).encode()
        self.answer(status, body, Content_Type="application/json", **headers)

    def handle_request(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.data = self.rfile.read(size)
        url = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.failure: int | None = None
        if url.path == "/.well-known/databricks-config":  # which is asked without a token
            host = self.server.url
            self.answer_json({"oidc_endpoint": f"{host}/oidc", "account_id": "an-account", "workspace_id": "4711"})
            return
        if url.path == "/oidc/.well-known/oauth-authorization-server":
            host = self.server.url
            self.answer_json(
                {"authorization_endpoint": f"{host}/oidc/v1/authorize", "token_endpoint": f"{host}/oidc/v1/token"}
            )
            return
        if url.path == "/oidc/v1/token":
            known = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
            if self.headers.get("Authorization") == f"Basic {known}":
                self.answer_json({"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600})
            else:
                self.answer_json({"error": "invalid_client", "error_description": "Client authentication failed"}, 401)
            return
        self.server.asked.append((self.command, url.path, self.client_address[1]))
        with self.server.lock:
            if self.server.failures and self.command in self.server.failing:
                self.failure = self.server.failures.pop(0)
        try:
            if self.failure is not None and self.failure > 0:
                headers, status, self.failure = self.server.failure_headers, self.failure, None
                self.answer_json({"error_code": "FAILED", "message": "as the test wants"}, status, **headers)
                return
            self.authorize()
            for prefix, kind in {
                "/api/2.0/fs/files": "files",
                "/api/2.0/fs/directories": "directories",
                "/api/2.0/dbfs/": "dbfs",
            }.items():
                if url.path.startswith(prefix):
                    path = unquote(url.path.removeprefix(prefix))
                    name = f"{kind}_{self.command}" if kind != "dbfs" else f"dbfs_{path.replace('-', '_')}"
                    if hasattr(self, name):
                        getattr(self, name)(path)
                        return
            raise Refused(404, "ENDPOINT_NOT_FOUND", f"No API found for '{self.command} {url.path}'")
        except Refused as error:
            self.answer_json(error.body, error.status)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    def authorize(self) -> None:
        given = self.headers.get("Authorization")
        if given is None:
            raise Refused(401, 401, "Credential was not sent or was of an unsupported type for this API.")
        if given != f"Bearer {TOKEN}":
            raise Refused(403, 403, "Invalid access token.")

    # The Files API: volumes.

    def in_volume(self, path: str) -> str:
        path = path.rstrip("/")
        if not f"{path}/".startswith(f"{VOLUME}/"):
            raise Refused(404, "NOT_FOUND", f"Volume of '{path}' does not exist.")
        return path

    def file(self, path: str) -> tuple[bytes, float]:
        found = self.server.files.get(self.in_volume(path))
        if found is None:
            raise Refused(404, "NOT_FOUND", "The file being accessed is not found.")
        return found

    def files_GET(self, path: str) -> None:
        data, at = self.file(path)
        headers = {"Content_Type": "application/octet-stream", "Last_Modified": formatdate(at, usegmt=True)}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None or not self.server.knows_ranges:
            self.answer(200, data, **headers)
            return
        start, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if start >= len(data):
            raise Refused(416, "INVALID_RANGE", "The range is not satisfiable.")
        headers["Content_Range"] = f"bytes {start}-{last}/{len(data)}"
        self.answer(206, data[start : last + 1], **headers)

    files_HEAD = files_GET

    def files_PUT(self, path: str) -> None:
        path = self.in_volume(path)
        if "Content-Length" not in self.headers:
            raise Refused(411, "BAD_REQUEST", "Length Required")
        if not self.server.makes_folders and path.rpartition("/")[0] not in self.server.folders:
            raise Refused(404, "NOT_FOUND", "The parent directory does not exist.")
        exists = Refused(409, "ALREADY_EXISTS", "The file being created already exists.")
        self.server.store(path, self.data, self.query.get("overwrite") != "false", exists)
        self.answer(204)

    def files_DELETE(self, path: str) -> None:
        self.file(path)
        with self.server.lock:
            self.server.files.pop(self.in_volume(path), None)
        self.answer(204)

    def directories_GET(self, path: str) -> None:
        path = self.in_volume(path)
        if path not in self.server.folders:
            raise Refused(404, "NOT_FOUND", "The directory being accessed is not found.")
        found = self.server.children(path)
        start = int(base64.b64decode(self.query.get("page_token", "")) or 0)
        stop = start + min(self.server.page_size, int(self.query.get("page_size", 1000)))
        page: dict[str, Any] = {
            "contents": [
                {"path": child, "name": child.rpartition("/")[2], "is_directory": is_folder}
                | ({} if is_folder else {"file_size": size, "last_modified": at})
                for child, is_folder, size, at in found[start:stop]
            ]
        }
        if stop < len(found):
            page["next_page_token"] = base64.b64encode(str(stop).encode()).decode()
        self.answer_json(page)

    def directories_HEAD(self, path: str) -> None:
        if self.in_volume(path) not in self.server.folders:
            raise Refused(404, "NOT_FOUND", "The directory being accessed is not found.")
        self.answer()

    def directories_PUT(self, path: str) -> None:
        with self.server.lock:
            parts = self.in_volume(path).split("/")
            self.server.folders |= {"/".join(parts[:end]) for end in range(2, len(parts) + 1)}
        self.answer(204)

    # The DBFS API.

    def dbfs_path(self, path: str) -> str:
        if not path.startswith("/"):
            raise Refused(400, "INVALID_PARAMETER_VALUE", "Path must be absolute")
        if path.startswith("/Volumes"):
            raise Refused(403, "PERMISSION_DENIED", "No operations allowed on this path.")
        return path

    def dbfs_status(self, path: str) -> dict[str, Any]:
        path = self.dbfs_path(path)
        with self.server.lock:
            if path in self.server.files:
                data, at = self.server.files[path]
                found = {"is_dir": False, "file_size": len(data), "modification_time": int(at * 1000)}
            elif path in self.server.folders:
                found = {"is_dir": True, "file_size": 0, "modification_time": 0}
            else:
                raise Refused(404, "RESOURCE_DOES_NOT_EXIST", f"No file or directory exists on path {path}.")
        return {"path": path, **found}

    def body(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.data)
        return document

    def dbfs_get_status(self, _: str) -> None:
        self.answer_json(self.dbfs_status(self.query["path"]))

    def dbfs_list(self, _: str) -> None:
        found = self.dbfs_status(self.query["path"])
        if not found["is_dir"]:
            self.answer_json({"files": [found]})
            return
        files = [self.dbfs_status(path) for path, *_ in self.server.children(found["path"])]
        self.answer_json({"files": files} if files else {})

    def dbfs_read(self, _: str) -> None:
        found = self.dbfs_status(self.query["path"])
        offset, length = int(self.query.get("offset", 0)), int(self.query.get("length", BLOCK // 2))
        if length > BLOCK:
            raise Refused(400, "MAX_READ_SIZE_EXCEEDED", "The read length exceeds 1 MB")
        if found["is_dir"] or length < 0 or offset < 0:
            raise Refused(400, "INVALID_PARAMETER_VALUE", "Cannot read it")
        data = self.server.files[found["path"]][0][offset : offset + length]
        self.answer_json({"bytes_read": len(data), "data": base64.b64encode(data).decode()})

    def exists(self, path: str) -> Refused:
        return Refused(400, "RESOURCE_ALREADY_EXISTS", f"A file or directory already exists at the path {path}.")

    def dbfs_create(self, _: str) -> None:
        path = self.dbfs_path(self.body()["path"])
        self.server.store(path, b"", self.body().get("overwrite", False), self.exists(path))
        with self.server.lock:
            handle = next(self.server.numbers)
            self.server.handles[handle] = path
        self.answer_json({"handle": handle})

    def opened(self) -> str:
        handle = self.body()["handle"]
        if handle not in self.server.handles:
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST", f"No stream with handle {handle}")
        return self.server.handles[handle]

    def dbfs_add_block(self, _: str) -> None:
        path = self.opened()
        block = base64.b64decode(self.body()["data"])
        if len(block) > BLOCK:
            raise Refused(400, "MAX_BLOCK_SIZE_EXCEEDED", "The block exceeds 1 MB")
        with self.server.lock:
            self.server.files[path] = self.server.files[path][0] + block, time.time()
        self.answer_json({})

    def dbfs_close(self, _: str) -> None:
        self.opened()
        del self.server.handles[self.body()["handle"]]
        self.answer_json({})

    def dbfs_put(self, _: str) -> None:
        kind, boundary = self.headers["Content-Type"].partition("; boundary=")[::2]
        if kind == "multipart/form-data":
            parts = {}
            for part in self.data.split(b"--" + boundary.encode())[1:-1]:
                head, value = part.partition(b"\r\n\r\n")[::2]
                parts[re.search(rb'name="(\w+)"', head)[1].decode()] = value.removesuffix(b"\r\n")  # type: ignore[index]
            path, contents = parts["path"].decode(), parts["contents"]
            overwrite = parts.get("overwrite", b"").lower() == b"true"
        else:
            path, overwrite = self.body()["path"], self.body().get("overwrite", False)
            contents = base64.b64decode(self.body()["contents"])
            if len(contents) > BLOCK:
                raise Refused(400, "MAX_BLOCK_SIZE_EXCEEDED", "The contents exceed 1 MB")
        self.server.store(self.dbfs_path(path), contents, overwrite, self.exists(path))
        self.answer_json({})

    def dbfs_move(self, _: str) -> None:
        source, target = self.body()["source_path"], self.dbfs_path(self.body()["destination_path"])
        with self.server.lock:
            self.dbfs_status(source)
            self.server.store(target, self.server.files[source][0], False, self.exists(target))
            del self.server.files[source]
        self.answer_json({})

    def dbfs_delete(self, _: str) -> None:
        with self.server.lock:
            self.server.files.pop(self.dbfs_path(self.body()["path"]), None)
        self.answer_json({})

    def dbfs_mkdirs(self, _: str) -> None:
        with self.server.lock:
            parts = self.dbfs_path(self.body()["path"]).split("/")
            self.server.folders |= {"/".join(parts[:end]) for end in range(2, len(parts) + 1)}
        self.answer_json({})


@contextmanager
def workspace() -> Iterator[Workspace]:
    """Run a workspace, of one volume."""
    server = Workspace()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        with contextlib.suppress(OSError):
            server.server_close()


def environment(server: Workspace, token: str = TOKEN) -> dict[str, str]:
    """Give the environment that a workspace's clients need, whatever else this machine has."""
    return {
        "DATABRICKS_HOST": server.url,
        "DATABRICKS_TOKEN": token,
        "DATABRICKS_AUTH_TYPE": "pat",
        "DATABRICKS_CONFIG_FILE": "/nonexistent",
    }
