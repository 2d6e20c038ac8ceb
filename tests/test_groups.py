"""How tests are shared out to processes."""

import pytest


def test_tests_that_need_spark_are_one_group_for_xdist(
    request: pytest.FixtureRequest, java: None, worker_id: str
) -> None:
    """Else two processes start a Spark each, and use the reference library at once."""
    if worker_id == "master":
        pytest.skip("there is one process")
    assert request.node.nodeid.endswith("@spark")
