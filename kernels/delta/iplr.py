"""The delta rule whose transition is the identity plus a matrix of rank one."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.delta.dplr import dplr
from kernels.recurrence import Options, wrapper


@wrapper(dplr, "dplr", same_dtype=("q", "k", "v", "a", "b"))
def iplr(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    a: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H K"],
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The delta rule without decay of `reference.iplr`: `dplr` without gk."""
