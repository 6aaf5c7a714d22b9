"""The gated delta product: several steps of a delta rule for each token."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.delta.gated_delta_rule import gated_delta_rule
from kernels.recurrence import DeltaOptions, wrapper


def as_steps(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor | None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    steps = k.shape[2]
    if steps == 0:
        raise ValueError("k: 0 steps, expected at least 1")
    pad = torch.nn.functional.pad
    last = pad(q[:, :, None], (0, 0, 0, 0, steps - 1, 0))
    first = None if g is None else pad(g[:, :, None], (0, 0, 0, steps - 1))
    o, final_state = gated_delta_rule(
        *(None if x is None else x.flatten(1, 2) for x in (last, k, v, first, beta)),
        cu_seqlens=None if cu_seqlens is None else cu_seqlens * steps,
        **given,
    )
    return o[:, steps - 1 :: steps].contiguous(), final_state


@wrapper(as_steps, "gated_delta_rule", raises=["no steps"])
def gated_delta_product(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T J H K"],
    v: Float[Tensor, "B T J H V"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T J H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The gated delta product of `reference.gated_delta_product`: `gated_delta_rule` of the steps,
    of which the first of a token has its decay and the last its query.
    """
