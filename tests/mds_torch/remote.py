"""A data set on an S3 server, behind a proxy that counts and fails."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mds_core import MDSWriter
from tests.mds_core.storage.proxy import Proxy
from tests.mds_core.storage.servers import s3_behind_proxy

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Remote:
    """A data set of samples `{"n": 0, "s": …}`, `{"n": 1, …}`, ….

    `path` is its path, `environment` what its readers need.
    """

    proxy: Proxy
    path: str
    environment: dict[str, str]

    def write(self, samples: int, **options: Any) -> None:
        """Write the data set, or write it again, past the proxy's counts and faults."""
        fault, self.proxy.fault = self.proxy.fault, lambda method, path, n: ""
        columns = {"n": "int64", "s": "bytes"}
        with MDSWriter(out=self.path, columns=columns, **{"size_limit": 3000, "exist_ok": True, **options}) as writer:
            for n in range(samples):
                writer.write({"n": n, "s": bytes(100)})
        self.proxy.fault = fault
        self.proxy.clear()


@contextmanager
def remote_data() -> Iterator[Remote]:
    """Run the servers."""
    with s3_behind_proxy() as (proxy, environment):
        # The server's memory is the process's.
        yield Remote(proxy, f"s3://a-bucket/{os.getpid()}-{next(_NUMBERS)}", environment)


def files_below(folder: Path, chosen: Callable[[str], bool] = lambda name: True) -> list[str]:
    """List the files of a folder, at any depth."""
    return [str(Path(at) / name) for at, _, names in os.walk(folder) for name in names if chosen(name)]


def bytes_below(folder: Path) -> int:
    """Give how many bytes the files of a folder have."""
    sizes = 0
    for path in files_below(folder):
        try:
            sizes += os.stat(path).st_size
        except FileNotFoundError:
            continue
    return sizes
