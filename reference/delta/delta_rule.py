"""The delta rule: a linear attention that writes the error of what its state predicts."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.delta.keys import normalized_keys
from reference.delta.triangular import solve_unit_lower
from reference.recurrence import DeltaOptions, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(q.shape[1]):
        known = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        u = beta[:, t, :, None] * (v[:, t] - known)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: the writes U solve one triangular system.

        S_i       = S_0 + Σ_{j <= i} k_j u_jᵀ
        (I + L) U = diag(β) (V - K S_0),    L_ij = β_i k_i · k_j  if j < i else 0
        o         = scale · ((Q Kᵀ) ∘ M) U + scale · Q S_0,    M_ij = 1 if j <= i else 0
        S_T       = S_0 + Kᵀ U

    The rows of U are the u_t of the recurrence.

    Source: Yang et al., arXiv 2406.06484, section 3.2 (with one chunk for all tokens).
    """
    Q, K, V, strength = (x.transpose(1, 2) for x in (q, k, v, beta[..., None]))
    L = strength * (K @ K.mT).tril(-1)
    U = solve_unit_lower(L, strength * (V - K @ S))
    o = (Q @ K.mT).tril() @ U + Q @ S
    return scale * o.transpose(1, 2), S + K.mT @ U


@recurrence(recurrent, parallel, around=normalized_keys, neutral={"beta": 1.0})
def delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The delta rule, as a recurrence over tokens.

        u_t = β_t (v_t - S_{t-1}ᵀ k_t)      the prediction error of the state
        S_t = S_{t-1} + k_t u_tᵀ            = (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Stable for 0 <= β_t |k_t|² <= 2: the matrix I - β_t k_t k_tᵀ has the eigenvalues 1 and
    1 - β_t |k_t|², so neither the state nor an error of it grows. For |k_t| = 1 that is β in
    [0, 2]: 0 writes nothing, 1 replaces the value of k_t, 2 reflects it. Outside, the state along
    k_t grows by |1 - β_t |k_t|²| at each such token; the rule is defined, but its results soon
    overflow.

    Source: Schlag et al., Linear Transformers Are Secretly Fast Weight Programmers, arXiv
        2102.11174, equation 23; Yang et al., arXiv 2406.06484, section 2.2, and section 3.3 (the
        eigenvalues).
    """
