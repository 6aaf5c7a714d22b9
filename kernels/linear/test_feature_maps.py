"""Laws leave NaN out: verdicts take it for a case outside the domain."""

import math

import pytest
import torch

import kernels


@pytest.mark.parametrize("kind", ["elu", "relu", "hedgehog", "dpfp", "taylor"])
def test_features_hide_no_nan(kind: str, device: torch.device) -> None:
    x = torch.tensor([[1.0, math.nan], [-2.0, 0.5]], device=device).view(1, 2, 1, 2)
    first, second = kernels.feature_map(x, kind)[0]
    assert first.isnan().any()
    assert not second.isnan().any()
