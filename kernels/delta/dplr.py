"""The general delta rule: the state is multiplied by a diagonal plus a matrix of rank one."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.delta import chunk, fused_recurrent
from kernels.recurrence import Options, recurrence


@recurrence(chunk, fused_recurrent, same_dtype=("q", "k", "v", "a", "b"), names={"gk": "g"})
def dplr(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    a: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H K"],
    gk: Float[Tensor, "B T H K"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The general delta rule, `reference.dplr`."""
