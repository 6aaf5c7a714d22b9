"""The momentum delta rule: errors are gathered in a momentum, which then changes the state."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import Options, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, log_alpha: Tensor, log_mu: Tensor, beta: Tensor,
    eta: Tensor, S: Tensor, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    alpha, mu = (torch.exp(x)[..., None, None] for x in (log_alpha, log_mu))
    (S, M), o = S.unbind(2), []
    for t in range(q.shape[1]):
        u = eta[:, t, :, None] * (v[:, t] - torch.einsum("bhk,bhkv->bhv", p[:, t], S))
        M = mu[:, t] * M + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        S = alpha[:, t] * S + beta[:, t, :, None, None] * M
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, torch.stack([S, M], dim=2)


def unrolled(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, log_alpha: Tensor, log_mu: Tensor, beta: Tensor,
    eta: Tensor, S: Tensor, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """No recurrence of states: both are one, of 2 K rows, whose transitions are multiplied.

        Z_t = (S_t; M_t) = P_t Z_{t-1} + w_t v_tᵀ
        P_t = (α_t I - β_t η_t k_t p_tᵀ    β_t μ_t I)      w_t = (β_t η_t k_t)
              (     -η_t k_t p_tᵀ               μ_t I)            (    η_t k_t)
        Z_t = P_t ... P_1 Z_0 + Σ_{i <= t} P_t ... P_{i+1} w_i v_iᵀ

    Source: Peng et al., RWKV-7, arXiv 2503.14456, equation 18 (transitions multiplied).
    """
    K = q.shape[-1]
    eye = torch.eye(K, dtype=S.dtype, device=S.device)
    alpha, mu, b = (x[..., None, None] for x in (torch.exp(log_alpha), torch.exp(log_mu), beta))
    erased = eta[..., None, None] * k[..., :, None] * p[..., None, :]
    P = torch.cat(
        [
            torch.cat([alpha * eye - b * erased, b * mu * eye], dim=-1),
            torch.cat([-erased, mu * eye], dim=-1),
        ],
        dim=-2,
    )
    written = eta[..., None] * k
    w = torch.cat([beta[..., None] * written, written], dim=-1)

    Z = S.flatten(2, 3)
    from_start = torch.eye(2 * K, dtype=S.dtype, device=S.device)
    keys = w.new_zeros(*w.shape[:1], w.shape[2], 2 * K, 0)
    o, v = [v[:, :0]], v.transpose(1, 2)
    for t in range(q.shape[1]):
        from_start = P[:, t] @ from_start
        keys = torch.cat([P[:, t] @ keys, w[:, t, ..., None]], dim=-1)
        now = from_start @ Z + keys @ v[:, :, : t + 1]
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], now[:, :, :K])[:, None])
    final = from_start @ Z + keys @ v
    return torch.cat(o, dim=1), final.unflatten(2, (2, K))


@recurrence(
    recurrent,
    unrolled,
    same_dtype=("q", "k", "v", "p"),
    neutral={"log_alpha": 0.0, "log_mu": 0.0, "beta": 1.0, "eta": 1.0},
)
def momentum_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    p: Float[Tensor, "B T H K"],
    log_alpha: Float[Tensor, "B T H"] | None = None,
    log_mu: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    eta: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H 2 K V"] | None]:
    """The momentum delta rule, as a recurrence over tokens.

        u_t = η_t (v_t - S_{t-1}ᵀ p_t)      the error of the state before it decays
        M_t = exp(log_mu_t) M_{t-1} + k_t u_tᵀ
        S_t = exp(log_alpha_t) S_{t-1} + β_t M_t
        o_t = scale · S_tᵀ q_t              (read after write)

    The state is S and M, in this order. With log_mu = -inf and β = 1 it is `comba`, whose β is η.
    A momentum may make a stable rule unstable, as in any heavy-ball method. Libraries keep -M, and
    may multiply p_t by exp(log_alpha_t), which is here the caller's.

    Args:
        p: The key by which the state is read.
        log_alpha: Natural logarithm of the decay of S, meant to be <= 0, -inf included. None means
            no decay.
        log_mu: Natural logarithm of the decay of M, alike.
        beta: Factor of the momentum. None means 1.
        eta: Strength of each write. None means 1.
        initial_state: S and M before the first token. None means zero.

    Source: Polyak, Some methods of speeding up the convergence of iteration methods, 1964 (the
        momentum); the rule is that of flash-linear-attention 0.6.0.
    """
