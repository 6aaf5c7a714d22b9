"""Feature maps of numbers outside the domain of the laws."""

import math

import pytest
import torch

import kernels
import reference


@pytest.mark.parametrize("kind", ["elu", "relu", "hedgehog", "dpfp", "taylor"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_features_hide_no_nan(kind: str, number: float, device: torch.device) -> None:
    x = torch.tensor([1.0, number, -2.0, 0.5], device=device).view(1, 1, 1, 4)
    got, want = kernels.feature_map(x, kind), reference.feature_map(x.double(), kind)
    assert torch.equal(got.isnan(), want.isnan())
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6, equal_nan=True)
