"""Native sparse attention: compressed keys in PyTorch, selected and recent ones in kernels."""

from typing import Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.arguments import bind_dims, check_dtype
from kernels.differentiable import differentiable
from kernels.op import op
from kernels.primitives.layout import widened
from kernels.softmax.arguments import Options
from kernels.softmax.attention import attention_within
from kernels.softmax.select import (
    by_group,
    compressed_weights,
    each_sequence,
    mean_of_blocks,
    select_of_nsa,
)
from kernels.softmax.selected import ABOUT, RAISES, TILE, attend, check_counts, checked


def _forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None,
    block_size: int, scale: float,
) -> list[Tensor]:  # fmt: skip
    o = q.new_zeros(*q.shape[:3], v.shape[3], dtype=torch.float32)
    for i, j in each_sequence(q.shape[1], k.shape[1], cu_seqlens, cu_seqlens_k):
        weights, _ = compressed_weights(q, k, i, j, block_size, scale)
        means = mean_of_blocks(v[:, j], block_size)[:, :, None]
        o[:, i] = (weights @ means).flatten(1, 2).transpose(1, 2)
    return [o]


def _backward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None,
    d0: Tensor, block_size: int, scale: float,
) -> list[Tensor | None]:  # fmt: skip
    # See `mean_of_blocks`.
    block_size = min(block_size, k.shape[1] + 1)
    gradients = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
    dq, dk, dv = gradients
    for i, j in each_sequence(q.shape[1], k.shape[1], cu_seqlens, cu_seqlens_k):
        weights, k_means = compressed_weights(q, k, i, j, block_size, scale)
        v_means = mean_of_blocks(v[:, j], block_size)[:, :, None]
        do = by_group(d0[:, i], k.shape[2])
        dp = do @ v_means.mT
        ds = scale * weights * (dp - (weights * dp).sum(-1, keepdim=True))
        dq[:, i] = (ds @ k_means).flatten(1, 2).transpose(1, 2).to(q.dtype)
        whole = j.start + k_means.shape[3] * block_size
        for gradient, of_means in (
            (dk, (ds.mT @ by_group(q[:, i], k.shape[2])).sum(2)),
            (dv, (weights.mT @ do).sum(2)),
        ):
            of_tokens = of_means.transpose(1, 2).repeat_interleave(block_size, 1)
            gradient[:, j.start : whole] = (of_tokens / block_size).to(gradient.dtype)
    return [dq, dk, dv, None, None]


_compressed = differentiable(
    "nsa_compressed",
    _forward,
    _backward,
    lambda given: [((*given["q"].shape[:3], given["v"].shape[3]), torch.float32)],
    outputs=1,
)


def compute(
    *, q: Tensor, k: Tensor, v: Tensor, g_cmp: Tensor, g_slc: Tensor, g_swa: Tensor,
    block_size: int, top_k: int, local_blocks: int, window: int, scale: float | None,
    cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, mode: str, tile: int | None,
) -> Tensor:  # fmt: skip
    gates = {"g_cmp": g_cmp, "g_slc": g_slc, "g_swa": g_swa}
    bind_dims(q=(q, "B T_q H K"), **{name: (g, "B T_q H") for name, g in gates.items()})
    check_counts(block_size=block_size, top_k=top_k, local_blocks=local_blocks, window=window)
    if top_k < 1 + local_blocks:
        raise ValueError(
            f"top_k: {top_k}, expected at least {1 + local_blocks}: "
            f"the first block and local_blocks={local_blocks} are always selected"
        )
    call = checked(q, k, v, scale, cu_seqlens, cu_seqlens_k, mode, tile)
    for name, g in gates.items():
        check_dtype(name, g, q.dtype, torch.float32)
    indices = select_of_nsa(q, k, *call.packs, block_size, top_k, local_blocks, call.scale)
    q, k, v, g_cmp, g_slc, g_swa = widened(q, k, v, g_cmp, g_slc, g_swa)
    o_cmp = _compressed(q, k, v, *call.packs, block_size, call.scale)
    o_slc, _ = attend(call, q, k, v, indices, block_size)
    o_swa, _ = attention_within(
        call.dtype, q, k, v, *call.packs, scale=call.scale, causal=True, window=window, tile=None
    )
    branches = ((g_cmp, o_cmp), (g_slc, o_slc), (g_swa, o_swa))
    each = [g.float()[..., None] * o.float() for g, o in branches]
    return (each[0] + each[1] + each[2]).to(call.dtype).contiguous()


@op(
    compute,
    outputs=("o",),
    about=f"{ABOUT} The compressed branch is computed by PyTorch and needs memory for "
    "T_q · T_k / block_size weights of each head.",
    same_dtype=("q", "k", "v"),
    texts={"tile": TILE},
    raises=[
        *RAISES,
        "a block_size, local_blocks or window below 1",
        "a top_k below 1 + local_blocks",
    ],
)
def nsa(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    g_cmp: Float[Tensor, "B T_q H"],
    g_slc: Float[Tensor, "B T_q H"],
    g_swa: Float[Tensor, "B T_q H"],
    *,
    block_size: int = 64,
    top_k: int = 16,
    local_blocks: int = 2,
    window: int = 512,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[Options],
) -> Float[Tensor, "B T_q H V"]:
    """Native sparse attention: three branches, mixed by gates."""
