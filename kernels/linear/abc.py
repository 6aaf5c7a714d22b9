"""Attention with bounded memory control: slots that are averages of the tokens so far."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.linear.gsa import by_two_passes
from kernels.linear.log_weights import log_weights
from kernels.primitives.layout import widened
from kernels.primitives.states import without_last
from kernels.recurrence import Options, wrapper


def as_gsa(
    *,
    s: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    (s,) = widened(s)
    S, z = without_last(initial_state)
    weight, _, left, z = log_weights(s, None, z, cu_seqlens)
    s = torch.exp(s.float() - weight)
    o, S = by_two_passes(s=s, g=left, initial_state=S, cu_seqlens=cu_seqlens, **given)
    return o, None if S is None else torch.cat([S, z[..., None]], dim=-1)


@wrapper(as_gsa, "gla", same_dtype=("q", "k", "v", "s"))
def abc(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    s: Float[Tensor, "B T H M"],
    *,
    mode: Literal["auto", "fused_recurrent"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H M K+V+1"] | None]:
    """Attention with bounded memory control, `reference.abc`: the two passes of `gsa` with slots
    that take exp(s - z), in float32.
    """
