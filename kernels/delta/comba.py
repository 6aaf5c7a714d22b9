"""Comba: a gated delta rule that subtracts what a second key reads before the decay."""

from typing import Any, Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.delta.dplr import dplr
from kernels.delta.keys import unit_keys
from kernels.primitives.groups import of_each_head
from kernels.primitives.layout import widened
from kernels.recurrence import DeltaOptions, compute, wrapper


def as_dplr(
    *, q: Tensor, k: Tensor, v: Tensor, p: Tensor, g: Tensor | None, beta: Tensor | None,
    use_qk_l2norm_in_kernel: bool, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    dtype, heads = q.dtype, v.shape[2]
    q, k, v, p, g, beta = widened(q, k, v, p, g, beta)
    q, k, p = (of_each_head(x, heads) for x in unit_keys(use_qk_l2norm_in_kernel, q, k, p))
    taken, written = k, v
    if beta is not None:
        taken, written = ((beta.float()[..., None] * x).to(q.dtype) for x in (k, v))
    # Its gradient is a sum over channels, whose parts stay in float32.
    gk = None if g is None else g.float()[..., None].expand(k.shape)
    operands = {"q": q, "k": k, "v": written, "a": p, "b": -taken, "gk": gk}
    return compute(dplr.__name__, **operands, within=dtype, **given)


@wrapper(as_dplr, "dplr", same_dtype=("q", "k", "v", "p"))
def comba(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    p: Float[Tensor, "B T G K"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Comba's closed loop, `reference.comba`: `dplr` with a = p, b = -β k, gk = g in each channel
    and values β v.
    """
