"""Data sets on Google Cloud Storage, by its S3 API and the HMAC keys that Mosaic Streaming's users have."""

from __future__ import annotations

from typing import NoReturn

from mds_core.storage.remote import Parts
from mds_core.storage.s3 import S3Storage


class HMACStorage(S3Storage):
    """A prefix of a bucket, to read. See `mds_core.storage.Storage` for what each method does.

    Google's S3 API does not know S3's conditions of a write, and takes its own only without S3's headers, which boto3
    sends: nothing would keep two writers from replacing each other's files.
    """

    HELP = "check the HMAC key in GCS_KEY and GCS_SECRET, in every process that reads"

    def _refuse(self, name: str) -> NoReturn:
        raise PermissionError(
            f"{self.describe(name)}: GCS_KEY and GCS_SECRET are used for reading only, since Google's S3 API would "
            "overwrite files of other writers; to write, set GOOGLE_APPLICATION_CREDENTIALS to the path of a key file, "
            "or unset the two, so that Google's library looks for other credentials"
        )

    def _create(self, name: str, body: Parts) -> None:
        self._refuse(name)

    def replace(self, name: str, data: bytes, expected: bytes | None) -> bool:
        """Refuse."""
        self._refuse(name)

    def delete(self, name: str) -> None:
        """Refuse."""
        self._refuse(name)
