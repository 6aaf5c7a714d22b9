"""Tests of the delta rules that no law covers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels import gated_delta_rule, kda


@pytest.mark.parametrize("op", [gated_delta_rule, kda])
def test_value_heads_are_a_multiple_of_key_heads(op: Callable[..., Any], subject: Any) -> None:
    q, v = (torch.zeros(1, 3, heads, 4, device=subject.device) for heads in (2, 3))
    g = v if op is kda else v[..., 0]
    with pytest.raises(ValueError, match=r"v: .*expected a multiple of the 2 heads of q and k"):
        op(q, q, v, g, v[..., 0])
