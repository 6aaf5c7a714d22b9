"""Linear attention: a softmax-free attention whose whole past is one matrix."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.linear import chunk, fused_chunk, fused_recurrent
from kernels.linear.normalize import divided_by_weights
from kernels.recurrence import ReversibleOptions, recurrence


@recurrence(chunk, fused_chunk, fused_recurrent, around=divided_by_weights)
def linear_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    normalize: bool = False,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent"] = "auto",
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Causal linear attention, `reference.linear_attn`."""
