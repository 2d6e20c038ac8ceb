"""Object stores for the tests: real servers, over HTTP."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import fsspec
from fsspec.implementations.arrow import ArrowFSWrapper
from moto.server import ThreadedMotoServer
from pyarrow.fs import LocalFileSystem

from tests.mds_core.storage import databricks_server
from tests.mds_core.storage.azure_server import azure_server
from tests.mds_core.storage.gcs_server import gcs_server
from tests.mds_core.storage.proxy import Proxy, proxy_of

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """Run an S3 server with a bucket; give the environment that its clients need."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {**CREDENTIALS, "S3_ENDPOINT_URL": f"http://{host}:{port}"}
    try:
        client = boto3.client(
            "s3",
            endpoint_url=environment["S3_ENDPOINT_URL"],
            aws_access_key_id="a-key",
            aws_secret_access_key="a-secret",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=bucket)
        yield environment
    finally:
        server.stop()


@contextmanager
def environment_of(environment: dict[str, str]) -> Iterator[None]:
    """Set some of the environment, for a while."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def s3_behind_proxy() -> Iterator[tuple[Proxy, dict[str, str]]]:
    """Run an S3 server with the bucket a-bucket behind a proxy; give that, and the environment, which is set."""
    with s3_server("a-bucket") as environment, proxy_of(environment["S3_ENDPOINT_URL"]) as proxy:
        environment = {**environment, "S3_ENDPOINT_URL": proxy.url}
        with environment_of(environment):
            yield proxy, environment


@contextmanager
def s3() -> Iterator[str]:
    """Run an S3 server, and give the path of a bucket of it."""
    with s3_server("a-bucket") as environment, environment_of(environment):
        yield "s3://a-bucket"


@contextmanager
def volumes() -> Iterator[str]:
    """Run a Databricks workspace, and give the path of a volume of it."""
    with databricks_server.workspace() as server, environment_of(databricks_server.environment(server)):
        yield f"dbfs:{databricks_server.VOLUME}"


@contextmanager
def dbfs() -> Iterator[str]:
    """Run a Databricks workspace, and give the path of a folder of its DBFS root."""
    with databricks_server.workspace() as server, environment_of(databricks_server.environment(server)):
        yield "dbfs:///mnt/a-folder"


@contextmanager
def oci() -> Iterator[str]:
    """Run an S3 server as OCI's, and give the path of a bucket of it."""
    with s3_server("a-bucket") as environment, environment_of(environment):
        yield "oci://a-bucket@a-namespace"


@contextmanager
def memory() -> Iterator[str]:
    """Give a path of fsspec's file system in memory, which is this process's own."""
    yield "memory://storage"


class Arrow(ArrowFSWrapper):
    """A file system of Arrow's, as fsspec hands it on: what runs for `hdfs://`, on a disk."""

    protocol = "arrow"

    def __init__(self, **options: object):
        super().__init__(LocalFileSystem(), **options)


@contextmanager
def arrow() -> Iterator[str]:
    """Give a path of a folder, as one of a file system of Arrow's."""
    fsspec.register_implementation("arrow", Arrow, clobber=True)
    with tempfile.TemporaryDirectory() as folder:
        yield f"arrow://{folder}"


@contextmanager
def gs() -> Iterator[str]:
    """Run a server of Google Cloud Storage, and give the path of a bucket of it."""
    with gcs_server("a-bucket") as environment, environment_of(environment):
        yield "gs://a-bucket"


@contextmanager
def azure() -> Iterator[str]:
    """Run a server of Azure's blob storage, and give the path of a container of it."""
    with azure_server("a-container") as environment, environment_of(environment):
        yield "azure://a-container"


# What the tests of every store run on: a server that is up while the context lasts, with the environment that clients
# need; it gives the path of a bucket, a container, a volume.
STORES = {
    "s3": s3,
    "gs": gs,
    "azure": azure,
    "volumes": volumes,
    "dbfs": dbfs,
    "oci": oci,
    "memory": memory,
    "arrow": arrow,
}
