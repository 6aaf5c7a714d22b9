"""MiniMax sparse attention: blocks selected by an indexer for each group, and attention to them."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.arguments import bind_dims, check_dtype
from kernels.op import op
from kernels.softmax.select import select_of_msa
from kernels.softmax.selected import ABOUT, TEXTS, attend, check_counts, checked


def compute(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_index: Tensor,
    k_index: Tensor,
    block_size: int,
    top_k: int,
    scale: float | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    return_lse: bool,
    mode: str,
    tile: int | None,
) -> tuple[Tensor, Tensor | None]:
    bind_dims(
        q=(q, "B T_q H K"),
        k=(k, "B T_k G K"),
        q_index=(q_index, "B T_q G D"),
        k_index=(k_index, "B T_k D"),
    )
    check_counts(block_size=block_size, top_k=top_k)
    call = checked(q, k, v, scale, cu_seqlens, cu_seqlens_k, mode, tile, return_lse=return_lse)
    for name, x in (("q_index", q_index), ("k_index", k_index)):
        check_dtype(name, x, q.dtype, torch.float32)
    packs = call.cu_seqlens, call.cu_seqlens_k
    indices = select_of_msa(q_index.detach(), k_index.detach(), *packs, block_size, top_k)
    o, lse = attend(call, q, k, v, indices, block_size)
    return o, lse if return_lse else None


@op(compute, outputs=("o", "lse"), about=ABOUT, same_dtype=("q", "k", "v"), texts=TEXTS)
def msa(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    q_index: Float[Tensor, "B T_q G D"],
    k_index: Float[Tensor, "B T_k D"],
    *,
    block_size: int = 128,
    top_k: int = 16,
    scale: float | None = None,
    cu_seqlens: Int[Tensor, "N+1"] | None = None,
    cu_seqlens_k: Int[Tensor, "N+1"] | None = None,
    return_lse: bool = False,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """MiniMax sparse attention: `selected_attention` to the blocks that PyTorch selects."""
