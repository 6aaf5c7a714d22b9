"""Gated slot attention: softmax attention over a fixed number of slots that forget."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.recurrence import Options, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    kv, K, o = torch.cat([k, v], dim=-1), k.shape[-1], []
    for t in range(q.shape[1]):
        S = torch.exp(g[:, t, :, :, None]) * S
        S = S + torch.einsum("bhm,bhd->bhmd", s[:, t], kv[:, t])
        p = torch.softmax(scale * torch.einsum("bhk,bhmk->bhm", q[:, t], S[..., :K]), dim=-1)
        o.append(torch.einsum("bhm,bhmv->bhv", p, S[..., K:]))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: two attentions with the decays of a pair of tokens in each slot.

        s_ij = exp(Σ_{j < t <= i} g_t) ∘ s_j
        l_i  = scale · (Σ_{j <= i} (q_i · k_j) s_ij + exp(Σ_{t <= i} g_t) ∘ (K_0 q_i))
        p_i  = exp(l_i) / Σ_m exp(l_im)
        o_i  = Σ_{j <= i} (p_i · s_ij) v_j + V_0ᵀ (exp(Σ_{t <= i} g_t) ∘ p_i)

    Source: Zhang et al., arXiv 2409.07146, section 3.2 (two passes of gated linear attention).
    """
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(g)
    K0, V0 = S.split([k.shape[-1], v.shape[-1]], dim=-1)
    slots = between * s[:, None]

    pairs = torch.einsum("bihk,bjhk->bhij", q, k).tril()
    logits = torch.einsum("bhij,bijhm->bihm", pairs, slots)
    logits = logits + from_start * torch.einsum("bihk,bhmk->bihm", q, K0)
    logits = scale * logits
    weights = torch.exp(logits - logits.amax(-1, keepdim=True).detach())
    p = weights / weights.sum(-1, keepdim=True)
    pairs = torch.einsum("bihm,bijhm->bhij", p, slots).tril()
    o = torch.einsum("bhij,bjhv->bihv", pairs, v)
    o = o + torch.einsum("bihm,bhmv->bihv", from_start * p, V0)
    written = torch.einsum("bjhm,bjhd->bhmd", slots[:, -1], torch.cat([k, v], dim=-1))
    return o, from_start[:, -1, :, :, None] * S + written


@recurrence(recurrent, parallel, same_dtype=("q", "k", "v", "s"), neutral={"g": 0.0})
def gsa(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    s: Float[Tensor, "B T H M"],
    g: Float[Tensor, "B T H M"] | None = None,
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H M K+V"] | None]:
    """Gated slot attention, as a recurrence over tokens with M slots.

        K_t = diag(exp g_t) K_{t-1} + s_t k_tᵀ
        V_t = diag(exp g_t) V_{t-1} + s_t v_tᵀ
        o_t = V_tᵀ softmax(scale · K_t q_t)         (read after write)

    The state has the keys K_t and the values V_t of the slots side by side. Stable for g <= 0.

    Args:
        s: What each slot takes of the token; 1 - exp(g) in the model.
        g: Natural logarithm of the decay of each slot, meant to be <= 0, -inf included. None means
            no decay.

    Source: Zhang et al., Gated Slot Attention, arXiv 2409.07146, section 3.1.
    """
