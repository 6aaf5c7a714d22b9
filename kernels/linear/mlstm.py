"""mLSTM: a matrix memory with exponential gates, and a normalizer."""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.linear.log_weights import log_weights
from kernels.linear.simple_gla import simple_gla
from kernels.recurrence import wrapper


def with_a_normalizer(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    g: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    dtype, C, n, z = q.dtype, None, None, None
    if initial_state is not None:
        C, n = initial_state[..., :-1, :-1], initial_state[..., :-1, -1:]
        z = initial_state[..., -1, -1]
    z, _, left, last = log_weights(i, g, z, cu_seqlens)
    # A quotient is rounded once, and not its two parts.
    q, k, v = q.float(), torch.exp(i.float() - z)[..., None] * k, v.float()
    given["cu_seqlens"] = cu_seqlens
    read, C = simple_gla(q, k, v, left, initial_state=C, **given)
    weight, n = simple_gla(q, k, torch.ones_like(v[..., :1]), left, initial_state=n, **given)
    down, up = torch.exp(z.clamp(max=0))[..., None], torch.exp(-z.clamp(min=0))[..., None]
    h = (down * read / torch.maximum(down * weight.abs(), up)).to(dtype)
    if C is None:
        return h, None
    unread = torch.zeros_like(C[..., :1, :])
    if initial_state is not None:
        unread = initial_state[..., -1:, :-1]
    corner = torch.cat([unread, last[..., None, None]], dim=-1)
    return h, torch.cat([torch.cat([C, n], dim=-1), corner], dim=-2)


@wrapper(with_a_normalizer, "simple_gla")
def mlstm(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    i: Float[Tensor, "B T H"],
    g: Float[Tensor, "B T H"],
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K+1 V+1"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K+1 V+1"] | None]:
    """The matrix memory of xLSTM, `reference.mlstm`: `simple_gla` for the values and for the
    normalizer, in float32.
    """
