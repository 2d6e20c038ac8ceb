"""Data sets on Databricks, by its REST API: in Unity Catalog's volumes, and in the DBFS root.

The SDK finds the credentials and renews them. The requests themselves are plain HTTP: the SDK's own calls repeat for
minutes, also the appending of a block, but not after 500, 502 and 504; they tell no status, have one time-out for all,
and split large uploads into parts, where one request is what makes `overwrite=false` a promise.
"""

from __future__ import annotations

import base64
import contextlib
import posixpath
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

import requests
from databricks.sdk.core import Config
from requests.adapters import HTTPAdapter

from mds_core.storage.info import Info, Version
from mds_core.storage.remote import ATTEMPTS, BUSY, CHANGED, CHUNK, PASSING, STALL, Parts, RemoteStorage, pause_after

# How long to wait for a connection, and for the answer to what may take a server long: a large upload, a long listing.
_CONNECT, _ANSWER = 10.0, 120.0
# DBFS reads and appends at most so many bytes at once.
_BLOCK = 1 << 20
# What may pass: no answer, and answers of a server that is busy.
# The longest pause that a server may ask for.
_PATIENCE = 30.0
# What the DBFS API answers with 400, or with 404 as the rest.
_STATUSES = {"RESOURCE_ALREADY_EXISTS": 409, "RESOURCE_DOES_NOT_EXIST": 404}


class Failure(Exception):
    """A request without success.

    Args:
        status: the HTTP status, or None if there was no answer.
        text: what happened.
        wait: how many seconds the server asks to wait.
    """

    def __init__(self, status: int | None, text: str, wait: float = 0):
        super().__init__(text)
        self.status = status
        self.wait = wait
        self.attempts = 1


class _Workspace:
    """Sends requests to a workspace, in the name of the user whom the SDK finds."""

    def __init__(self, options: tuple[tuple[str, str], ...]):
        given: dict[str, Any] = dict(options)
        if "token" in given:
            given["auth_type"] = "pat"  # whatever else the environment has
        try:
            # These times are for what the SDK asks the host about itself, without which it goes on.
            self._config = Config(http_timeout_seconds=_CONNECT, retry_timeout_seconds=3, **given)
        except Exception as error:  # each way to authenticate has its own ones
            raise Failure(401, f"no credentials: {error}") from None
        if not self._config.host:
            raise Failure(401, f"no host: {self._config}")
        self._session = requests.Session()
        self._session.mount("https://", HTTPAdapter(pool_maxsize=64))
        self._session.mount("http://", HTTPAdapter(pool_maxsize=64))

    def ask(
        self, method: str, path: str, *, timeout: float = _ANSWER, headers: Mapping[str, str] | None = None, **rest: Any
    ) -> requests.Response:
        """Send a request, once; raise Failure unless it succeeds."""
        given = {"User-Agent": self._config.user_agent, "Accept-Encoding": "identity", **(headers or {})}
        if workspace := getattr(self._config, "workspace_id", None):
            given["X-Databricks-Workspace-Id"] = str(workspace)
        try:
            token = self._config.authenticate()  # which the SDK renews if it is old
        except requests.RequestException as error:
            raise Failure(None, f"no credentials: {error}") from None
        except Exception as error:
            raise Failure(401, f"no credentials: {error}") from None

        def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers.update(token)  # not those of a ~/.netrc
            return request

        try:
            answer = self._session.request(
                method, f"{self._config.host}{path}", headers=given, auth=sign, timeout=(_CONNECT, timeout), **rest
            )
            if not answer.ok:
                raise _failure_of(answer)
        except requests.RequestException as error:
            raise Failure(None, f"{type(error).__name__}: {error}") from None
        except ValueError:  # it would show the token
            raise Failure(401, "a token that can't be sent: is there a line's end in it?") from None
        if answer.history and urlsplit(answer.url).path.endswith("login.html"):
            raise Failure(403, "sent to a login page: the workspace can't be reached from this network")
        return answer


