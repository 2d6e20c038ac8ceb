"""Data sets on Google Cloud Storage, by its JSON API.

Google's own client of it is not used: it holds whole files in memory, its tries count seconds and not tries, and from a
thread of its own it asks for each bucket's metadata, which readers may not be allowed to see.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import google.auth
import requests
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account

from mds_core.storage.info import Info, Version
from mds_core.storage.remote import CHUNK, MARK, STALL, Parts, RemoteStorage

_GOOGLE = "https://storage.googleapis.com"
_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
# As many as a listing's answer may name.
_PAGE = 1000


def _endpoint(options: Mapping[str, str]) -> str:
    endpoint = options.get("endpoint") or os.environ.get("STORAGE_EMULATOR_HOST") or _GOOGLE
    return (endpoint if "://" in endpoint else f"http://{endpoint}").rstrip("/")


def _credentials(options: Mapping[str, str]) -> Any:
    file = options.get("credentials_file")
    if file:
        try:
            return service_account.Credentials.from_service_account_file(file, scopes=_SCOPES)
        except (OSError, ValueError) as error:
            raise DefaultCredentialsError(f"credentials_file: no service account's key in {file}: {error}") from None
    # Where no credentials were given, none that happen to be there are sent in the clear.
    if options.get("anonymous") == "true" or _endpoint(options).startswith("http://"):
        return AnonymousCredentials()
    try:
        # This asks the metadata server of the machine, too: three times for at most 3 s, where there is none.
        return google.auth.default(scopes=_SCOPES)[0]
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise
        return AnonymousCredentials()


def _make_session(options: tuple[tuple[str, str], ...]) -> Any:
    session = AuthorizedSession(_credentials(dict(options)))
    for scheme in ("https://", "http://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=64))
    return session


class GCSStorage(RemoteStorage):
    """A prefix of a bucket. See `mds_core.storage.Storage` for what each method does."""

    OPTIONS = ("endpoint", "credentials_file", "anonymous", "user_project")
    HELP = (
        "check the credentials that Google's library finds (GOOGLE_APPLICATION_CREDENTIALS with the path of a key "
        "file, `gcloud auth application-default login`, or the machine's service account), in every process that reads "
        "or writes; without any, it asks as anybody"
    )
    ENVIRONMENT = ("GOOGLE_", "STORAGE_EMULATOR_HOST", "CLOUDSDK_")
    ERRORS = (requests.RequestException, GoogleAuthError)

    @classmethod
    def open(cls, root: str, options: Mapping[str, str]) -> RemoteStorage:
        """Give the storage of a path: by Google's S3 API where there are only keys for that."""
        storage = cls(root, options)
        keys = {
            "aws_access_key_id": os.environ.get("GCS_KEY", ""),
            "aws_secret_access_key": os.environ.get("GCS_SECRET", ""),
        }
        others = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or os.environ.get("STORAGE_EMULATOR_HOST")
        if not all(keys.values()) or others or options.keys() - {"endpoint"}:
            return storage
        try:
            from mds_core.storage.gcs_hmac import HMACStorage
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{root} with GCS_KEY and GCS_SECRET needs a library: pip install 'mds-spark[s3]' ({error})"
            ) from None
        return HMACStorage(root, {"endpoint": _GOOGLE, "region": "auto", **options, **keys})

    def __init__(self, root: str, options: Mapping[str, str]):
        bucket = urlsplit(root, allow_fragments=False).netloc
        if not bucket:
            raise ValueError(f"expected gs://BUCKET/PREFIX, found {root!r}")
        super().__init__(root, root.partition("://")[2].partition("/")[2], options)
        self._objects = f"/storage/v1/b/{quote(bucket, safe='')}/o"
        # Who pays, where the bucket's owner does not.
        self._payer = {"userProject": options["user_project"]} if "user_project" in options else {}

    def _status(self, error: Exception) -> int | None:
        if isinstance(error, GoogleAuthError):
            return None if error.retryable or isinstance(error, TransportError) else 401
        answer = error.response if isinstance(error, requests.RequestException) else None
        return None if answer is None else answer.status_code

    def _ask(
        self, method: str, path: str, parameters: Mapping[str, str], timeout: float = STALL, **arguments: Any
    ) -> requests.Response:
        options = dict(self._options)
        answer: requests.Response = self._client_of(_make_session).request(
            method,
            _endpoint(options) + path,
            params={**parameters, **self._payer},
            timeout=(min(10.0, timeout), timeout),
            **arguments,
        )
        if not answer.ok:
            try:
                said = answer.json()["error"]["message"]
            except (ValueError, LookupError, TypeError):
                said = answer.text[:200] or answer.reason
            raise requests.HTTPError(f"{answer.status_code} {said}", response=answer)
        return answer

    def _object(self, name: str) -> str:
        return f"{self._objects}/{quote(self._key(name), safe='')}"

    def _stream(self, name: str, start: int, stop: int | None, timeout: float) -> tuple[Iterable[bytes], Version]:
        some = {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        path = f"/download{self._object(name)}"
        answer = self._ask("GET", path, {"alt": "media"}, timeout, headers=some, stream=True)
        return answer.iter_content(CHUNK), _version(answer.headers["X-Goog-Generation"])

    def _find(self, name: str) -> dict[str, Any]:
        fields = {"fields": "size,generation,metadata"}
        found: dict[str, Any] = self._again(lambda: self._ask("GET", self._object(name), fields).json())
        return found

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""
        with self._errors("look at", name):
            try:
                found = self._find(name)
            except requests.HTTPError as error:
                if self._status(error) == 404:
                    return None
                raise
        return Info(int(found["size"]), _version(found["generation"]))

    def list(self) -> list[str]:
        """List the names of all files, at any depth."""
        prefix = f"{self._prefix}/" if self._prefix else ""
        wanted = {"prefix": prefix, "fields": "items(name),nextPageToken", "maxResults": str(_PAGE)}
        names: list[str] = []
        with self._errors("list", ""):
            while True:
                page = self._again(lambda: self._ask("GET", self._objects, wanted).json())
                names += [found["name"][len(prefix) :] for found in page.get("items", [])]
                if not page.get("nextPageToken"):
                    # Consoles mark a folder by an empty file, whose name ends with a slash.
                    return [name for name in names if name and not name.endswith("/")]
                wanted["pageToken"] = page["nextPageToken"]

    def _write_if(self, name: str, body: Parts, version: Version | None, mark: str) -> None:
        # One request, with the file's name and mark before its contents.
        kind = "Content-Type: application/{}\r\n\r\n"
        about = json.dumps({"name": self._key(name), "metadata": {MARK: mark}})
        head = f"--{mark}\r\n{kind.format('json')}{about}\r\n--{mark}\r\n{kind.format('octet-stream')}"
        message = Parts([head.encode(), *body.views, f"\r\n--{mark}--\r\n".encode()])

        def rewind(*_: Any, **__: Any) -> None:
            message.seek(0)  # the session sends it again with a new token, if the first is not valid any more

        def ask() -> None:
            message.seek(0)
            self._ask(
                "POST",
                f"/upload{self._objects}",
                {"uploadType": "multipart", "ifGenerationMatch": "0" if version is None else version.tag},
                data=message,
                headers={"Content-Type": f"multipart/related; boundary={mark}"},
                hooks={"response": rewind},
            )

        self._again(ask)

    def _mark(self, name: str) -> str | None:
        found: str | None = self._find(name).get("metadata", {}).get(MARK)
        return found

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        with self._errors("delete", name):
            try:
                self._again(lambda: self._ask("DELETE", self._object(name), {}))
            except requests.HTTPError as error:
                if self._status(error) != 404:
                    raise


def _version(generation: str) -> Version:
    return Version(generation, int(generation) / 1e6)  # it is the time, in microseconds
