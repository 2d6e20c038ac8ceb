"""How tests are shared out to processes."""

import pytest


@pytest.mark.xdist_group("spark")
def test_a_group_of_tests_is_one_for_xdist(request: pytest.FixtureRequest, worker_id: str) -> None:
    """Else two processes start a Spark each, and use the reference library at once."""
    if worker_id == "master":
        pytest.skip("there is one process")
    assert request.node.nodeid.endswith("@spark")
