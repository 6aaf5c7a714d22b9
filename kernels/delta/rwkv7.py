"""RWKV-7: a delta rule whose decay and strength are vectors, and that removes along another key."""

from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels.delta.dplr import dplr
from kernels.recurrence import wrapper


def as_dplr(
    *, r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, **given: Any
) -> tuple[Tensor, Tensor | None]:
    return dplr(r, k, v, -kk, a * kk, w, **given)


@wrapper(as_dplr, "dplr", same_dtype=("r", "k", "v", "kk", "a"))
def rwkv7(
    r: Float[Tensor, "B T H K"],
    w: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    kk: Float[Tensor, "B T H K"],
    a: Float[Tensor, "B T H K"],
    *,
    scale: float | None = 1.0,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The weighted key values of RWKV-7, `reference.rwkv7`: `dplr` with q = r, gk = w, a = -kk and
    b = a ∘ kk.
    """
