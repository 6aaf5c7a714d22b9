"""MiniMax sparse attention: blocks selected by an indexer for each group, and attention to them."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.softmax.arguments import LseOptions
from kernels.softmax.select import select_of_msa
from kernels.softmax.selected import Call, selecting


def select(
    call: Call, q: Tensor, k: Tensor, *, q_index: Tensor, k_index: Tensor, block_size: int,
    top_k: int,
) -> tuple[Tensor, int]:  # fmt: skip
    return select_of_msa(q_index, k_index, *call.packs, block_size, top_k), block_size


@selecting(select, indexer=("q_index", "k_index"))
def msa(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    q_index: Float[Tensor, "B T_q G D"],
    k_index: Float[Tensor, "B T_k D"],
    *,
    block_size: int = 128,
    top_k: int = 16,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """MiniMax sparse attention: `selected_attention` to the blocks that PyTorch selects."""
