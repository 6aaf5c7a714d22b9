"""Numbers that a kernel cannot hold are refused before anything is launched."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kernels

X = torch.zeros(1, 4, 2, 8)


@pytest.mark.parametrize("number", [3.5e38, -1e39, 10**400], ids=["3.5e38", "-1e39", "10**400"])
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("scale", lambda x: kernels.linear_attn(X, X, X, scale=x)),
        ("scale", lambda x: kernels.attention(X, X, X, scale=x)),
        ("softcap", lambda x: kernels.attention(X, X, X, softcap=x)),
        ("bias", lambda x: kernels.sigmoid_attention(X, X, X, bias=x)),
        ("lower_bound", lambda x: kernels.decay_gate(X, X[0, 0, :, 0], lower_bound=-abs(x))),
    ],
)
def test_a_number_past_float32_is_refused(
    argument: str, call: Callable[[float], Tensor], number: float
) -> None:
    with pytest.raises(ValueError, match=f"^{argument}: "):
        call(number)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("structure: chunk", lambda n: kernels.attention(X, X, X, structure={"chunk": n})),
        ("window", lambda n: kernels.attention(X, X, X, window=n)),
        ("nu", lambda n: kernels.feature_map(X, "dpfp", nu=n)),
        ("top_k", lambda n: kernels.moba(X, X, X, block_size=2, top_k=n)),
        ("block_size", lambda n: kernels.moba(X, X, X, block_size=n, top_k=1)),
        ("chunk_size", lambda n: kernels.mean_pooling(X, chunk_size=n)),
    ],
)
def test_an_integer_past_64_bits_is_refused(argument: str, call: Callable[[int], Tensor]) -> None:
    with pytest.raises(ValueError, match=f"^{argument}: 9223372036854775808, expected at most"):
        call(2**63)


@pytest.mark.parametrize("scale", [None, -1, 2.0])
def test_a_head_without_dims_has_no_scale(scale: float | None) -> None:
    with pytest.raises(ValueError, match=r"^key_dim: 0, expected at least 1$"):
        kernels.resolve_scale(scale, 0)
