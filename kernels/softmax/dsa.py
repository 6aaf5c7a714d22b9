"""DeepSeek sparse attention: tokens selected by an indexer, and attention to them."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.softmax.arguments import LseOptions
from kernels.softmax.select import select_of_dsa
from kernels.softmax.selected import Call, selecting


def select(
    call: Call, q: Tensor, k: Tensor, *, q_index: Tensor, k_index: Tensor, w: Tensor, top_k: int
) -> tuple[Tensor, int]:
    indices = select_of_dsa(q_index, k_index, w, *call.packs, top_k)
    return indices.expand(-1, -1, k.shape[2], -1), 1


@selecting(select, indexer=("q_index", "k_index", "w"))
def dsa(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    q_index: Float[Tensor, "B T_q I D"],
    k_index: Float[Tensor, "B T_k D"],
    w: Float[Tensor, "B T_q I"],
    *,
    top_k: int = 2048,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """DeepSeek sparse attention: `selected_attention` to the tokens that PyTorch selects."""
