"""What `attention` makes of boundaries, windows and numbers at the edge of what it takes."""

import math

import pytest
import torch
from torch import Tensor

from kernels import attention


def _qkv(device: torch.device, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (1, queries, 2, 5), (1, keys, 2, 5), (1, keys, 2, 3)
    q, k, v = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def test_keys_are_packed_as_queries_are_unless_told_otherwise(device: torch.device) -> None:
    q, k, v = _qkv(device, 7, 7)
    ends = torch.tensor([0, 2, 7], device=device)
    want, _ = attention(q, k, v, cu_seqlens=ends, cu_seqlens_k=ends)
    assert torch.equal(attention(q, k, v, cu_seqlens=ends)[0], want)
    with pytest.raises(ValueError, match=r"cu_seqlens_k: not given, .* 5 keys"):
        attention(q, k[:, :5], v[:, :5], cu_seqlens=ends)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(9, 2), (2, 9), (7, 7)])
def test_a_window_that_reaches_every_key_is_none(
    queries: int, keys: int, causal: bool, device: torch.device
) -> None:
    q, k, v = _qkv(device, queries, keys)
    want, _ = attention(q, k, v, causal=causal)
    for window in (max(queries, keys), queries + keys, 2**31 - 1, 2**31, 2**40):
        assert torch.equal(attention(q, k, v, causal=causal, window=window)[0], want), window


def test_a_sink_of_nothing_has_no_gradient_where_there_are_no_keys(device: torch.device) -> None:
    q, k, v = _qkv(device, 4, 2)
    sink = torch.tensor([-math.inf, 0.0], device=device, requires_grad=True)
    o, _ = attention(q, k, v, causal=True, sink=sink)
    assert not o[:, :2].any()
    (gradient,) = torch.autograd.grad(o.sum(), [sink])
    assert gradient.isfinite().all()
    assert gradient[0] == 0


@pytest.mark.parametrize("gated", [False, True])
def test_a_pair_that_is_not_seen_may_overflow(gated: bool, device: torch.device) -> None:
    """The first queries see no key; their gradient times a value is infinite."""
    q, k, v = _qkv(device, 4, 2)
    g = torch.zeros(1, 2, 2, device=device, requires_grad=True) if gated else None
    leaves = [q, k, v, *([g] if gated else [])]
    o, _ = attention(q, k, 100 * v, causal=True, g=g)
    usual = torch.ones_like(o)
    huge = usual.clone()
    huge[:, :2] = 3e38
    found, want = (torch.autograd.grad(o, leaves, do, retain_graph=True) for do in (huge, usual))
    for got, x in zip(found, want, strict=True):
        assert x.isfinite().all()
        assert torch.equal(got, x)
