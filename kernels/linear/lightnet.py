"""LightNet: linear attention whose keys are normalized over all tokens so far."""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.linear.gla import gla
from kernels.linear.log_weights import log_weights
from kernels.primitives.states import without_last
from kernels.recurrence import wrapper


def as_gla(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    S, z = without_last(initial_state)
    weight, _, left, z = log_weights(k, None, z, cu_seqlens)
    keys = torch.exp(k.float() - weight).to(k.dtype)
    o, S = gla(q, keys, v, left, initial_state=S, cu_seqlens=cu_seqlens, **given)
    return o, None if S is None else torch.cat([S, z[..., None]], dim=-1)


@wrapper(as_gla, "gla")
def lightnet(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V+1"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+1"] | None]:
    """LightNet's additive decay, `reference.lightnet`: `gla` with keys exp(k - z) and gates of what
    is left of the sum.
    """
