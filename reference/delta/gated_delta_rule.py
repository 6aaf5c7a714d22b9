"""The gated delta rule: a delta rule with one decay per head."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.delta.keys import normalized_keys
from reference.delta.triangular import solve_unit_lower
from reference.recurrence import DeltaOptions, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(q.shape[1]):
        S = torch.exp(g[:, t, :, None, None]) * S
        known = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        u = beta[:, t, :, None] * (v[:, t] - known)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: the writes U solve one triangular system.

        D_ij = exp(Σ_{j < t <= i} g_t)   if j <= i else 0
        d_i  = exp(Σ_{t <= i} g_t)
        (I + L) U = diag(β) (V - (d ∘ K) S_0),    L_ij = β_i D_ij k_i · k_j  if j < i else 0
        o         = scale · ((Q Kᵀ) ∘ D) U + scale · (d ∘ Q) S_0
        S_T       = d_T S_0 + (D_T ∘ K)ᵀ U

    The rows of U are the u_t of the recurrence.

    Source: Yang et al., arXiv 2412.06464, section 3.3 (with one chunk for all tokens).
    """
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(g)
    Q, K, V, d, strength = (
        x.transpose(1, 2) for x in (q, k, v, from_start[..., None], beta[..., None])
    )
    D = between.permute(0, 3, 1, 2).tril()
    L = strength * (D * (K @ K.mT)).tril(-1)
    U = solve_unit_lower(L, strength * (V - (d * K) @ S))
    o = (D * (Q @ K.mT)) @ U + (d * Q) @ S
    last = D[:, :, -1, :, None]
    return scale * o.transpose(1, 2), d[:, :, -1:] * S + (last * K).mT @ U


@recurrence(recurrent, parallel, around=normalized_keys, neutral={"g": 0.0, "beta": 1.0})
def gated_delta_rule(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The gated delta rule, as a recurrence over tokens.

        S' = exp(g_t) S_{t-1}
        u_t = β_t (v_t - S'ᵀ k_t)           the prediction error of the decayed state
        S_t = S' + k_t u_tᵀ                 = (I - β_t k_t k_tᵀ) S' + β_t k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Value head h, which has its own state, gate and β, reads key head h // (H / G).

    Stable for g <= 0 and 0 <= β_t |k_t|² <= 2: the factor of S_{t-1} is then a symmetric matrix
    with eigenvalues exp(g_t) and exp(g_t) (1 - β_t |k_t|²) in [-1, 1], so neither the state nor an
    error of it grows. For |k_t| = 1 that is β in [0, 2].

    Args:
        g: Natural logarithm of the decay, meant to be <= 0, -inf included. None means no decay.

    Source: Yang et al., Gated Delta Networks, arXiv 2412.06464, section 3.1; Grazzi et al., arXiv
        2411.12537 (β up to 2).
    """
