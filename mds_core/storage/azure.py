"""Data sets on Azure Blob Storage and Data Lake, whose accounts speak the blob API, too."""

from __future__ import annotations

import functools
import logging
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
from azure.core import MatchConditions
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import DefaultAzureCredential
from azure.storage.blob import BlobBlock, BlobServiceClient

from mds_core.storage.info import Info, Version
from mds_core.storage.remote import MARK, STALL, Parts, RemoteStorage

# Files go and come in pieces of this size, one after the other.
_PIECE = 8 << 20
# As many as a listing's answer may name.
_PAGE = 5000
# Variables of the environment, some of them by the names that Mosaic Streaming has for them.
_NAMES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
_SECRETS = {
    "connection_string": ("AZURE_STORAGE_CONNECTION_STRING",),
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_ACCOUNT_ACCESS_KEY"),
    "sas_token": ("AZURE_STORAGE_SAS_TOKEN",),
}


def _first(names: Iterable[str]) -> str:
    return next(filter(None, map(os.environ.get, names)), "")


def _make_client(host: str, options: tuple[tuple[str, str], ...]) -> Any:
    """Make the client of an account.

    Args:
        host: of the account's blob service, as the path says it; empty if it does not.
        options: by name; without credentials among them, those of the environment, unless they are another account's.
    """
    given = dict(options)
    secrets = {option: _first(names) for option, names in _SECRETS.items() if _first(names)}
    ours = _first(_NAMES) or _account_of(secrets.get("connection_string", ""))
    account = host.partition(".")[0] or given.get("account_name") or ours
    if not given.keys() & {*_SECRETS, "anonymous"} and ours in ("", account):
        given |= secrets
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=64))
    times = {"connection_timeout": 10, "read_timeout": STALL}
    settings = {
        "transport": RequestsTransport(
            session=session, session_owner=False, connection_data_block_size=_PIECE >> 5, **times
        ),
        # The library does not know 429, and waits for 15 s at first: see `_again`.
        "retry_total": 0,
        "max_single_get_size": _PIECE,
        "max_chunk_get_size": _PIECE,
        **times,
    }
    if given.get("connection_string"):
        return _of_connection_string(given["connection_string"], account, settings)
    if not account:
        raise ValueError(
            "azure://CONTAINER/PREFIX does not say of which account: set AZURE_STORAGE_ACCOUNT_NAME, give the option "
            "account_name, or write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
        )
    credential: Any
    if given.get("account_key"):
        credential = AzureNamedKeyCredential(account, given["account_key"])
    elif given.get("sas_token"):
        credential = AzureSasCredential(given["sas_token"].lstrip("?"))
    elif given.get("anonymous") == "true":
        credential = None
    else:
        # By its own settings it would ask other clouds' metadata servers for half a minute.
        credential = DefaultAzureCredential(retry_total=3, read_timeout=5)
    endpoint = given.get("endpoint") or f"https://{host or account + '.blob.core.windows.net'}"
    if endpoint.startswith("http://") and isinstance(credential, DefaultAzureCredential):
        raise ValueError(
            f"{endpoint}: expected https://, since tokens do not go in the clear; or give one of the options "
            "account_key, sas_token and anonymous=true"
        )
    return BlobServiceClient(endpoint, credential=credential, **settings)


def _account_of(connection_string: str) -> str:
    found = re.search(r"(?i)(?:^|;)AccountName=([^;]*)", connection_string)
    return found[1] if found else ""


def _of_connection_string(text: str, account: str, settings: dict[str, Any]) -> Any:
    try:
        client = BlobServiceClient.from_connection_string(text, **settings)
    except ValueError:
        raise ValueError(
            "Azure's connection string (AZURE_STORAGE_CONNECTION_STRING, or the option connection_string): expected "
            "AccountName=…;AccountKey=…;…, found a text of another form; copy it again from the account's access keys"
        ) from None
    if account and client.account_name != account:
        raise ValueError(
            f"Azure's connection string is of the account {client.account_name}, expected {account}, which the path, "
            "the option account_name or AZURE_STORAGE_ACCOUNT_NAME says; give one of that account"
        )
    return client


