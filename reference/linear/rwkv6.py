"""RWKV-6: gated linear attention that is read before it is written, with a bonus for the token."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.recurrence import Options, recurrence


def recurrent(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(r.shape[1]):
        written = torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        seen = S + u[:, :, None] * written
        o.append(scale * torch.einsum("bhk,bhkv->bhv", r[:, t], seen))
        S = torch.exp(w[:, t, :, :, None]) * S + written
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: a pair of tokens decays by the tokens between them.

        k_ij = exp(Σ_{j < t < i} w_t) ∘ k_j   if j < i,     u ∘ k_i   if j = i
        o_i  = scale · (Σ_{j <= i} (r_i · k_ij) v_j + S_0ᵀ (exp(Σ_{t < i} w_t) ∘ r_i))
        S_T  = Σ_j (exp(Σ_{j < t} w_t) ∘ k_j) v_jᵀ + diag(exp Σ_t w_t) S_0

    Source: Peng et al., Eagle and Finch, arXiv 2404.05892, section 4.1 (the sum over tokens).
    """
    if r.shape[1] == 0:
        return v, S
    # Token i reads the state that token i - 1 left, and its own key and value.
    from_start, between = decays(w)
    before = torch.cat([torch.ones_like(from_start[:, :1]), from_start[:, :-1]], 1)
    weights = torch.einsum("bihk,bijhk->bhij", r[:, 1:], between[:, :-1] * k[:, None]).tril()
    weights = torch.nn.functional.pad(weights, (0, 0, 1, 0))
    weights = weights + torch.diag_embed(torch.einsum("bihk,bihk->bhi", r, u * k))
    o = torch.einsum("bhij,bjhv->bihv", weights, v)
    o = o + torch.einsum("bihk,bhkv->bihv", before * r, S)
    written = torch.einsum("bjhk,bjhv->bhkv", between[:, -1] * k, v)
    return scale * o, from_start[:, -1, :, :, None] * S + written


@recurrence(recurrent, parallel, same_dtype=("r", "k", "v"))
def rwkv6(
    r: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    w: Float[Tensor, "B T H K"],
    u: Float[Tensor, "H K"],
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The weighted key values of RWKV-6, as a recurrence over tokens.

        o_t = scale · (S_{t-1} + diag(u) k_t v_tᵀ)ᵀ r_t     (read before write and decay)
        S_t = diag(exp w_t) S_{t-1} + k_t v_tᵀ

    Stable for w <= 0. The model has scale 1; the default is that of the other ops.

    Args:
        r: Receptances, the queries.
        w: Natural logarithm of the decay of each key channel, meant to be <= 0, -inf included. In
            the model it is -exp of what the network computes.
        u: Bonus, the weight of the token itself in each key channel.

    Source: Peng et al., Eagle and Finch, arXiv 2404.05892, equations 16 to 18.
    """
