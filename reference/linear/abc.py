"""Attention with bounded memory control: slots that are averages of the tokens so far."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import Options, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    kv, K, o = torch.cat([k, v], dim=-1), k.shape[-1], []
    S, z = S[..., :-1], S[..., -1]
    for t in range(q.shape[1]):
        before, z = z, torch.logaddexp(z, s[:, t])
        S = torch.exp(before - z)[..., None] * S
        S = S + torch.einsum("bhm,bhd->bhmd", torch.exp(s[:, t] - z), kv[:, t])
        p = torch.softmax(scale * torch.einsum("bhk,bhmk->bhm", q[:, t], S[..., :K]), dim=-1)
        o.append(torch.einsum("bhm,bhmv->bhv", p, S[..., K:]))
    return torch.stack(o, dim=1) if o else v, torch.cat([S, z[..., None]], dim=-1)


def attended(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Each slot is a query of its own that attends to the tokens so far, with logits s.

        a_i = softmax(z_0, s_1, ..., s_i)          of each slot by itself
        K_i = diag(a_i0) K_0 + Σ_{j <= i} a_ij k_jᵀ,    V_i alike
        o_i = V_iᵀ softmax(scale · K_i q_i)

    Source: Peng et al., arXiv 2110.02488, section 3 (its equation of memory as an average).
    """
    if q.shape[1] == 0:
        return v, S
    K, T = k.shape[-1], q.shape[1]
    S, z = S[..., :-1], S[..., -1]
    logits = torch.cat([z[:, None], s], dim=1)[:, None].expand(-1, T, -1, -1, -1)
    hidden = torch.ones(T, T + 1, dtype=torch.bool, device=q.device).triu(2)[..., None, None]
    a = torch.softmax(logits.masked_fill(hidden, -torch.inf), dim=2)
    seen = torch.einsum("bihm,bhmd->bihmd", a[:, :, 0], S)
    seen = seen + torch.einsum("bijhm,bjhd->bihmd", a[:, :, 1:], torch.cat([k, v], dim=-1))
    l = scale * torch.einsum("bihk,bihmk->bihm", q, seen[..., :K])
    p = torch.exp(l - torch.logsumexp(l, dim=-1, keepdim=True))
    o = torch.einsum("bihm,bihmv->bihv", p, seen[..., K:])
    last = torch.logsumexp(logits[:, -1], dim=1)
    return o, torch.cat([seen[:, -1], last[..., None]], dim=-1)


def _nothing_seen(zeros: Tensor) -> Tensor:
    zeros[..., -1] = -torch.inf
    return zeros


@recurrence(recurrent, attended, same_dtype=("q", "k", "v", "s"), start=_nothing_seen)
def abc(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    s: Float[Tensor, "B T H M"],
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H M K+V+1"] | None]:
    """Attention with bounded memory control, as a recurrence over tokens with M slots.

        z_t = log(exp z_{t-1} + exp s_t)    of each slot
        K_t = diag(exp(z_{t-1} - z_t)) K_{t-1} + exp(s_t - z_t) k_tᵀ,    V_t alike
        o_t = V_tᵀ softmax(scale · K_t q_t)         (read after write)

    It is `gsa` with s = exp(s_t - z_t) and g = z_{t-1} - z_t. The state has K_t, V_t and z_t side
    by side. Always stable: a slot is an average of what was seen.

    Args:
        s: Logarithm of the weight with which each slot takes the token; finite numbers.
        initial_state: State before the first token; the last column is z. None means that nothing
            was seen: zeros, and z = -inf.

    Source: Peng et al., ABC: Attention with Bounded-memory Control, arXiv 2110.02488, section 3.
    """
