"""Data sets on S3, and on every store that speaks its API: R2, MinIO, B2, CoreWeave, OCI's."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What boto3 tries again by itself: connections that break, 500, 502, 503, 504, 429; with back-off and jitter.
_ATTEMPTS = 5
_CONFIG = Config(
    retries={"mode": "standard", "total_max_attempts": _ATTEMPTS}, connect_timeout=10, read_timeout=60,
    max_pool_connections=32,
)  # fmt: skip
_MISSING = {"404", "NoSuchKey", "NotFound"}
_REFUSED = {"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}
_CHANGED = {"409", "412", "PreconditionFailed", "ConditionalRequestConflict"}

# One client a process, made after a fork: connections do not survive one.
_clients: dict[int, Any] = {}
_lock = threading.Lock()


def _client() -> Any:
    with _lock:
        client = _clients.get(os.getpid())
        if client is None:
            # boto3 has AWS_ENDPOINT_URL_S3, profiles and all else; this name is Mosaic Streaming's.
            endpoint = os.environ.get("S3_ENDPOINT_URL") or None
            client = _clients[os.getpid()] = boto3.session.Session().client("s3", endpoint_url=endpoint, config=_CONFIG)
        return client


class S3Storage:
    """A prefix of a bucket. See `mds_core.storage.Storage` for what each method does."""

    def __init__(self, root: str):
        bucket, _, prefix = root.partition("://")[2].partition("/")
        if not bucket:
            raise ValueError(f"expected s3://BUCKET/PREFIX, found {root!r}")
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self.root = f"s3://{bucket}/{self._prefix}".rstrip("/")

    def describe(self, name: str) -> str:
        """Give the full path of a file, for messages."""
        return f"{self.root}/{name}"

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def read(self, name: str) -> bytes | None:
        """Read a whole file; None if there is none."""
        found = self._get(name)
        return None if found is None else found[0]

    def _get(self, name: str) -> tuple[bytes, str] | None:
        with self._errors("read", name):
            try:
                answer = _client().get_object(Bucket=self._bucket, Key=self._key(name))
                return answer["Body"].read(), answer["ETag"]
            except ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise

    def open(self, name: str) -> BinaryIO:
        """Fetch a file, to a temporary one without a name.

        Raises:
            FileNotFoundError: there is none.
        """
        file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        try:
            with self._errors("read", name):
                _client().download_fileobj(self._bucket, self._key(name), file)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        opened: BinaryIO = file
        return opened

    def size(self, name: str) -> int | None:
        """Give a file's size in bytes; None if there is none."""
        with self._errors("look at", name):
            try:
                size: int = _client().head_object(Bucket=self._bucket, Key=self._key(name))["ContentLength"]
            except ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise
            return size

    def list(self) -> list[str]:
        """List the names of all files, at any depth."""
        prefix = f"{self._prefix}/" if self._prefix else ""
        with self._errors("list", ""):
            pages = _client().get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            return [entry["Key"][len(prefix) :] for page in pages for entry in page.get("Contents", [])]

    def put(self, name: str, parts: Sequence[Buffer], staging: str | None = None) -> None:
        """Store a new file made of parts, visible only when it is whole. A store has no folders to stage it in.

        Raises:
            FileExistsError: there is one already.
            OSError: what is stored has another size than what was sent.
        """
        body = _Parts(parts)
        with self._errors("write", name):
            try:
                # One request: a shard has less than 4 GiB, and a request may have 5.
                _client().put_object(Bucket=self._bucket, Key=self._key(name), Body=body, IfNoneMatch="*")
            except ClientError as error:
                if _code(error) in _CHANGED:
                    raise FileExistsError(
                        f"can't store {self.describe(name)}: there is a file of this name, of another writer; choose "
                        "another path, or write again when that writer has ended"
                    ) from None
                raise
        found = self.size(name)
        if found != body.size:
            raise OSError(f"{self.describe(name)}: sent {body.size} bytes, but the store keeps {found}; write it again")

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Replace a file in one atomic step if it still is what was expected (None: not there); tell whether."""
        found = self._get(name)
        if (None if found is None else found[0]) != expected:
            return False
        condition = {"IfNoneMatch": "*"} if found is None else {"IfMatch": found[1]}
        with self._errors("write", name):
            try:
                _client().put_object(Bucket=self._bucket, Key=self._key(name), Body=data, **condition)
            except ClientError as error:
                if _code(error) in _CHANGED:
                    return False
                raise
        return True

    def delete(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        with self._errors("delete", name):
            _client().delete_object(Bucket=self._bucket, Key=self._key(name))

    def make_staging(self, staging: str) -> None:
        """Do nothing: a put to a store is whole or not there."""

    def remove_staging(self, staging: str) -> None:
        """Do nothing: there is none."""

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        path = self.describe(name) if name else self.root
        try:
            yield
        except ClientError as error:
            code = _code(error)
            if code in _MISSING or code == "NoSuchBucket":
                raise FileNotFoundError(f"{path}: not there ({code})") from error
            if code in _REFUSED:
                raise PermissionError(
                    f"{path}: the store refuses to {what} it ({code}); check the credentials that boto3 finds: "
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role"
                ) from error
            raise OSError(f"{path}: could not {what} it in {_ATTEMPTS} attempts: {error}") from error
        except NoCredentialsError as error:
            raise PermissionError(
                f"{path}: no credentials for S3; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in "
                "every process that reads or writes"
            ) from error
        except BotoCoreError as error:
            raise OSError(f"{path}: could not {what} it in {_ATTEMPTS} attempts: {error}") from error


def _code(error: ClientError) -> str:
    code: str = error.response["Error"]["Code"]
    return code


class _Parts(io.RawIOBase):
    """Buffers one after the other as a file that can be read, again from any place."""

    def __init__(self, parts: Sequence[Buffer]):
        self._views = [memoryview(part).cast("B") for part in parts]
        self._starts = [0]
        for view in self._views:
            self._starts.append(self._starts[-1] + view.nbytes)
        self.size = self._starts[-1]
        self._at = 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from any place."""
        return True

    def tell(self) -> int:
        """Give where it is."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as far as there are bytes."""
        into = memoryview(buffer).cast("B")
        done = 0
        part = bisect_right(self._starts, self._at) - 1
        while done < into.nbytes and part < len(self._views):
            offset = self._at - self._starts[part]
            piece = self._views[part][offset : offset + into.nbytes - done]
            into[done : done + piece.nbytes] = piece
            done += piece.nbytes
            self._at += piece.nbytes
            part += 1
        return done
