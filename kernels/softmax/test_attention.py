"""Tests of `attention` at the edge: boundaries, windows and numbers."""

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
    for window in (max(queries, keys), queries + keys, 2**31 - 1, 2**31, 2**63 - 1):
        assert torch.equal(attention(q, k, v, causal=causal, window=window)[0], want), window


def test_a_sink_of_nothing_has_no_gradient_where_there_are_no_keys(device: torch.device) -> None:
    q, k, v = _qkv(device, 4, 2)
    sink = torch.tensor([-math.inf, 0.0], device=device, requires_grad=True)
    o, _ = attention(q, k, v, causal=True, sink=sink)
    assert not o[:, :2].any()
    (gradient,) = torch.autograd.grad(o.sum(), [sink])
    assert gradient.isfinite().all()
    assert gradient[0] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sinks_and_slopes_of_16_bits_are_widened(dtype: torch.dtype, device: torch.device) -> None:
    q, k, v = (x.detach().to(dtype) for x in _qkv(device, 5, 5))
    sink, slopes = torch.tensor([3.3, -0.7]).to(dtype), torch.tensor([0.3, 1.7]).to(dtype)

    def results(wide: torch.dtype) -> tuple[Tensor, ...]:
        leaf = sink.to(device, wide).requires_grad_()
        alibi = slopes.to(device, wide)
        o, lse = attention(q, k, v, sink=leaf, alibi_slopes=alibi, return_lse=True)
        assert lse is not None
        (gradient,) = torch.autograd.grad(o.float().sum() + lse.sum(), [leaf])
        return o, lse, gradient.to(dtype)

    for got, want in zip(results(dtype), results(torch.float32), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("gated", [False, True])
def test_a_pair_that_is_not_seen_may_overflow(gated: bool, device: torch.device) -> None:
    """Gradients of queries times the first and the last value, which they do not see, are
    infinite, also in tiles of other pairs that are seen."""
    tokens, window = 48, 20
    q, k, v = _qkv(device, tokens, tokens)
    g = torch.zeros(1, tokens, 2, device=device, requires_grad=True) if gated else None
    leaves = [q, k, v, *([g] if gated else [])]
    do = torch.full((1, tokens, 2, 3), 100.0, device=device)
    do[:, :window] = do[:, -1:] = 0
    usual, huge = v.detach().clone(), v.detach().clone()
    usual[:, [0, -1]], huge[:, [0, -1]] = 0, 3e38
    options = {"causal": True, "window": window, "g": g}
    want, got = (
        torch.autograd.grad(attention(q, k, v + (x - v).detach(), **options)[0], leaves, do)
        for x in (usual, huge)
    )
    for a, b in zip(got, want, strict=True):
        assert a.isfinite().all()
        assert torch.equal(a, b)
