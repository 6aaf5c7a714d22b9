"""Mixture of block attention: a selection for each head, and attention to it."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.softmax.arguments import LseOptions
from kernels.softmax.select import select_of_moba
from kernels.softmax.selected import Call, selecting


def select(call: Call, q: Tensor, k: Tensor, *, block_size: int, top_k: int) -> tuple[Tensor, int]:
    return select_of_moba(q, k, *call.packs, block_size, top_k), block_size


@selecting(select)
def moba(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    block_size: int = 512,
    top_k: int = 3,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Mixture of block attention: `selected_attention` to the blocks that PyTorch selects."""
