"""Titans' linear memory: the momentum delta rule with one key."""

from typing import Any, Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.delta.momentum_delta_rule import momentum_delta_rule
from kernels.recurrence import StateOptions, wrapper


def _as_momentum(
    *, q: Tensor, k: Tensor, v: Tensor, theta: Tensor, log_alpha: Tensor | None,
    log_eta: Tensor | None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    # In float32, as the rule's kernel computes: the gradient of k is a sum of two terms, and
    # each may leave the range of float16.
    dtype = q.dtype
    q, k, v, rate = q.float(), k.float(), v.float(), 2 * theta.float()
    gates = [x if x is None else x.float() for x in (log_alpha, log_eta)]
    o, state = momentum_delta_rule(q, k, v, k, *gates, None, rate, scale=1.0, **given)
    return o.to(dtype), state


@wrapper(_as_momentum, "momentum_delta_rule")
def titans(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    theta: Float[Tensor, "B T H"],
    log_alpha: Float[Tensor, "B T H"] | None = None,
    log_eta: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "fused_recurrent"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H 2 K V"] | None]:
    """The linear memory of Titans, `reference.titans`: `momentum_delta_rule` with p = k and
    η = 2 θ.
    """
