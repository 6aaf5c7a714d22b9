"""Linear attention: a softmax-free attention whose whole past is one matrix."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels.linear import chunk, fused_chunk, fused_recurrent
from kernels.linear.normalize import normalized
from kernels.recurrence import recurrence


@recurrence(chunk, fused_chunk, fused_recurrent, around=normalized)
def linear_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    scale: float | None = None,
    normalize: bool = False,
    initial_state: Float[Tensor, "N H K V+normalize"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Causal linear attention, `reference.linear_attn`."""
