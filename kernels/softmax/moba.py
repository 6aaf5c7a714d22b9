"""Mixture of block attention: a selection for each head, and attention to it."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels.op import op
from kernels.softmax.select import select_of_moba
from kernels.softmax.selected import ABOUT, TEXTS, attend, check_counts, checked


def compute(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_size: int,
    top_k: int,
    scale: float | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    return_lse: bool,
    mode: str,
    tile: int | None,
) -> tuple[Tensor, Tensor | None]:
    check_counts(block_size=block_size, top_k=top_k)
    call = checked(q, k, v, scale, cu_seqlens, cu_seqlens_k, mode, tile, return_lse=return_lse)
    packs = call.cu_seqlens, call.cu_seqlens_k
    indices = select_of_moba(q, k, *packs, block_size, top_k)
    o, lse = attend(call, q, k, v, indices, block_size)
    return o, lse if return_lse else None


@op(compute, outputs=("o", "lse"), about=ABOUT, same_dtype=("q", "k", "v"), texts=TEXTS)
def moba(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    block_size: int = 512,
    top_k: int = 3,
    scale: float | None = None,
    cu_seqlens: Int[Tensor, "N+1"] | None = None,
    cu_seqlens_k: Int[Tensor, "N+1"] | None = None,
    return_lse: bool = False,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Mixture of block attention: `selected_attention` to the blocks that PyTorch selects."""
