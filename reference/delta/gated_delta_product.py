"""The gated delta product: several steps of a delta rule for each token."""

from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.delta import gated_delta_rule
from reference.delta.keys import normalized_keys
from reference.recurrence import DeltaOptions, Run, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(q.shape[1]):
        S = torch.exp(g[:, t, :, None, None]) * S
        for j in range(k.shape[2]):
            known = torch.einsum("bhk,bhkv->bhv", k[:, t, j], S)
            u = beta[:, t, j, :, None] * (v[:, t, j] - known)
            S = S + torch.einsum("bhk,bhv->bhkv", k[:, t, j], u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v[:, :, 0], S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The triangular system of `gated_delta_rule.second_form` for J T tokens.

    The first of J tokens has the decay, and the last has the query.

    Source: Siems et al., arXiv 2502.10297, section 4.
    """
    J = k.shape[2]
    last = torch.nn.functional.pad(q[:, :, None], (0, 0, 0, 0, J - 1, 0))
    first = torch.nn.functional.pad(g[:, :, None], (0, 0, 0, J - 1))
    last, k, v, first, beta = (x.flatten(1, 2) for x in (last, k, v, first, beta))
    o, S = gated_delta_rule.parallel(last, k, v, first, beta, S, scale)
    return o[:, J - 1 :: J], S


def _normalized(run: Run, *, k: Tensor, **arguments: Any) -> tuple[Tensor, Tensor]:
    """The steps of a token are normalized as tokens are."""

    def run_steps(*, k: Tensor, **normalized: Any) -> tuple[Tensor, Tensor]:
        return run(k=k.unflatten(1, steps), **normalized)

    steps = k.shape[1:3]
    if steps[1] == 0:
        raise ValueError("k: 0 steps, expected at least 1")
    return normalized_keys(run_steps, k=k.flatten(1, 2), **arguments)


@recurrence(recurrent, parallel, around=_normalized, neutral={"g": 0.0, "beta": 1.0})
def gated_delta_product(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T J H K"],
    v: Float[Tensor, "B T J H V"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T J H"] | None = None,
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The gated delta product, as a recurrence over tokens of J steps each.

        S_t0 = exp(g_t) S_{t-1}
        u_tj = β_tj (v_tj - S_{t,j-1}ᵀ k_tj)          j = 1, ..., J
        S_tj = S_{t,j-1} + k_tj u_tjᵀ
        S_t  = S_tJ
        o_t  = scale · S_tᵀ q_t             (read after the last write)

    It is `gated_delta_rule` over J T tokens: the first of each J has the decay, and the last is
    read. J has an axis of its own here; libraries put the steps of a token on rows beside
    each other, T J of them. Stable where `gated_delta_rule` is.

    Args:
        k: Keys, J >= 1 for each token.
        v: Values, J for each token.
        g: Natural logarithm of the decay before the first of the J steps, meant to be <= 0, -inf
            included. None means no decay.
        cu_seqlens: Boundaries of N packed sequences, in tokens and not in steps; B is then 1. The
            state of an empty sequence passes through. None means N = B sequences.

    Raises:
        ValueError: no steps (J = 0).

    Source: Siems et al., DeltaProduct, arXiv 2502.10297, section 4.
    """
