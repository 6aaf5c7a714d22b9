"""The gated Oja rule: a delta rule with keys and values exchanged."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.delta.triangular import solve_unit_lower
from reference.recurrence import Options, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, gv: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(q.shape[1]):
        S = S * torch.exp(gv[:, t, :, None, :])
        known = torch.einsum("bhkv,bhv->bhk", S, v[:, t])
        u = beta[:, t, :, None] * (k[:, t] - known)
        S = S + torch.einsum("bhk,bhv->bhkv", u, v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, gv: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: the keys U that are written solve one triangular system.

        v_ij = exp(Σ_{j < t <= i} gv_t) ∘ v_j                     value j as token i finds it
        S_i0 = S_0 diag(exp Σ_{t <= i} gv_t)
        (I + L) U = diag(β) (k_i - S_i0 v_i)_i,    L_ij = β_i v_i · v_ij  if j < i else 0
        o_i       = scale · (Σ_{j <= i} (q_i · u_j) v_ij + S_i0ᵀ q_i)
        S_T       = Σ_j u_j v_Tjᵀ + S_T0

    Source: the construction of Yang et al., arXiv 2406.06484, section 3.2, for the transpose of S.
    """
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(gv)
    values, carried = between * v[:, None], S[:, None] * from_start[..., None, :]
    strength = beta.transpose(1, 2)[..., None]

    residual = k - torch.einsum("bihkv,bihv->bihk", carried, v)
    L = strength * torch.einsum("bihv,bijhv->bhij", v, values).tril(-1)
    U = solve_unit_lower(L, strength * residual.transpose(1, 2))
    weights = (q.transpose(1, 2) @ U.mT).tril()
    o = torch.einsum("bhij,bijhv->bihv", weights, values)
    o = o + torch.einsum("bihk,bihkv->bihv", q, carried)
    return scale * o, carried[:, -1] + torch.einsum("bhjk,bjhv->bhkv", U, values[:, -1])


@recurrence(recurrent, parallel, neutral={"gv": 0.0, "beta": 1.0})
def gated_oja_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gv: Float[Tensor, "B T H V"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The gated Oja rule, as a recurrence over tokens.

        S' = S_{t-1} diag(exp gv_t)
        u_t = β_t (k_t - S' v_t)            the error of the key that the value finds
        S_t = S' + u_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    The transpose of S_t is that of `kda` with k and v exchanged. Stable for gv <= 0 and
    0 <= β_t |v_t|² <= 2: it is the values that are meant to have length 1.

    Args:
        gv: Natural logarithm of the decay of each value channel, meant to be <= 0, -inf included.
            None means no decay.

    Source: Oja, A simplified neuron model as a principal component analyzer, 1982 (the rule); the
        gated form is that of flash-linear-attention 0.6.0.
    """
