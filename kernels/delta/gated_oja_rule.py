"""The gated Oja rule: a delta rule with keys and values exchanged."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.delta.kda import kda
from kernels.linear.gla import gla
from kernels.primitives.shift import of_the_token_before
from kernels.recurrence import Options, wrapper


def by_two_passes(
    *, q: Tensor, k: Tensor, v: Tensor, gv: Tensor | None, beta: Tensor | None, scale: float | None,
    initial_state: Tensor | None, output_final_state: bool, cu_seqlens: Tensor | None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    dtype = q.dtype
    q, k, v, gv = (None if x is None else x.float() for x in (q, k, v, gv))
    beta = q.new_ones(q.shape[:3]) if beta is None else beta.float()
    given["cu_seqlens"] = cu_seqlens
    # The state of kda one token late, transposed, is what the value of a token finds.
    late = (
        None if x is None else of_the_token_before(x, cu_seqlens) for x in (v, k, gv, beta)
    )  # fmt: skip
    read = v if gv is None else torch.exp(gv) * v
    S = None if initial_state is None else initial_state.mT
    known, _ = kda(read, *late, scale=1.0, initial_state=S, **given)
    u = beta[..., None] * (k - known)
    o, final_state = gla(
        q, u, v, gv=gv, scale=scale, initial_state=initial_state,
        output_final_state=output_final_state, **given,
    )  # fmt: skip
    return o.to(dtype), final_state


@wrapper(by_two_passes, "gla")
def gated_oja_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gv: Float[Tensor, "B T H V"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "fused_recurrent"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The gated Oja rule, `reference.gated_oja_rule`: `kda` for the keys that are written, and
    `gla` with gv for the rest, in float32.
    """
