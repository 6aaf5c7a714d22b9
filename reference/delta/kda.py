"""Kimi delta attention: a gated delta rule with one decay per key channel."""

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
        S = torch.exp(g[:, t, :, :, None]) * S
        known = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        u = beta[:, t, :, None] * (v[:, t] - known)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: the writes U solve one triangular system.

        k_ij = exp(Σ_{j < t <= i} g_t) ∘ k_j                      key j as token i finds it
        S_i0 = diag(exp Σ_{t <= i} g_t) S_0
        (I + L) U = diag(β) (v_i - S_i0ᵀ k_i)_i,    L_ij = β_i k_i · k_ij  if j < i else 0
        o_i       = scale · (Σ_{j <= i} (q_i · k_ij) u_j + S_i0ᵀ q_i)
        S_T       = Σ_j k_Tj u_jᵀ + S_T0

    The rows of U are the u_t of the recurrence.

    Source: Kimi Team, arXiv 2510.26692, section 3.1 (with one chunk for all tokens, and without its
        division of cumulative products).
    """
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(g)
    keys, carried = between * k[:, None], from_start[..., None] * S[:, None]
    strength = beta.transpose(1, 2)[..., None]

    residual = v - torch.einsum("bihk,bihkv->bihv", k, carried)
    L = strength * torch.einsum("bihk,bijhk->bhij", k, keys).tril(-1)
    U = solve_unit_lower(L, strength * residual.transpose(1, 2))
    weights = torch.einsum("bihk,bijhk->bhij", q, keys).tril()
    o = (weights @ U).transpose(1, 2) + torch.einsum("bihk,bihkv->bihv", q, carried)
    return scale * o, carried[:, -1] + torch.einsum("bjhk,bhjv->bhkv", keys[:, -1], U)


@recurrence(recurrent, parallel, around=normalized_keys, neutral={"g": 0.0, "beta": 1.0})
def kda(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Kimi delta attention, as a recurrence over tokens.

        S' = diag(exp g_t) S_{t-1}
        u_t = β_t (v_t - S'ᵀ k_t)           the prediction error of the decayed state
        S_t = S' + k_t u_tᵀ                 = (I - β_t k_t k_tᵀ) S' + β_t k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Value head h, which has its own state, gates and β, reads key head h // (H / G).

    Stable for g <= 0 and 0 <= β_t |k_t|² <= 2: neither diag(exp g_t) nor I - β_t k_t k_tᵀ then
    makes a vector longer, so neither the state nor an error of it grows. For |k_t| = 1 that is β in
    [0, 2].

    Args:
        g: Natural logarithm of the decay of each key channel, meant to be <= 0, -inf included. None
            means no decay.

    Source: Kimi Team, Kimi Linear, arXiv 2510.26692, equation 1.
    """
