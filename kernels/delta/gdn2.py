"""Gated DeltaNet-2: a delta rule that erases and writes with gates of its own for each channel."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.delta.dplr import dplr
from kernels.delta.keys import unit_keys
from kernels.primitives.layout import widened
from kernels.recurrence import DeltaOptions, compute, wrapper


def as_dplr(
    *, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, erase: Tensor | None,
    write: Tensor | None, use_qk_l2norm_in_kernel: bool, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    dtype = q.dtype
    q, k, v, g = widened(q, k, v, g)
    q, k = unit_keys(use_qk_l2norm_in_kernel, q, k)
    # S' = diag(exp g) S, so S'ᵀ e = Sᵀ (exp(g) ∘ e).
    e = k.float() if erase is None else erase.float() * k
    e = e if g is None else torch.exp(g.float()) * e
    written = v if write is None else (write.float() * v).to(q.dtype)
    operands = {"q": q, "k": k, "v": written, "a": e.to(q.dtype), "b": -k, "gk": g}
    return compute(dplr.__name__, **operands, within=dtype, **given)


@wrapper(as_dplr, "dplr")
def gdn2(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    erase: Float[Tensor, "B T H K"] | None = None,
    write: Float[Tensor, "B T H V"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Gated DeltaNet-2, `reference.gdn2`: `dplr` with a = exp(g) ∘ erase ∘ k, b = -k, gk = g and
    values write ∘ v.
    """
