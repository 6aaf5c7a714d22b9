"""Titans: a linear memory that is trained on its tokens, with momentum and a decay of weights."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.delta.triangular import solve_unit_lower
from reference.recurrence import StateOptions, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, log_alpha: Tensor, log_eta: Tensor, S: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    alpha, eta = (torch.exp(x)[..., None, None] for x in (log_alpha, log_eta))
    (M, S), o = S.unbind(2), []
    for t in range(q.shape[1]):
        error = torch.einsum("bhk,bhkv->bhv", k[:, t], M) - v[:, t]
        gradient = 2 * torch.einsum("bhk,bhv->bhkv", k[:, t], error)
        S = eta[:, t] * S - theta[:, t, :, None, None] * gradient
        M = alpha[:, t] * M + S
        o.append(torch.einsum("bhk,bhkv->bhv", q[:, t], M))
    return torch.stack(o, dim=1) if o else v, torch.stack([M, S], dim=2)


def parallel(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, log_alpha: Tensor, log_eta: Tensor, S: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All tokens at once: a triangular system for the errors, and what a gradient has become.

        A_ti = exp(Σ_{i < s <= t} log_alpha_s)   for i <= t,  a_t = exp(Σ_{s <= t} log_alpha_s)
        E_ij = exp(Σ_{j < s <= i} log_eta_s)     for j <= i,  e_i = exp(Σ_{s <= i} log_eta_s)
        G_tj = 2 θ_j Σ_{j <= i <= t} A_ti E_ij                (of the gradient of token j, in M_t)
        M_t  = a_t M_0 + (Σ_i A_ti e_i) S_0 + Σ_j G_tj k_j u_jᵀ
        u_t  = v_t - M_{t-1}ᵀ k_t

    Source: Behrouz et al., arXiv 2501.00663, section 3.2 (gradients as sums over tokens); Yang et
        al., arXiv 2406.06484, equation 10 (the system).
    """
    if q.shape[1] == 0:
        return v, S
    T = q.shape[1]
    M_0, S_0 = S.unbind(2)
    lower = torch.ones(T, T, dtype=q.dtype, device=q.device).tril()[..., None]
    (a, A), (e, E) = decays(log_alpha), decays(log_eta)
    A, E = ((lower * x).permute(0, 3, 1, 2) for x in (A, E))
    a, e, theta = (x.transpose(1, 2)[..., None] for x in (a, e, theta))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    written = 2 * theta.mT * E
    G, f = A @ written, A @ e

    def before(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :, :-1]

    a_before = torch.cat([torch.ones_like(a[:, :, :1]), a[:, :, :-1]], dim=2)
    known = a_before * (k @ M_0) + before(f) * (k @ S_0)
    u = solve_unit_lower(before(G) * (k @ k.mT), v - known)
    o = a * (q @ M_0) + f * (q @ S_0) + (G * (q @ k.mT)) @ u
    M = a[:, :, -1:] * M_0 + f[:, :, -1:] * S_0 + (G[:, :, -1:].mT * k).mT @ u
    last = e[:, :, -1:] * S_0 + (written[:, :, -1:].mT * k).mT @ u
    return o.transpose(1, 2), torch.stack([M, last], dim=2)


@recurrence(recurrent, parallel, neutral={"log_alpha": 0.0, "log_eta": 0.0})
def titans(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    theta: Float[Tensor, "B T H"],
    log_alpha: Float[Tensor, "B T H"] | None = None,
    log_eta: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H 2 K V"] | None]:
    """The long-term memory of Titans, linear: gradient descent with momentum and weight decay.

        ℓ_t(M) = |Mᵀ k_t - v_t|²,      ∇ℓ_t(M) = 2 k_t (Mᵀ k_t - v_t)ᵀ
        S_t = exp(log_eta_t) S_{t-1} - θ_t ∇ℓ_t(M_{t-1})       the surprise
        M_t = exp(log_alpha_t) M_{t-1} + S_t
        o_t = M_tᵀ q_t                                         (read after write)

    The paper's 1 - α_t and η_t are given as logarithms. The state is M and S, in this order; with
    it a sequence goes on as if it had not been cut, which M alone does not allow. It is the
    `momentum_delta_rule` with p = k and twice θ as its η. Each gradient is taken at the memory of
    the token before; training in chunks takes it at that before the chunk, which is another
    function. Unlike the memory that libraries train, this one has no layer norm (see `ttt_linear`).

    Args:
        theta: θ, the rate of learning, meant to be in [0, 1] for keys of length up to 1.
        log_alpha: Natural logarithm of what is kept of M, meant to be <= 0, -inf included. None
            means all.
        log_eta: Natural logarithm of what is kept of S, alike.
        initial_state: M and S before the first token. None means zero.

    Source: Behrouz et al., Titans, arXiv 2501.00663, section 3.1, equations 9 to 15.
    """
