"""RWKV-7: a delta rule whose decay and strength are vectors, and that removes along another key."""

from typing import Any, Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.delta.dplr import dplr
from kernels.primitives.layout import widened
from kernels.recurrence import StateOptions, compute, wrapper


def as_dplr(
    *, r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, **given: Any
) -> tuple[Tensor, Tensor | None]:
    dtype = r.dtype
    r, k, v, kk, a = widened(r, k, v, kk, a)
    operands = {"q": r, "k": k, "v": v, "a": -kk, "b": a * kk, "gk": w}
    return compute(dplr.__name__, **operands, within=dtype, **given)


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
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The weighted key values of RWKV-7, `reference.rwkv7`: `dplr` with q = r, gk = w, a = -kk and
    b = a ∘ kk.
    """
