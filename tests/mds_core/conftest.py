"""What the tests of mds_core share."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from mds_core import MDSWriter

# Times on a shared machine say nothing; the same examples each run, so that a failure is the change's fault.
settings.register_profile(
    "mds", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("mds")

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a data set: `make(columns, rows, name="data", **options)` gives its folder."""

    def make(columns: dict[str, str], rows: Iterable[dict[str, Any]], name: str = "data", **options: Any) -> Path:
        with MDSWriter(out=str(tmp_path / name), columns=columns, **options) as writer:
            for row in rows:
                writer.write(row)
        return tmp_path / name

    return make
