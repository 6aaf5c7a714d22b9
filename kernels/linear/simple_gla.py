"""Simple gated linear attention: linear attention whose state forgets, all channels alike."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.linear import chunk, fused_chunk, fused_recurrent, parallel
from kernels.recurrence import ReversibleOptions, recurrence


@recurrence(chunk, fused_chunk, fused_recurrent, parallel)
def simple_gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Linear attention with one decay per head and token, `reference.simple_gla`."""
