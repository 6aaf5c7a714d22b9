"""mLSTM: a matrix memory with exponential gates, and a normalizer."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import sums_between
from reference.recurrence import Options, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, g: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    C, n, z = S[..., :-1, :-1], S[..., :-1, -1], S[..., -1, -1]
    h = []
    for t in range(q.shape[1]):
        left = z + g[:, t]
        z = torch.logaddexp(left, i[:, t])
        f, w = torch.exp(left - z), torch.exp(i[:, t] - z)
        written = torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        C = f[..., None, None] * C + w[..., None, None] * written
        n = f[..., None] * n + w[..., None] * k[:, t]
        read = scale * torch.einsum("bhk,bhkv->bhv", q[:, t], C)
        weight = scale * torch.einsum("bhk,bhk->bh", q[:, t], n)
        h.append(_divide(read, weight, z))
    state = torch.cat([C, n[..., None]], dim=-1)
    corner = torch.cat([S[..., -1:, :-1], z[..., None, None]], dim=-1)
    return torch.stack(h, dim=1) if h else v, torch.cat([state, corner], dim=-2)


def _divide(read: Tensor, weight: Tensor, z: Tensor) -> Tensor:
    """read / max(|weight|, exp -z), without an exponential above 1."""
    # One clamp, or both exponentials would have a gradient at z = 0.
    high = z.clamp(min=0)
    down, up = torch.exp(z - high), torch.exp(-high)
    return down[..., None] * read / torch.maximum(down * weight.abs(), up)[..., None]


def parallel(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, g: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: a matrix of gates over an attention matrix.

        D_ij = exp(Σ_{j < t <= i} g_t + i_j)   if j <= i else 0
        d_i  = exp(Σ_{t <= i} g_t + z_0)
        A    = scale · ((Q Kᵀ) ∘ D),    c_i = scale · d_i q_i
        n_i  = Σ_j D_ij k_j + d_i n_0
        h_i  = (A V + c_i C_0)_i / max(|scale · q_i · n_i|, 1)

    The gates are multiplied as they are, without a stabilizer.

    Source: Beck et al., xLSTM, arXiv 2405.04517, appendix A.3 (parallel form).
    """
    if q.shape[1] == 0:
        return v, S
    C, z = S[..., :-1, :], S[..., -1, -1]
    D = torch.exp(sums_between(g) + i[:, None]).permute(0, 3, 1, 2).tril()
    start = torch.exp(g.cumsum(1) + z[:, None])
    A = scale * torch.einsum("bihk,bjhk->bhij", q, k) * D
    read = torch.einsum("bhij,bjhv->bihv", A, v)
    read = read + scale * start[..., None] * torch.einsum("bihk,bhkv->bihv", q, C[..., :-1])
    n = torch.einsum("bhij,bjhk->bihk", D, k) + start[..., None] * C[:, None, :, :, -1]
    weight = scale * torch.einsum("bihk,bihk->bih", q, n)
    h = read / weight.abs().clamp(min=1)[..., None]
    z = torch.log(D[:, :, -1].sum(-1) + start[:, -1])
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    written = torch.einsum("bhj,bjhk,bjhv->bhkv", D[:, :, -1], k, values)
    state = torch.exp(-z)[..., None, None] * (start[:, -1, :, None, None] * C + written)
    corner = torch.cat([S[..., -1:, :-1], z[..., None, None]], dim=-1)
    return h, torch.cat([state, corner], dim=-2)


def _nothing_seen(zeros: Tensor) -> Tensor:
    zeros[..., -1, -1] = -torch.inf
    return zeros


@recurrence(recurrent, parallel, start=_nothing_seen)
def mlstm(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    i: Float[Tensor, "B T H"],
    g: Float[Tensor, "B T H"],
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K+1 V+1"] | None]:
    """The matrix memory of xLSTM, as a recurrence over tokens.

        C_t = exp(g_t) C_{t-1} + exp(i_t) k_t v_tᵀ
        n_t = exp(g_t) n_{t-1} + exp(i_t) k_t
        h_t = scale · C_tᵀ q_t / max(|scale · n_t · q_t|, 1)

    The state keeps C exp(-z), n exp(-z) and the stabilizer z = log(Σ_j exp(i_j + Σ_{t > j} g_t)),
    as the matrix (C n; · z), of which the last row but z is handed on unread. The paper's
    stabilizer is the largest of these exponents in the place of their log-sum-exp; h is the same.
    The output gate and the norm of the layer are the caller's. Stable for g <= 0.

    Args:
        i: Logarithm of the input gate; a finite number.
        g: Logarithm of the forget gate, meant to be <= 0, -inf included: log sigmoid f, or f, of
            what the network computes.
        initial_state: None means that nothing was seen: zeros, and z = -inf.

    Source: Beck et al., xLSTM, arXiv 2405.04517, equations 19 to 27.
    """
