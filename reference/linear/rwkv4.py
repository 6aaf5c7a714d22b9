"""RWKV-4: in each channel, an average of the values so far, weighted by keys that decay."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import StateOptions, recurrence


def recurrent(k: Tensor, v: Tensor, w: Tensor, u: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    (m, z), o = S.unbind(1), []
    for t in range(k.shape[1]):
        bonus = torch.logaddexp(z, u + k[:, t])
        o.append(torch.exp(z - bonus) * m + torch.exp(u + k[:, t] - bonus) * v[:, t])
        left = z - torch.exp(w)
        z = torch.logaddexp(left, k[:, t])
        m = torch.exp(left - z) * m + torch.exp(k[:, t] - z) * v[:, t]
    return torch.stack(o, dim=1) if o else v, torch.stack([m, z], dim=1)


def softmax(k: Tensor, v: Tensor, w: Tensor, u: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """All tokens at once: in each channel a softmax with a bias for the distance.

        l_i0 = z_0 - (i - 1) exp w,    l_ij = k_j - (i - 1 - j) exp w   if j < i,    l_ii = u + k_i
        o_i  = Σ_j softmax(l_i)_j v_j,    v_0 = m_0

    The state has no bonus: it is row i = T + 1 without its last entry.

    Source: Peng et al., RWKV, arXiv 2305.13048, equation 16.
    """
    if k.shape[1] == 0:
        return v, S
    T, rate = k.shape[1], torch.exp(w)
    values = torch.cat([S[:, :1], v], dim=1)
    starts = torch.cat([S[:, 1:], k], dim=1)
    i = torch.arange(1, T + 2, device=k.device)[:, None]
    j = torch.arange(T + 1, device=k.device)
    logits = starts[:, None] - ((i - 1 - j).clamp(min=0)[..., None] * rate)
    now = torch.nn.functional.pad(u.expand(T, -1), (0, 0, 1, 1))
    logits = logits + torch.where((i == j)[..., None], now[:-1], 0.0)
    logits = logits.masked_fill((j > i)[..., None], -torch.inf)
    o = torch.einsum("bijd,bjd->bid", torch.softmax(logits, dim=2), values)
    z = torch.logsumexp(logits[:, -1], dim=1)
    return o[:, :-1], torch.stack([o[:, -1], z], dim=1)


def _nothing_seen(zeros: Tensor) -> Tensor:
    zeros[:, 1] = -torch.inf
    return zeros


@recurrence(recurrent, softmax, same_dtype=("k", "v"), start=_nothing_seen)
def rwkv4(
    k: Float[Tensor, "B T D"],
    v: Float[Tensor, "B T D"],
    w: Float[Tensor, "D"],
    u: Float[Tensor, "D"],
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N 2 D"] | None]:
    """The weighted key values of RWKV-4, as a recurrence over tokens.

        a_t = exp(-exp w) a_{t-1} + exp(k_t) v_t
        b_t = exp(-exp w) b_{t-1} + exp(k_t)
        o_t = (a_{t-1} + exp(u + k_t) v_t) / (b_{t-1} + exp(u + k_t))

    of each channel by itself. The state is m = a / b and z = log b: it has no overflow, and is the
    same whatever the sums were multiplied by on the way. Libraries keep (a, b) exp(-ε) and ε, of
    which m, 1 and z are one choice. Always stable: o_t is an average of values.

    Args:
        w: Logarithm of the rate of decay: a token's weight decays by exp(-exp w) at each token.
        u: Bonus, added to the logarithm of the weight of the token itself.
        k: Logarithm of the weight of each token; finite numbers.
        initial_state: m and z before the first token. None means that nothing was seen: m = 0 and
            z = -inf.

    Source: Peng et al., RWKV, arXiv 2305.13048, equation 16 and appendix D (the log space).
    """