def _failure_of(answer: requests.Response) -> Failure:
    try:
        found = answer.json()
        code, text = str(found.get("error_code", "")), str(found.get("message", ""))
    except (ValueError, AttributeError):  # of a proxy
        code, text = "", answer.text[:200]
    status = _STATUSES.get(code, answer.status_code)
    wait = answer.headers.get("Retry-After", "")
    return Failure(
        status,
        " ".join(filter(None, [str(answer.status_code), code or answer.reason, text])),
        min(float(wait), _PATIENCE) if wait.isdecimal() else 0,
    )


class _DatabricksStorage(RemoteStorage):
    """What volumes and the DBFS root have in common."""

    OPTIONS = ("host", "token", "profile")
    HELP = (
        "check the credentials: set DATABRICKS_HOST and DATABRICKS_TOKEN (or DATABRICKS_CLIENT_ID and "
        "DATABRICKS_CLIENT_SECRET, or a profile in DATABRICKS_CONFIG_PROFILE) in every process that reads or writes; "
        "under TorchDistributor, set them inside of the training function, on the workers: the driver's environment "
        "does not travel"
    )
    ENVIRONMENT = ("DATABRICKS_", "ARM_")
    ERRORS = (Failure,)
    atomic_replace = False

    def __init__(self, root: str, options: Mapping[str, str]):
        path = _path_of(root)
        super().__init__(f"dbfs:{path}", path, options)

    @property
    def _workspace(self) -> _Workspace:
        workspace: _Workspace = self._client_of(_Workspace)
        return workspace

    def _path(self, name: str) -> str:
        return f"/{self._key(name)}"

    def _status(self, error: Exception) -> int | None:
        return error.status if isinstance(error, Failure) else None

    def _ask(
        self,
        method: str,
        path: str,
        body: Parts | None = None,
        passing: tuple[int | None, ...] = PASSING,
        **rest: Any,
    ) -> requests.Response:
        """Send a request, again while its failure may pass."""
        for attempt in range(ATTEMPTS):
            if body is not None:
                body.seek(0)
                rest["data"] = body if body.size else b""  # requests sends an empty file as one of unknown size
            try:
                return self._workspace.ask(method, path, **rest)
            except Failure as error:
                if not self._repeats(error, passing, attempt, None):
                    raise
        raise AssertionError  # the last attempt returns or raises

    def _holds(self, name: str, body: Parts, error: Failure) -> bool:
        """Tell whether a file is "there already" because an attempt before, whose answer was lost, has stored it."""
        if error.attempts == 1:
            return False
        body.seek(0)
        return self.read(name) == body.read()

    def _write(self, name: str, body: Parts, overwrite: bool) -> None:
        """Store a file in one request."""
        raise NotImplementedError

    def _entries(self, folder: str) -> Iterable[tuple[str, bool]]:
        """Give the paths in a folder, and whether each is a folder itself."""
        raise NotImplementedError

    def list(self) -> list[str]:
        """List the names of all files, at any depth."""
        root = f"/{self._prefix}"
        names, folders = [], [root]
        with self._errors("list", ""):
            while folders:
                try:
                    for path, is_folder in self._entries(folders.pop()):
                        if is_folder:
                            folders.append(path)
                        else:
                            names.append(path[len(root) + 1 :])
                except Failure as error:
                    if error.status != 404:  # not there, or not any more
                        raise
        return names

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace a file if it still is what was expected (None: not there); tell whether.

        A new file never replaces another. Otherwise there is no condition that the store would check: of two
        replacements in the same instant both may be told that they took place, and one stands, whole.
        """
        if self.read(name) != expected:
            return False
        with self._errors("write", name):
            try:
                self._write(name, Parts([data]), overwrite=expected is not None)
            except Failure as error:
                if error.status in CHANGED:
                    return False
                raise
        return True


class VolumeStorage(_DatabricksStorage):
    """A folder of a volume, by the Files API. See `mds_core.storage.Storage` for what each method does."""

    def __init__(self, root: str, options: Mapping[str, str]):
        super().__init__(root, options)
        if not re.match(r"Volumes(/[^/]+){3}(/|$)", self._prefix):
            raise ValueError(f"expected dbfs:/Volumes/CATALOG/SCHEMA/VOLUME/FOLDER, found {root!r}")

    def _file(self, name: str) -> str:
        return "/api/2.0/fs/files" + quote(self._path(name))

    def _stream(self, name: str, start: int, stop: int | None, timeout: float) -> tuple[Iterable[bytes], Version]:
        some = {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        answer = self._ask("GET", self._file(name), passing=(), timeout=timeout, headers=some, stream=True)
        if answer.status_code == 206:
            total = _header(answer, "Content-Range").rpartition("/")[2]
            return _body(answer, 0, None), _version(answer, total)
        return _body(answer, start, stop), _version(answer, _header(answer, "Content-Length"))

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""
        with self._errors("look at", name):
            try:
                answer = self._ask("HEAD", self._file(name), timeout=STALL)
            except Failure as error:
                if error.status == 404:
                    return None
                raise
            size = _header(answer, "Content-Length")
            return Info(int(size), _version(answer, size))

    def _entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        query: dict[str, str] = {}
        while True:
            page = _json(self._ask("GET", "/api/2.0/fs/directories" + quote(folder), params=query))
            for entry in page.get("contents", []):
                yield entry["path"].rstrip("/"), entry.get("is_directory", False)
            if not page.get("next_page_token"):
                return
            query = {"page_token": page["next_page_token"]}

    def _create(self, name: str, body: Parts) -> None:
        self._write(name, body, overwrite=False)

    def _write(self, name: str, body: Parts, overwrite: bool) -> None:
        # One request: a shard has less than 4 GiB, and a request may have 5.
        request: dict[str, Any] = {
            "params": {"overwrite": "true" if overwrite else "false"},
            "headers": {"Content-Type": "application/octet-stream"},
        }
        try:
            try:
                self._ask("PUT", self._file(name), body, **request)
            except Failure as error:
                if error.status != 404:
                    raise
                # The folder may be missing: most workspaces make it, but none says that it does.
                self._ask("PUT", "/api/2.0/fs/directories" + quote(posixpath.dirname(self._path(name))))
                self._ask("PUT", self._file(name), body, **request)
        except Failure as error:
            if error.status not in CHANGED or not self._holds(name, body, error):
                raise

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        with contextlib.suppress(FileNotFoundError), self._errors("delete", name):
            self._ask("DELETE", self._file(name))


class DbfsStorage(_DatabricksStorage):
    """A folder of the DBFS root, by the DBFS API. See `mds_core.storage.Storage` for what each method does.

    It moves a megabyte a request: volumes are faster.
    """

    def __init__(self, root: str, options: Mapping[str, str]):
        super().__init__(root, options)
        if not self._prefix:
            raise ValueError(f"expected dbfs:/FOLDER, found {root!r}")

    def _post(self, action: str, **body: Any) -> Any:
        return _json(self._ask("POST", f"/api/2.0/dbfs/{action}", json=body))

    def _query(
        self, action: str, timeout: float = STALL, passing: tuple[int | None, ...] = PASSING, **query: str
    ) -> Any:
        return _json(self._ask("GET", f"/api/2.0/dbfs/{action}", passing=passing, timeout=timeout, params=query))

    def _look(self, path: str, timeout: float = STALL, passing: tuple[int | None, ...] = PASSING) -> Info:
        found = self._query("get-status", timeout, passing, path=path)
        if found.get("is_dir"):
            raise Failure(404, "it is a folder")
        written = found["modification_time"]
        return Info(found["file_size"], Version(f"{written} {found['file_size']}", written / 1000))

    def _stream(self, name: str, start: int, stop: int | None, timeout: float) -> tuple[Iterable[bytes], Version]:
        path = self._path(name)
        found = self._look(path, timeout, passing=())
        stop = found.size if stop is None else min(stop, found.size)
        return self._blocks(path, found, start, stop, timeout), found.version

    def _blocks(self, path: str, found: Info, at: int, stop: int, timeout: float) -> Iterator[bytes]:
        while at < stop:
            length = min(_BLOCK, stop - at)
            answer = self._query("read", timeout, BUSY, path=path, offset=str(at), length=str(length))
            block = base64.b64decode(answer["data"])
            if not block:
                break
            yield block
            at += len(block)
        if at < stop or self._look(path, timeout, BUSY) != found:
            raise Failure(None, f"it changed while it was read, at byte {at} of {found.size}")

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""
        with self._errors("look at", name):
            try:
                return self._look(self._path(name))
            except Failure as error:
                if error.status == 404:
                    return None
                raise

    def _entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        for entry in _json(self._ask("GET", "/api/2.0/dbfs/list", params={"path": folder})).get("files", []):
            if entry["path"] != folder:  # that is a file
                yield entry["path"], entry.get("is_dir", False)

    def _create(self, name: str, body: Parts) -> None:
        # A file is seen while blocks are added to it. It gets its name when it is whole, by a move that never
        # replaces another.
        path = self._path(name)
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            self._append(temporary, body)
            self._post("move", source_path=temporary, destination_path=path)
        except BaseException as error:
            if isinstance(error, Failure) and error.status in (404, *CHANGED) and self._holds(name, body, error):
                return  # the move took place, and its answer was lost
            with contextlib.suppress(Failure):
                self._post("delete", path=temporary)
            raise

    def _append(self, path: str, body: Parts) -> None:
        """Write a file block by block; again if a block is there twice, as its first answer was lost."""
        size = -1
        for attempt in range(ATTEMPTS):
            body.seek(0)
            handle = self._post("create", path=path, overwrite=True)["handle"]
            while block := body.read(_BLOCK):
                self._post("add-block", handle=handle, data=base64.b64encode(block).decode())
            try:
                self._post("close", handle=handle)
            except Failure as error:
                if error.status != 404 or error.attempts == 1:
                    raise
            size = self._look(path).size
            if size == body.size:
                return
            time.sleep(pause_after(attempt))
        raise Failure(None, f"sent {body.size} bytes, but {size} are kept")

    def _write(self, name: str, body: Parts, overwrite: bool) -> None:
        body.seek(0)
        form = {"path": self._path(name), "overwrite": str(overwrite)}
        try:
            self._ask("POST", "/api/2.0/dbfs/put", data=form, files={"contents": ("contents", body.read())})
        except Failure as error:
            if error.status not in CHANGED or not self._holds(name, body, error):
                raise

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        with contextlib.suppress(FileNotFoundError), self._errors("delete", name):
            self._post("delete", path=self._path(name))


def _path_of(root: str) -> str:
    """Give a path without its scheme and what does not count: dbfs:/a, dbfs:///a and dbfs:/a//b/../ are the same."""
    if re.match("dbfs://[^/]", root, re.IGNORECASE):
        raise ValueError(f"expected dbfs:/FOLDER or dbfs:///FOLDER, without a host, found {root!r}")
    return "/" + posixpath.normpath("/" + root.partition(":")[2]).strip("/")


def _body(answer: requests.Response, start: int, stop: int | None) -> Iterator[bytes]:
    """Give a body's bytes from start to stop: all, unless the server ignored the range that was asked for."""
    expected, at = int(_header(answer, "Content-Length")), 0
    with answer:
        try:
            for chunk in answer.iter_content(CHUNK):
                yield chunk[max(0, start - at) : None if stop is None else max(0, stop - at)]
                at += len(chunk)
                if stop is not None and at >= stop:
                    return
        except requests.RequestException as error:
            raise Failure(None, f"{type(error).__name__} after {at} bytes: {error}") from None
    if at != expected:
        raise Failure(None, f"it broke off after {at} of {expected} bytes")


def _version(answer: requests.Response, size: str) -> Version:
    written = _header(answer, "Last-Modified")
    return Version(f"{written} {size}", parsedate_to_datetime(written).timestamp())


def _header(answer: requests.Response, name: str) -> str:
    if name not in answer.headers:
        raise Failure(None, f"an answer without {name}; is there a proxy that takes it away?")
    return answer.headers[name]


def _json(answer: requests.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise Failure(None, f"no JSON but {answer.text[:200]!r}") from None
