"""Differential attention: two softmaxes as twice as many heads of `attention`.

The parts stay in float32 until their difference is rounded. With D = dO the cotangent,

    dλ = -Σ D ∘ O2,    and the second softmax has the cotangent -λ D

whose products are those of D, times -λ in float32.
"""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.differentiable import Given, differentiable
from kernels.softmax.arguments import Options
from kernels.softmax.attention import Call
from kernels.softmax.pairs import pairs


def _call(*, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, **options: Any) -> Call:
    """Both softmaxes as one call of attention with twice as many heads.

    Query head h of the second softmax is H + h, which reads kv head G + h // (H / G).
    """
    q, k, values = _joined(q1, q2), _joined(k1, k2), _joined(v, v)
    return Call(q=q, k=k, v=values, dtype=v.dtype, **options)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Both along the heads; `torch.cat` refuses float16 where autocast is to bfloat16."""
    batch, tokens, heads, dim = first.shape
    both = first.new_empty(batch, tokens, 2 * heads, dim)
    both[:, :, :heads] = first
    both[:, :, heads:] = second
    return both


def _forward(
    *, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor,
    cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, scale: float, causal: bool,
    window: int | None, tile: int,
) -> list[Tensor]:  # fmt: skip
    """o; and for the backward pass the outputs of both softmaxes [B, T, 2 H, V], and their sums."""
    call = _call(
        q1=q1, k1=k1, q2=q2, k2=k2, v=v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k,
        scale=scale, causal=causal, window=window, tile=tile,
    )  # fmt: skip
    parts, _, softmax = call.forward(torch.float32)
    first, second = parts.chunk(2, 2)
    return [(first - lam.float()[:, None] * second).to(v.dtype), parts, softmax]


def _shapes(given: Given) -> list[tuple[tuple[int, ...], torch.dtype]]:
    batch, queries, heads, _ = given["q1"].shape
    value_dim = given["v"].shape[3]
    return [
        ((batch, queries, heads, value_dim), given["q1"].dtype),
        ((batch, queries, 2 * heads, value_dim), torch.float32),
        ((2, batch, 2 * heads, queries), torch.float32),
    ]


def _backward(
    *, v: Tensor, lam: Tensor, d0: Tensor, s0: Tensor, s1: Tensor, **given: Any
) -> list[Tensor]:
    """Gradients of q1, k1, q2, k2, v and lam."""
    do, parts, softmax = d0, s0, s1
    _, second = parts.chunk(2, 2)
    # The order of the terms does not show in float64.
    dlam = -(do.double() * second).sum((0, 1, 3)).to(lam.dtype)
    factors = torch.cat([torch.ones_like(lam), -lam]).float()
    call, no_dlse = _call(v=v, **given), torch.zeros_like(softmax[0])
    dq, dk, dv, *_ = call.backward(_joined(do, do), no_dlse, parts, softmax, factors)
    (dq1, dq2), (dk1, dk2), (dv1, dv2) = (x.chunk(2, 2) for x in (dq, dk, dv))
    each = (
        x.to(v.dtype, copy=True, memory_format=torch.contiguous_format)
        for x in (dq1, dk1, dq2, dk2, dv1 + dv2)
    )
    return [*each, dlam]


_parallel = differentiable(
    "differential_attention_parallel", _forward, _backward, _shapes, outputs=1, saved=2
)


def _output(**given: Any) -> Tensor:
    o, *_ = _parallel(**given)
    return o


@pairs(_output, same_dtype=("q1", "k1", "q2", "k2", "v"))
def differential_attention(
    q1: Float[Tensor, "B T_q H K"],
    k1: Float[Tensor, "B T_k G K"],
    q2: Float[Tensor, "B T_q H K"],
    k2: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    lam: Float[Tensor, "H"],
    *,
    causal: bool = False,
    window: int | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[Options],
) -> Float[Tensor, "B T_q H V"]:
    """The difference of two softmax attentions in tiles, `reference.differential_attention`."""
