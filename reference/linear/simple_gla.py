"""Simple gated linear attention: linear attention with one decay per head."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.recurrence import ReversibleOptions, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(q.shape[1]):
        S = torch.exp(g[:, t, :, None, None]) * S
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: a matrix of decays over an attention matrix.

        D_ij = exp(Σ_{j < t <= i} g_t)   if j <= i else 0
        d_i  = exp(Σ_{t <= i} g_t)
        o    = scale · ((Q Kᵀ) ∘ D) V + scale · (d ∘ Q) S_0
        S_T  = d_T S_0 + (D_T ∘ K)ᵀ V

    Source: Dao and Gu, arXiv 2405.21060, section 2.4 (the dual form).
    """
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(g)
    d, D = from_start[..., None], between.permute(0, 3, 1, 2)

    weights = torch.einsum("bihk,bjhk->bhij", q, k) * D.tril()
    o = torch.einsum("bhij,bjhv->bihv", weights, v) + torch.einsum("bihk,bhkv->bihv", d * q, S)
    written = torch.einsum("bjhk,bjhv->bhkv", between[:, -1, :, :, None] * k, v)
    return scale * o, d[:, -1, :, :, None] * S + written


@recurrence(recurrent, parallel, neutral={"g": 0.0})
def simple_gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Linear attention with one decay per head and token, as a recurrence over tokens.

        S_t = exp(g_t) S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Stable for g <= 0: an error of the state does not grow.

    Args:
        g: Natural logarithm of the decay, meant to be <= 0, -inf included. None means no decay.

    Source: Dao and Gu, Transformers are SSMs, arXiv 2405.21060, section 2.4 (a transition that is a
        number times the identity); Yang et al., arXiv 2312.06635, table 1 (as a linear attention).
    """
