"""Data sets on S3, and on every store that speaks its API: R2, MinIO, B2, CoreWeave, OCI's."""

from __future__ import annotations

import functools
import gzip
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigParseError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.loaders import JSONFileLoader, Loader, create_loader

from mds_core.storage.info import Info, Version
from mds_core.storage.remote import ATTEMPTS, CHANGED, CHUNK, STALL, Options, Parts, RemoteStorage


class _Models(Loader):  # type: ignore[misc]  # botocore has no types
    """What finds botocore's models of services."""

    def list_available_services(self, type_name: str) -> list[str]:
        """Name the folders of models; botocore's own looks into each of the 400, for what a client never asks."""
        return sorted({name for path in self.search_paths if os.path.isdir(path) for name in os.listdir(path)})


class _Json(JSONFileLoader):  # type: ignore[misc]
    """What reads those models: into dicts, faster than into botocore's OrderedDicts."""

    def load_file(self, path: str) -> Any:
        """Give what is in the file of this name, without its suffix; None if there is none."""
        for suffix, unpacked in ((".json", bytes), (".json.gz", gzip.decompress)):
            if os.path.isfile(path + suffix):
                return json.loads(unpacked(Path(path + suffix).read_bytes()))
        return None


@functools.cache
def _loader(paths: str | None) -> Any:
    """Give what finds and keeps botocore's models: no connections, so that forks share it.

    A first client takes 0.6 of the time that it takes with botocore's own, a worker's 0.2 of it.
    """
    own = create_loader(paths)
    return _Models(own.search_paths, _Json(), include_default_search_paths=False)


def _make_client(options: Options, attempts: int = ATTEMPTS) -> Any:
    given = dict(options)
    core = botocore.session.get_session()
    core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
    session = boto3.session.Session(profile_name=given.get("profile"), botocore_session=core)
    keys = {name: given[name] for name in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
            if name in given}  # fmt: skip
    unsigned = given.get("unsigned") == "true" or not (keys or session.get_credentials())
    return session.client(
        "s3",
        region_name=given.get("region"),
        # boto3 has AWS_ENDPOINT_URL_S3 and profiles; the other name is Mosaic Streaming's.
        endpoint_url=given.get("endpoint") or os.environ.get("S3_ENDPOINT_URL") or None,
        config=Config(
            # boto3 tries again what may pass, with back-off and jitter.
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=10,
            read_timeout=STALL,
            max_pool_connections=64,
            # Other stores than AWS do not know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            signature_version=UNSIGNED if unsigned else None,
        ),
        **keys,
    )


def _make_reading_client(options: Options) -> Any:
    # RemoteStorage tries again itself, until a deadline.
    return _make_client(options, attempts=1)


class S3Storage(RemoteStorage):
    """A prefix of a bucket. See `mds_core.storage.Storage` for what each method does."""

    OPTIONS = (
        "endpoint", "profile", "region", "aws_access_key_id", "aws_secret_access_key", "aws_session_token",
        "requester_pays", "unsigned",
    )  # fmt: skip
    HELP = (
        "check the credentials that boto3 finds (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the "
        "machine's role), in every process that reads or writes; without any, it asks as anybody"
    )
    ENVIRONMENT = ("AWS_", "S3_ENDPOINT_URL")
    ERRORS = (BotoCoreError, ClientError)
    # The call that lists.
    _LIST = "list_objects_v2"

    def __init__(self, root: str, options: Mapping[str, str]):
        parts = urlsplit(root, allow_fragments=False)
        self._bucket = parts.netloc
        if not self._bucket:
            raise ValueError(f"expected s3://BUCKET/PREFIX, found {root!r}")
        super().__init__(root, root.partition("://")[2].partition("/")[2], options)
        payers = os.environ.get("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "").split(",")
        pays = options.get("requester_pays") == "true" or self._bucket in payers
        self._payer = {"RequestPayer": "requester"} if pays else {}

    @property
    def _client(self) -> Any:
        return self._client_of(_make_client)

    @property
    def _reading_client(self) -> Any:
        return self._client_of(_make_reading_client)

    def _object(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._key(name), **self._payer}

    def _status(self, error: Exception) -> int | None:
        if isinstance(error, NoCredentialsError | PartialCredentialsError | ProfileNotFound | ConfigParseError):
            return 401
        if not isinstance(error, ClientError):
            return None
        status: int | None = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status

    def _stream(self, name: str, start: int, stop: int | None, timeout: float) -> tuple[Iterable[bytes], Version]:
        some = {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        answer = self._reading_client.get_object(**self._object(name), **some)
        answer["Body"].set_socket_timeout(timeout)
        return answer["Body"].iter_chunks(CHUNK), _version(answer)

    def info(self, name: str) -> Info | None:
        """Give a file's size and version; None if there is none."""
        with self._errors("look at", name):
            try:
                answer = self._again(lambda: self._reading_client.head_object(**self._object(name)))
            except ClientError as error:
                if self._status(error) == 404:
                    return None
                raise
        return Info(answer["ContentLength"], _version(answer))

    def list(self) -> list[str]:
        """List the names of all files, at any depth."""
        prefix = f"{self._prefix}/" if self._prefix else ""
        with self._errors("list", ""):
            pages = self._client.get_paginator(self._LIST).paginate(Bucket=self._bucket, Prefix=prefix, **self._payer)
            return [entry["Key"][len(prefix) :] for page in pages for entry in page.get("Contents", [])]

    def _create(self, name: str, body: Parts) -> None:
        # One request: a shard has less than 4 GiB, and a request may have 5.
        try:
            self._client.put_object(**self._object(name), Body=body, IfNoneMatch="*")
        except ClientError as error:
            if not self._was_stored(error, name, body):
                raise

    def _was_stored(self, error: ClientError, name: str, body: Parts) -> bool:
        """Tell whether a condition fails because an attempt before, whose answer was lost, has stored the file."""
        if self._status(error) not in CHANGED or not error.response["ResponseMetadata"].get("RetryAttempts"):
            return False
        body.seek(0)
        return self.read(name) == body.read()

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace a file in one atomic step if it still is what was expected (None: not there); tell whether."""
        with self._errors("write", name):
            condition = {"IfNoneMatch": "*"}
            try:
                answer = self._client.get_object(**self._object(name))
                if answer["Body"].read() != expected:
                    return False
                condition = {"IfMatch": answer["ETag"]}
            except ClientError as error:
                if self._status(error) != 404:
                    raise
                if expected is not None:
                    return False
            try:
                self._client.put_object(**self._object(name), Body=data, **condition)
            except ClientError as error:
                if self._was_stored(error, name, Parts([data])):
                    return True
                if self._status(error) in CHANGED:
                    return False
                raise
        return True

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        with self._errors("delete", name):
            self._client.delete_object(**self._object(name))


def _version(answer: dict[str, Any]) -> Version:
    # The tag is a hash of the contents: the time tells the same contents, written again.
    written = answer["LastModified"]
    return Version(f"{answer['ETag']} {written.isoformat()}", written.timestamp())
