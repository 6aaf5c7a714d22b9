"""Gated linear attention: linear attention whose state forgets, channel by channel."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.linear import chunk, fused_recurrent
from kernels.linear.normalize import divided_by_weights
from kernels.recurrence import ReversibleOptions, recurrence


@recurrence(chunk, fused_recurrent, around=divided_by_weights)
def gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    *,
    gv: Float[Tensor, "B T H V"] | None = None,
    normalize: bool = False,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Gated linear attention, `reference.gla`."""
