"""Cyclic flow attention: softmax attention over slots on a ring, which each token turns."""

import math
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import sums_between
from reference.norm.l2norm import EPS
from reference.recurrence import Options, Run, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, delta: Tensor, readout: Tensor, g: Tensor, beta: Tensor,
    S: Tensor, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    kv, K, M, o = torch.cat([k, v], dim=-1), k.shape[-1], readout.shape[-1], []
    first = torch.eye(M, dtype=q.dtype, device=q.device)[:1].mT
    for t in range(q.shape[1]):
        S = torch.exp(g[:, t, :, None, None]) * (_turn(delta[:, t], M) @ S)
        S = S + beta[:, t, :, None, None] * first * kv[:, t, :, None, :]
        logits = scale * torch.einsum("hmr,bhrk,bhk->bhm", readout, S[..., :K], q[:, t])
        p = torch.softmax(logits, dim=-1)
        o.append(torch.einsum("bhm,hmr,bhrv->bhv", p, readout, S[..., K:]))
    return torch.stack(o, dim=1) if o else v, S


def _turn(delta: Tensor, M: int) -> Tensor:
    """R(δ): `[..., M, M]` of `[...]`."""
    r = torch.arange(M, device=delta.device)
    f = torch.arange(1, M // 2 + 1, dtype=delta.dtype, device=delta.device)
    waves = torch.cos(2 * math.pi / M * f * (r[:, None] - delta[..., None, None]))
    return ((1 + 2 * waves.sum(-1)) / M)[..., (r[:, None] - r) % M]


def parallel(
    q: Tensor, k: Tensor, v: Tensor, delta: Tensor, readout: Tensor, g: Tensor, beta: Tensor,
    S: Tensor, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All tokens at once, by the waves on the ring.

        x_ij   = λ_i - λ_j,    λ_i = Σ_{t <= i} δ_t   (mod M)
        D_ij   = exp(Σ_{j < t <= i} g_t) β_j                         for j <= i
        C + iS = Σ_r A_r exp(2π i f r / M)                           f = 0, ..., (M - 1) / 2
        a_ij   = D_ij (2 - [f = 0]) / M (C cos(2π f x_ij / M) + S sin(2π f x_ij / M))
        p_i    = softmax(scale · Σ_j (q_i · k_j) a_ij)
        o_i    = Σ_j (p_i · a_ij) v_j

    What is in slot r of the first state is as a token written with β = 1 and turned by r since.

    Source: Oppenheim and Schafer, Discrete-Time Signal Processing, section 8.6.2 (a circular shift
    multiplies the discrete Fourier transform by a phase).
    """
    B, T, H, K = q.shape
    if T == 0:
        return v, S
    M = readout.shape[-1]
    r = torch.arange(M, dtype=q.dtype, device=q.device)
    started = S.transpose(1, 2)
    keys = torch.cat([started[..., :K], k], dim=1)
    values = torch.cat([started[..., K:], v], dim=1)
    # Without whole turns, which sums would round.
    turns = (delta - M * torch.round(delta / M)).cumsum(1)
    written_at = torch.cat([-r[:, None].expand(B, M, H), turns], dim=1)
    later = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()[..., None]
    written = torch.where(later, torch.exp(sums_between(g)) * beta[:, None], 0.0)
    D = torch.cat([torch.exp(g.cumsum(1))[:, :, None].expand(B, T, M, H), written], dim=2)

    a = D[..., None] * _read(readout, turns, written_at)
    pairs = torch.einsum("bihk,bjhk->bijh", q, keys)
    p = torch.softmax(scale * torch.einsum("bijh,bijhm->bihm", pairs, a), dim=-1)
    o = torch.einsum("bihm,bijhm,bjhv->bihv", p, a, values)
    one = torch.eye(M, dtype=q.dtype, device=q.device).expand(H, M, M)
    slots, kept = _read(one, turns[:, -1:], written_at)[:, 0], torch.cat([keys, values], dim=-1)
    return o, torch.einsum("bjh,bjhm,bjhd->bhmd", D[:, -1], slots, kept)


def _read(A: Tensor, turns: Tensor, written_at: Tensor) -> Tensor:
    """A R(x_ij) e_0, `[B, i, j, H, M]`, of turns `[B, i, H]` less turns `[B, j, H]`.

    A kernel turns what is written and what is read, each by an angle of its own. So does this: the
    gradients of a turn that read and write have in common are rounded before they cancel.
    """
    M = A.shape[-1]
    r = torch.arange(M, dtype=A.dtype, device=A.device)
    waves = 2 * math.pi / M * r[: M // 2 + 1]
    times = (2 - (waves == 0).to(A.dtype)) / M
    C = torch.einsum("hmr,rf->hmf", A, times * torch.cos(r[:, None] * waves))
    S = torch.einsum("hmr,rf->hmf", A, times * torch.sin(r[:, None] * waves))
    read, written = turns[:, :, None, :, None] * waves, written_at[:, None, :, :, None] * waves
    cos = torch.cos(read) * torch.cos(written) + torch.sin(read) * torch.sin(written)
    sin = torch.sin(read) * torch.cos(written) - torch.cos(read) * torch.sin(written)
    return torch.einsum("hmf,bijhf->bijhm", C, cos) + torch.einsum("hmf,bijhf->bijhm", S, sin)


def _with_norms(
    run: Run, *, q_norm_weight: Tensor, k_norm_weight: Tensor, **arguments: Any
) -> tuple[Tensor, Tensor]:
    M = arguments["readout"].shape[-1]
    if M % 2 == 0:
        raise ValueError(f"readout: {M} slots, expected an odd number")
    for name, weight in {"q": q_norm_weight, "k": k_norm_weight}.items():
        x = arguments[name]
        arguments[name] = weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)
    return run(**arguments)


@recurrence(recurrent, parallel, around=_with_norms, neutral={"g": 0.0, "beta": 1.0})
def cyfa(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    delta: Float[Tensor, "B T H"],
    readout: Float[Tensor, "H M M"],
    q_norm_weight: Float[Tensor, "K"],
    k_norm_weight: Float[Tensor, "K"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H M K+V"] | None]:
    """Cyclic flow attention, as a recurrence over tokens with M slots on a ring.

        K_t = exp(g_t) R(δ_t) K_{t-1} + β_t e_0 k_tᵀ
        V_t = exp(g_t) R(δ_t) V_{t-1} + β_t e_0 v_tᵀ
        o_t = V_tᵀ Aᵀ softmax(scale · A K_t q_t)        (read after write)

    where A is the readout, and R(δ) turns the ring by δ slots, interpolating between them by the
    M waves that it carries:

        R(δ)_rs = D(r - s - δ),    D(x) = (1 + 2 Σ_{f = 1}^{(M - 1) / 2} cos(2π f x / M)) / M

    So R(1) moves each slot to the next, R(M) is 1, and R(δ) R(ε) = R(δ + ε). In the place of q, and
    of k alike, is w ∘ q / sqrt(mean(q²) + 1e-6), where w is the weight of the norm. The state has
    the keys K_t and the values V_t of the slots side by side. Stable for g <= 0.

    Args:
        delta: By how many slots a token turns the ring, δ.
        readout: What is read of the slots, A; M is odd.
        q_norm_weight: Weight of the norm of q.
        k_norm_weight: Weight of the norm of k.
        g: Natural logarithm of the decay, meant to be <= 0, -inf included. None means no decay.

    Raises:
        ValueError: an even number of slots.

    Source: flash-linear-attention 0.6.0, `fla.ops.cyfa` (arXiv 2609.36259). There the slots are
    those of waves, at rest, and the state has the turns so far as a third part.
    """
