"""What tests of batches share: comparing what comes with what torch makes."""

from typing import Any

import torch


def assert_same(found: Any, right: Any) -> None:
    """Compare batches: values, types and dtypes; NaN is NaN."""
    assert type(found) is type(right)
    if isinstance(right, torch.Tensor):
        assert found.dtype == right.dtype
        assert found.shape == right.shape
        assert found.numpy().tobytes() == right.contiguous().numpy().tobytes()
    elif isinstance(right, dict):
        assert list(found) == list(right)
        for name in right:
            assert_same(found[name], right[name])
    elif isinstance(right, list | tuple):
        assert len(found) == len(right)
        for a, b in zip(found, right, strict=True):
            assert_same(a, b)
    else:
        assert found == right
