"""LightNet: linear attention whose keys are normalized over all tokens so far."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import Options, recurrence


def recurrent(q: Tensor, k: Tensor, v: Tensor, S: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    S, z, o = S[..., :-1], S[..., -1], []
    for t in range(q.shape[1]):
        before, z = z, torch.logaddexp(z, k[:, t])
        S = torch.exp(before - z)[..., None] * S
        S = S + torch.einsum("bhk,bhv->bhkv", torch.exp(k[:, t] - z), v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, torch.cat([S, z[..., None]], dim=-1)


def softmax(q: Tensor, k: Tensor, v: Tensor, S: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Every channel is a softmax over the state before and the tokens so far.

        p_i = softmax(z_0, k_1, ..., k_i)          of each key channel by itself
        S_i = diag(p_i0) S_0 + Σ_{j <= i} p_ij v_jᵀ

    Source: Qin et al., arXiv 2405.21022, section 4.1 (the additive decay solved).
    """
    if q.shape[1] == 0:
        return v, S
    S, z = S[..., :-1], S[..., -1]
    T = q.shape[1]
    logits = torch.cat([z[:, None], k], dim=1)[:, None].expand(-1, T, -1, -1, -1)
    hidden = torch.ones(T, T + 1, dtype=torch.bool, device=q.device).triu(2)[..., None, None]
    p = torch.softmax(logits.masked_fill(hidden, -torch.inf), dim=2)
    seen = torch.einsum("bihk,bhkv->bihkv", p[:, :, 0], S)
    seen = seen + torch.einsum("bijhk,bjhv->bihkv", p[:, :, 1:], v)
    o = scale * torch.einsum("bihk,bihkv->bihv", q, seen)
    last = torch.logsumexp(logits[:, -1], dim=1)
    return o, torch.cat([seen[:, -1], last[..., None]], dim=-1)


def _nothing_seen(zeros: Tensor) -> Tensor:
    zeros[..., -1] = -torch.inf
    return zeros


@recurrence(recurrent, softmax, start=_nothing_seen)
def lightnet(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+1"] | None]:
    """LightNet's additive decay, as a recurrence over tokens.

        z_t = log(exp z_{t-1} + exp k_t)    of each key channel
        S_t = diag(exp(z_{t-1} - z_t)) S_{t-1} + exp(k_t - z_t) v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    It is `gla` with k = exp(k_t - z_t) and g = z_{t-1} - z_t, which is never above 0: always
    stable.

    Args:
        k: Logarithms of keys; finite numbers.
        initial_state: State before the first token; the last column is z. None means that nothing
            was seen: zeros, and z = -inf.

    Source: Qin et al., You Only Scan Once, arXiv 2405.21022, section 4.1.
    """
