"""LightNet: linear attention whose keys are normalized over all tokens so far."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.linear.gla import gla
from kernels.linear.log_weights import log_weights
from kernels.primitives.layout import widened
from kernels.primitives.states import without_last
from kernels.recurrence import Options, compute, wrapper


def as_gla(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    dtype = q.dtype
    q, k, v = widened(q, k, v)
    S, z = without_last(initial_state)
    weight, _, left, z = log_weights(k, None, z, cu_seqlens)
    keys = torch.exp(k.float() - weight).to(k.dtype)
    o, S = compute(
        gla.__name__, q=q, k=keys, v=v, g=left, gv=None, normalize=False, reverse=False,
        initial_state=S, cu_seqlens=cu_seqlens, within=dtype, **given,
    )  # fmt: skip
    return o, None if S is None else torch.cat([S, z[..., None]], dim=-1)


@wrapper(as_gla, "gla")
def lightnet(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+1"] | None]:
    """LightNet's additive decay, `reference.lightnet`: `gla` with keys exp(k - z) and gates of what
    is left of the sum.
    """
