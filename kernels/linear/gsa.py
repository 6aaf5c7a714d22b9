"""Gated slot attention: softmax attention over a fixed number of slots that forget."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.linear.gla import gla
from kernels.recurrence import Options, wrapper


def by_two_passes(
    *, q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor | None, scale: float | None,
    initial_state: Tensor | None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    dtype = q.dtype
    # Logits and weights stay float32, as in any softmax.
    q, k, v, s, g = (None if x is None else x.float() for x in (q, k, v, s, g))
    keys = values = None
    if initial_state is not None:
        keys, values = initial_state.split([k.shape[-1], v.shape[-1]], dim=-1)
        keys = keys.mT
    logits, keys = gla(q, k, s, gv=g, scale=scale, initial_state=keys, **given)
    p = torch.softmax(logits, dim=-1)
    o, values = gla(p, s, v, g, scale=1.0, initial_state=values, **given)
    final_state = None if keys is None else torch.cat([keys.mT, values], dim=-1)
    return o.to(dtype), final_state


@wrapper(by_two_passes, "gla", same_dtype=("q", "k", "v", "s"))
def gsa(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    s: Float[Tensor, "B T H M"],
    g: Float[Tensor, "B T H M"] | None = None,
    *,
    mode: Literal["auto", "fused_recurrent"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H M K+V"] | None]:
    """Gated slot attention, `reference.gsa`: `gla` with gv = g over the keys of the slots, a
    softmax, and `gla` with g over their values, in float32.
    """
