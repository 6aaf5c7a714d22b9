"""Log-linear attention: one decaying state for each level of a Fenwick tree over the past."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.recurrence import StatelessOptions
from reference.stateless import stateless


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, level_scales: Tensor, g: Tensor | None, scale: float
) -> Tensor:
    L = _levels(q, level_scales)
    S = [torch.einsum("bhk,bhv->bhkv", k[:, 0], 0 * v[:, 0])] * L if q.shape[1] else []
    o = []
    for t in range(q.shape[1]):
        decay = 1.0 if g is None else torch.exp(g[:, t, :, None, None])
        S = [decay * level for level in S]
        S[0] = torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        reads = torch.einsum("bhk,lbhkv->bhvl", q[:, t], torch.stack(S))
        o.append(scale * torch.einsum("bhvl,bhl->bhv", reads, level_scales[:, t, :, :L]))
        full = ((t + 1) & -(t + 1)).bit_length()
        if full < L:
            S[full] = sum(S[1:full], S[0])
            S[1:full] = [torch.zeros_like(S[0])] * (full - 1)
    return torch.stack(o, dim=1) if o else v


def parallel(
    q: Tensor, k: Tensor, v: Tensor, level_scales: Tensor, g: Tensor | None, scale: float
) -> Tensor:
    """All pairs of tokens at once.

        ℓ(i, j) = the place of the highest bit in which i and j differ, from 1; 0 if i = j
        M_ij    = λ_i^ℓ(i, j) exp(Σ_{j < t <= i} g_t) q_i · k_j   if j <= i else 0
        o       = scale · M V

    In the highest bit in which they differ, the later token i has 1 and j has 0. For each 1 in its
    number, i has a block of the past of that many tokens, and j lies in the block of this bit.

    Source: Guo et al., Log-Linear Attention, arXiv 2506.04761, section 3.2 (the matrix); the levels
        as an exclusive or of token numbers are ours.
    """
    _levels(q, level_scales)
    T = range(q.shape[1])
    place = torch.tensor([[(i ^ j).bit_length() for j in T] for i in T], device=q.device)
    place = place.long().view(len(T), len(T)).tril()
    scales = level_scales.transpose(1, 2)
    M = scales.gather(-1, place.expand(*scales.shape[:2], -1, -1))
    M = M * torch.einsum("bihk,bjhk->bhij", q, k)
    if g is not None:
        M = M * decays(g)[1].permute(0, 3, 1, 2)
    return scale * torch.einsum("bhij,bjhv->bihv", M.tril(), v)


def _levels(q: Tensor, level_scales: Tensor) -> int:
    """The levels that the tokens need."""
    T, L = q.shape[1], level_scales.shape[-1]
    needed = max(T - 1, 0).bit_length() + 1
    if needed > L:
        raise ValueError(f"level_scales: L={L}, expected at least {needed} levels for T={T}")
    return needed


@stateless(recurrent, parallel)
def log_linear_attn(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    level_scales: Float[Tensor, "B T H L"],
    g: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Linear attention that weighs the past by blocks, the older the larger.

        S_t^ℓ = exp(g_t) S_{t-1}^ℓ          for ℓ >= 1;    S_t^0 = k_t v_tᵀ
        o_t   = scale · Σ_ℓ λ_t^ℓ (S_t^ℓ)ᵀ q_t

    and then, as in counting, the levels up to that of the lowest bit of t + 1 become one: with
    t + 1 = 2^(ℓ-1) · odd, tokens from 0, S^ℓ = S^0 + ... + S^(ℓ-1), and those below are 0.

    So level 0 is the token itself, and level ℓ >= 1 is 2^(ℓ-1) tokens if that bit of t is 1, and
    none otherwise. Level scales of 1 make it `simple_gla`. Value head h, which has its own states,
    reads key head h // (H / G).

    Args:
        level_scales: λ, the weight of each level at each token. Levels that no token reaches are
            not read.
        g: Natural logarithm of the decay, meant to be <= 0, -inf included. None means no decay.

    Raises:
        ValueError: fewer levels than a sequence needs, 1 + ceil(log2 T) for T tokens.

    Source: Guo et al., Log-Linear Attention, arXiv 2506.04761, sections 3.1 (the partition and the
        states) and 3.3 (with the gate of Mamba-2).
    """
