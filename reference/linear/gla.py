"""Gated linear attention: linear attention with one decay per key channel."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.linear.normalize import normalized
from reference.recurrence import ReversibleOptions, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, S: Tensor, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    o = []
    for t in range(q.shape[1]):
        if g is not None:
            S = S * torch.exp(g[:, t, :, :, None])
        if gv is not None:
            S = S * torch.exp(gv[:, t, :, None, :])
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, gv: Tensor | None, S: Tensor, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All tokens at once: each pair of tokens has its own decay.

        k_ij = exp(Σ_{j < t <= i} g_t) ∘ k_j                      key j as token i finds it
        v_ij = exp(Σ_{j < t <= i} gv_t) ∘ v_j                     its value
        S_i0 = diag(exp Σ_{t <= i} g_t) S_0 diag(exp Σ_{t <= i} gv_t)
        o_i  = scale · (Σ_{j <= i} (q_i · k_ij) v_ij + S_i0ᵀ q_i)
        S_T  = Σ_j k_Tj v_Tjᵀ + S_T0

    Each exponent is a sum of its own and not a difference of prefix sums, which would lose small
    terms behind a large one.

    Source: Yang et al., arXiv 2312.06635, section 4.1 and appendix C.1 (parallel form), without the
        division of cumulative products.
    """
    if q.shape[1] == 0:
        return v, S
    keys, values, carried = k[:, None], v[:, None], S[:, None]
    if g is not None:
        from_start, between = decays(g)
        keys, carried = between * keys, from_start[..., :, None] * carried
    if gv is not None:
        from_start, between = decays(gv)
        values, carried = between * values, carried * from_start[..., None, :]

    A = torch.einsum("bihk,bijhk->bhij", q, keys).tril()
    o = torch.einsum("bhij,bijhv->bihv", A, values) + torch.einsum("bihk,bihkv->bihv", q, carried)
    written = torch.einsum("bjhk,bjhv->bhkv", keys[:, -1], values[:, -1])
    return scale * o, carried[:, -1] + written


@recurrence(recurrent, parallel, around=normalized)
def gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    *,
    gv: Float[Tensor, "B T H V"] | None = None,
    normalize: bool = False,
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Gated linear attention, as a recurrence over tokens.

        S_t = diag(exp g_t) S_{t-1} diag(exp gv_t) + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    `normalize` divides by the sum of the weights. v gets one more channel that is 1 everywhere and
    that gv does not decay, so the last column of the state is z_t = exp(g_t) z_{t-1} + k_t, and

        o_t = (S_tᵀ q_t) / (z_tᵀ q_t)

    in which the scale cancels; a row with scale = 0 or z_tᵀ q_t = 0 is 0, and so are its gradients.

    Args:
        g: Natural logarithm of the decay of each key channel, meant to be <= 0, -inf included. None
            means no decay.
        gv: The same for each value channel.
        initial_state: State before the first token, with V+1 columns if `normalize`. None means
            zero.

    Source: Yang et al., Gated Linear Attention Transformers with Hardware-Efficient Training,
        arXiv 2312.06635, equation 3 (g) and appendix C (gv).
    """