class AzureStorage(RemoteStorage):
    """A prefix of a container. See `mds_core.storage.Storage` for what each method does."""

    OPTIONS = ("endpoint", "account_name", *_SECRETS, "anonymous")
    HELP = (
        "check the credentials (AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, "
        "or what azure-identity finds: `az login`, AZURE_CLIENT_ID and its like, the machine's identity; they need the "
        "role Storage Blob Data Reader or Contributor), in every process that reads or writes; for a public container, "
        "give the option anonymous=true"
    )
    ENVIRONMENT = ("AZURE_",)
    ERRORS = (AzureError,)

    def __init__(self, root: str, options: Mapping[str, str]):
        self._container, at, host = urlsplit(root, allow_fragments=False).netloc.partition("@")
        if not self._container or (at and "." not in host):
            raise ValueError(
                "expected azure://CONTAINER/PREFIX, or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, found "
                f"{root!r}"
            )
        self._host = host.replace(".dfs.", ".blob.", 1)
        named = options.get("account_name")
        if host and named and named != host.partition(".")[0]:
            raise ValueError(f"{root}: the option account_name is {named}; leave it out, or give the path's account")
        super().__init__(root, root.partition("://")[2].partition("/")[2], options)

    @property
    def _files(self) -> Any:
        return self._client_of(_make_client, self._host).get_container_client(self._container)

    def _file(self, name: str) -> Any:
        return self._files.get_blob_client(self._key(name))

    def _status(self, error: Exception) -> int | None:
        status = error.status_code if isinstance(error, HttpResponseError) else None
        return 401 if status is None and isinstance(error, ClientAuthenticationError) else status

    def _text(self, error: Exception) -> str:
        # What follows the first line is the request's number, and the answer again.
        code = getattr(error, "error_code", None)
        said = [getattr(error, "status_code", None), getattr(code, "value", code), str(error).partition("\n")[0]]
        return _hide(" ".join(str(part) for part in said if part))

    def _stream(self, name: str, start: int, stop: int | None, timeout: float) -> tuple[Iterable[bytes], Version]:
        some = {} if stop is None else {"offset": start, "length": stop - start}
        # Of a body that stalls, the library takes three tries by itself.
        found = self._file(name).download_blob(
            **some, max_concurrency=1, connection_timeout=min(10.0, timeout), read_timeout=timeout / 3
        )
        return found.chunks(), _version(found.properties)

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""
        with self._errors("look at", name):
            try:
                found = self._again(self._file(name).get_blob_properties)
            except HttpResponseError as error:
                if error.status_code == 404:
                    return None
                raise
        return Info(found.size, _version(found))

    def list(self) -> list[str]:
        """List the names of all files, at any depth."""
        prefix = f"{self._prefix}/" if self._prefix else ""
        names: list[str] = []
        token = None

        def ask() -> tuple[list[Any], str | None]:
            pages = self._files.list_blobs(prefix, include=["metadata"], results_per_page=_PAGE).by_page(token)
            return list(next(pages)), pages.continuation_token

        with self._errors("list", ""):
            while True:
                page, token = self._again(ask)
                names += [blob.name[len(prefix) :] for blob in page if not _is_folder(blob)]
                if not token:
                    return names

    def _write_if(self, name: str, body: Parts, version: Version | None, mark: str) -> None:
        file = self._file(name)
        condition: dict[str, Any] = {"match_condition": MatchConditions.IfMissing}
        if version is not None:
            condition = {"match_condition": MatchConditions.IfNotModified, "etag": version.tag}
        body.seek(0)
        if body.size <= _PIECE:
            data = body.read()
            self._again(lambda: file.upload_blob(data, overwrite=True, metadata={MARK: mark}, **condition))
            return
        # The library would number the pieces, so that two who write a file at once would mix theirs.
        pieces = []
        while data := body.read(_PIECE):
            pieces.append(BlobBlock(uuid.uuid4().hex))
            self._again(functools.partial(file.stage_block, pieces[-1].id, data))
        self._again(lambda: file.commit_block_list(pieces, metadata={MARK: mark}, **condition))

    def _mark(self, name: str) -> str | None:
        found: str | None = self._again(self._file(name).get_blob_properties).metadata.get(MARK)
        return found

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        with self._errors("delete", name):
            try:
                self._again(self._file(name).delete_blob)
            except HttpResponseError as error:
                if error.status_code != 404:
                    raise


def _is_folder(blob: Any) -> bool:
    """Tell whether it only marks a folder, as Data Lake and Hadoop keep them."""
    return {name.lower(): value for name, value in (blob.metadata or {}).items()}.get("hdi_isfolder") == "true"


def _hide(text: str) -> str:
    """Leave out signatures, which whoever has them can use."""
    return re.sub(r"(?i)\bsig=[^&\s'\"]*", "sig=…", text)


def _hide_in_record(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(_hide(value) if isinstance(value, str) else value for value in record.args)
    return True


# It logs each request's address, when one asks it to.
logging.getLogger("urllib3.connectionpool").addFilter(_hide_in_record)


def _version(properties: Any) -> Version:
    return Version(properties.etag, properties.last_modified.timestamp())
