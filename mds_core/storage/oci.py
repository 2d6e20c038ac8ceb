"""Data sets on Oracle's object storage (OCI), through its S3-compatible API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from mds_core.storage.s3 import S3Storage


class OCIStorage(S3Storage):
    """A prefix of a bucket: `oci://BUCKET@NAMESPACE/PREFIX`. See `mds_core.storage.Storage` for each method.

    The namespace may come from OCI_NAMESPACE instead, the region from the option `region`, OCI_REGION or AWS_REGION.
    The option `endpoint` or S3_ENDPOINT_URL, where there is one, is asked instead of Oracle's own.
    """

    HELP = (
        "check the customer secret key, which OCI's S3-compatible API takes: AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, a profile of AWS's files, or the storage options of these names, in every process "
        "that reads or writes"
    )
    # OCI's documentation names this one alone; what does not know the newer one would give its first page only.
    _LIST = "list_objects"

    def __init__(self, root: str, options: Mapping[str, str]):
        bucket, _, namespace = urlsplit(root, allow_fragments=False).netloc.partition("@")
        namespace = namespace or os.environ.get("OCI_NAMESPACE", "")
        region = options.get("region") or os.environ.get("OCI_REGION") or os.environ.get("AWS_REGION") or ""
        endpoint = options.get("endpoint") or os.environ.get("S3_ENDPOINT_URL") or ""
        missing = [] if bucket else ["the bucket (in the path)"]
        if not endpoint and not namespace:
            missing.append("the namespace (in the path or OCI_NAMESPACE)")
        if not endpoint and not region:
            missing.append("the region (storage option region, OCI_REGION or AWS_REGION)")
        if missing:
            raise ValueError(
                f"expected oci://BUCKET@NAMESPACE/PREFIX and a region, found {root!r}; give {' and '.join(missing)}"
            )
        # With an endpoint of its own, boto3 puts the bucket into the path, not into the host's name, as OCI wants it.
        endpoint = endpoint or f"https://{namespace}.compat.objectstorage.{region}.oraclecloud.com"
        options = {**options, "endpoint": endpoint, **({"region": region} if region else {})}
        super().__init__(root, options)
        self._bucket = bucket
