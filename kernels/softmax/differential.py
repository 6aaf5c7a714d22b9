"""Differential attention: two softmaxes as twice as many heads of `attention`.

The parts stay in float32 until their difference is rounded. With D = dO the cotangent,

    dλ = -Σ D ∘ O2,    and the second softmax has the cotangent -λ D
"""

from typing import Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.differentiable import refuse_gradients
from kernels.softmax.arguments import Options
from kernels.softmax.attention import attention_parallel, attention_parallel_backward
from kernels.softmax.pairs import pairs


def _heads(
    q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor,
    cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The tensors that `attention_parallel` takes: q, k and v of twice as many heads, and others.

    Query head h of the second softmax is H + h, which reads kv head G + h // (H / G).
    """
    q, k, values = _joined(q1, q2), _joined(k1, k2), _joined(v, v)
    return q, k, values, None, None, None, cu_seqlens, cu_seqlens_k, *[None] * 6


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Both along the heads; `torch.cat` refuses float16 where autocast is to bfloat16."""
    batch, tokens, heads, dim = first.shape
    both = first.new_empty(batch, tokens, 2 * heads, dim)
    both[:, :, :heads] = first
    both[:, :, heads:] = second
    return both


@torch.library.custom_op("attention_oracles::differential_attention_parallel", mutates_args=())
def _parallel(
    q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor,
    cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, scale: float, causal: bool,
    window: int | None, tile: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """o; and for the backward pass the outputs of both softmaxes [B, T, 2 H, V], and their sums."""
    heads = _heads(q1, k1, q2, k2, v, cu_seqlens, cu_seqlens_k)
    parts, _, softmax = attention_parallel(
        *heads, 1, scale, causal, window, None, tile, True, v.dtype
    )
    first, second = parts.chunk(2, 2)
    return (first - lam.float()[:, None] * second).to(v.dtype), parts, softmax


@_parallel.register_fake
def _(q1, k1, q2, k2, v, *more):
    batch, queries, heads, _ = q1.shape
    o = q1.new_empty(batch, queries, heads, v.shape[3])
    parts = o.new_empty(batch, queries, 2 * heads, v.shape[3], dtype=torch.float32)
    return o, parts, parts.new_empty(2, batch, 2 * heads, queries)


@torch.library.custom_op(
    "attention_oracles::differential_attention_parallel_backward", mutates_args=()
)
def _parallel_backward(
    do: Tensor, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor,
    cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, parts: Tensor, softmax: Tensor,
    scale: float, causal: bool, window: int | None, tile: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q1, k1, q2, k2, v and lam."""
    heads = _heads(q1, k1, q2, k2, v, cu_seqlens, cu_seqlens_k)
    _, second = parts.chunk(2, 2)
    # The order of the terms does not show in float64.
    dlam = -(do.double() * second).sum((0, 1, 3)).to(lam.dtype)
    # The second cotangent, -lam do, may leave the range of float16: pass a part of it on.
    factor, power = lam.float(), None
    if do.dtype == torch.float16:
        power = factor.abs().amax().clamp(min=1.0).log2().ceil().exp2()
        factor = factor / power
    both = _joined(do, -factor[:, None] * do)
    dq, dk, dv, *_ = attention_parallel_backward(
        both, torch.zeros_like(softmax[0]), *heads, parts, softmax,
        1, scale, causal, window, None, tile, v.dtype,
    )  # fmt: skip
    (dq1, dq2), (dk1, dk2), (dv1, dv2) = (x.chunk(2, 2) for x in (dq, dk, dv))
    if power is not None:
        dq2, dk2, dv2 = (x * power for x in (dq2, dk2, dv2))
    each = (
        x.to(v.dtype, copy=True, memory_format=torch.contiguous_format)
        for x in (dq1, dk1, dq2, dk2, dv1 + dv2)
    )
    return *each, dlam


@_parallel_backward.register_fake
def _(do, q1, k1, q2, k2, v, lam, *more):
    return tuple(x.new_empty(x.shape) for x in (q1, k1, q2, k2, v, lam))


def _save(ctx, inputs, output) -> None:
    _, parts, softmax = output
    ctx.mark_non_differentiable(parts, softmax)
    ctx.save_for_backward(*inputs[:8], parts, softmax)
    ctx.options = inputs[8:]


def _differentiate(ctx, do, *_):
    gradients = _parallel_backward(do, *ctx.saved_tensors, *ctx.options)
    return *gradients, None, None, *(None for _ in ctx.options)


_parallel.register_autograd(_differentiate, setup_context=_save)
refuse_gradients(_parallel_backward, "differential_attention")


def _output(
    *, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor, scale: float,
    causal: bool, window: int | None, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None,
    tile: int,
) -> Tensor:  # fmt: skip
    o: Tensor
    boundaries = cu_seqlens, cu_seqlens_k
    o, *_ = _parallel(q1, k1, q2, k2, v, lam, *boundaries, scale, causal, window, tile)
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
