"""Preconditioned delta rules: the energy of the keys so far scales down the key of a write."""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.delta import dplr
from reference.delta.keys import normalized_keys
from reference.recurrence import DeltaOptions, recurrence

_BASE, _EPS, _CENTER = 1.5, 1e-6, -0.2


def _preconditioned(k: Tensor, A: Tensor, center: Tensor) -> Tensor:
    r = torch.log(A + _EPS) - center[:, None]
    return k * torch.exp(-math.log(_BASE) * r / (1 + r.abs()))


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, g_atk: Tensor, beta_atk: Tensor,
    log_atk_scale: Tensor, S: Tensor, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    S, A, o = S[..., :-1], S[..., -1], []
    for t in range(q.shape[1]):
        A = torch.exp(g_atk[:, t, :, None]) * A + beta_atk[:, t, :, None] * k[:, t] ** 2
        S = torch.exp(_channels(g)[:, t, :, :, None]) * S
        u = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        written = beta[:, t, :, None] * _preconditioned(k[:, t], A, log_atk_scale)
        S = S + torch.einsum("bhk,bhv->bhkv", written, u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, torch.cat([S, A[..., None]], dim=-1)


def parallel(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, g_atk: Tensor, beta_atk: Tensor,
    log_atk_scale: Tensor, S: Tensor, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All tokens at once: the energies are a sum over pairs, and the writes a triangular system.

        A_i = Σ_{j <= i} exp(Σ_{j < t <= i} g_atk_t) beta_atk_j k_j² + exp(Σ_{t <= i} g_atk_t) A_0

    and then `dplr.second_form` with keys β_i k'_i, a_i = exp(g_i) ∘ k_i and b_i = -β_i k'_i.

    Source: the construction of Yang et al., arXiv 2406.06484, section 3.2, for another transition.
    """
    if q.shape[1] == 0:
        return v, S
    S, A = S[..., :-1], S[..., -1]
    from_start, between = decays(g_atk)
    energy = torch.einsum(
        "bhij,bjhk->bihk", between.permute(0, 3, 1, 2).tril(), beta_atk[..., None] * k**2
    )
    energy = energy + from_start[..., None] * A[:, None]
    written = beta[..., None] * _preconditioned(k, energy, log_atk_scale)
    gates = _channels(g).expand_as(k)
    o, S = dplr.parallel(q, written, v, torch.exp(gates) * k, -written, gates, S, scale)
    return o, torch.cat([S, energy[:, -1, ..., None]], dim=-1)


def _channels(g: Tensor) -> Tensor:
    return g[..., None] if g.ndim == 3 else g


_NEUTRAL = {
    "g": 0.0,
    "beta": 1.0,
    "g_atk": 0.0,
    "beta_atk": 1.0,
    "log_atk_scale": _CENTER,
}


@recurrence(recurrent, parallel, around=normalized_keys, neutral=_NEUTRAL)
def precond_gated_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    g_atk: Float[Tensor, "B T H"] | None = None,
    beta_atk: Float[Tensor, "B T H"] | None = None,
    log_atk_scale: Float[Tensor, "H"] | None = None,
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+1"] | None]:
    """The preconditioned gated delta rule, as a recurrence over tokens.

        A_t  = exp(g_atk_t) A_{t-1} + beta_atk_t k_t²       the energy of each key channel
        r_t  = log(A_t + 1e-6) - log_atk_scale
        k'_t = k_t ∘ 1.5 ** (-r_t / (1 + |r_t|))
        S'   = exp(g_t) S_{t-1}
        S_t  = S' + β_t k'_t (v_t - S'ᵀ k_t)ᵀ
        o_t  = scale · S_tᵀ q_t             (read after write)

    All of k_t², log and the powers are by channel. A is the last column of the state. Stable as
    `gated_delta_rule` for β_t k'_t · k_t in [0, 2], which β <= 4/3 and |k| <= 1 grant; but the
    transition is not symmetric, and may make a vector longer by up to the ratio of the powers.

    Args:
        g: Natural logarithm of the decay, meant to be <= 0, -inf included. None means no decay.
        g_atk: Natural logarithm of the decay of the energy, meant to be <= 0, -inf included. None
            means no decay.
        beta_atk: Weight of a token's energy, meant to be >= 0. None means 1.
        log_atk_scale: Logarithm of the energy at which k' is k. None means -0.2.
        initial_state: State before the first token, A in its last column. None means zero.

    Source: Tumma et al., Preconditioned DeltaNet, arXiv 2604.21100, whose constants 1.5 and 1e-6
        are fixed here.
    """


@recurrence(recurrent, parallel, around=normalized_keys, neutral=_NEUTRAL)
def precond_kda(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    g_atk: Float[Tensor, "B T H"] | None = None,
    beta_atk: Float[Tensor, "B T H"] | None = None,
    log_atk_scale: Float[Tensor, "H"] | None = None,
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+1"] | None]:
    """Kimi delta attention with preconditioned keys: `precond_gated_delta_rule` with

        S' = diag(exp g_t) S_{t-1}

    Args:
        g: Natural logarithm of the decay of each key channel, meant to be <= 0, -inf included. None
            means no decay.
        g_atk: Natural logarithm of the decay of the energy, meant to be <= 0, -inf included. None
            means no decay.
        beta_atk: Weight of a token's energy, meant to be >= 0. None means 1.
        log_atk_scale: Logarithm of the energy at which k' is k. None means -0.2.
        initial_state: State before the first token, A in its last column. None means zero.

    Source: Tumma et al., arXiv 2604.21100; Kimi Team, arXiv 2510.26692, equation 1 (the decay).
    """
