"""TTT-Linear: the state is a linear model, trained on the tokens as they come."""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.norm.l2norm import check_eps
from reference.recurrence import Options, Run, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor, eta: Tensor, S: Tensor,
    scale: float, eps: float, mini_batch_size: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, k, target, o = _with_one(scale * q), _with_one(k), v - k, []
    start, G = S, torch.zeros_like(S)
    for t in range(q.shape[1]):
        if t % mini_batch_size == 0:
            start, G = S, torch.zeros_like(S)
        n, sigma = _normalized(torch.einsum("bhk,bhkv->bhv", k[:, t], start), eps)
        g = weight * (weight * n + bias - target[:, t])
        u = (g - g.mean(-1, keepdim=True) - n * (n * g).mean(-1, keepdim=True)) / sigma
        G = G + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        S = start - eta[:, t, :, None, None] * G
        y = torch.einsum("bhk,bhkv->bhv", q[:, t], S)
        o.append(y + weight * _normalized(y, eps)[0] + bias)
    return torch.stack(o, dim=1) if o else v, S


def dual(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor, eta: Tensor, S: Tensor,
    scale: float, eps: float, mini_batch_size: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All tokens of a mini-batch at once: its gradients are taken at one state, and weighed as by a
    linear attention. The gradient of the norm is orthogonal to two vectors.

        u_t = (I - B_t B_tᵀ) (w ∘ (layer_norm(z_t) + k_t - v_t)) / σ_t,      B_t = (1, n_t) / sqrt K
        Y   = Q S_0 - (η ∘ tril(Q Kᵀ)) U,          S_C = S_0 - η_C Kᵀ U

    with a column of ones beside Q and K.

    Source: Sun et al., arXiv 2407.04620, section 2.5 (dual form).
    """
    K, o = q.shape[-1], [v[:, :0]]
    q, k, target = (x.transpose(1, 2) for x in (_with_one(scale * q), _with_one(k), v - k))
    eta = eta.transpose(1, 2)[..., None]
    w, b = weight[:, None], bias[:, None]
    for Q, X, R, E in zip(*(x.split(mini_batch_size, 2) for x in (q, k, target, eta)), strict=True):
        n, sigma = _normalized(X @ S, eps)
        g = w * (w * n + b - R)
        B = torch.stack([torch.ones_like(n), n], dim=-1) / math.sqrt(K)
        U = (g - (B @ (B.mT @ g[..., None]))[..., 0]) / sigma
        Y = Q @ S - (E * (Q @ X.mT).tril()) @ U
        S = S - (E[:, :, -1:] * X).mT @ U
        o.append((Y + w * _normalized(Y, eps)[0] + b).transpose(1, 2))
    return torch.cat(o, dim=1), S


def _with_one(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, 1), value=1.0)


def _normalized(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x by its mean and deviation, and the deviation."""
    centered = x - x.mean(-1, keepdim=True)
    sigma = torch.sqrt((centered * centered).mean(-1, keepdim=True) + eps)
    return centered / sigma, sigma


def _checked(
    run: Run, eps: float, mini_batch_size: int, **arguments: Tensor
) -> tuple[Tensor, Tensor]:
    check_eps(eps)
    if mini_batch_size < 1:
        raise ValueError(f"mini_batch_size: {mini_batch_size}, expected at least 1 token")
    return run(eps=eps, mini_batch_size=mini_batch_size, **arguments)


@recurrence(recurrent, dual, around=_checked)
def ttt_linear(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H K"],
    weight: Float[Tensor, "H K"],
    bias: Float[Tensor, "H K"],
    eta: Float[Tensor, "B T H"],
    *,
    eps: float = 1e-6,
    mini_batch_size: int = 16,
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H K"], Float[Tensor, "N H K+1 K"] | None]:
    """TTT-Linear: gradient descent on what a linear model makes of the keys.

        f(S, x) = S^Wᵀ x + S^b                the model, of K + 1 rows: W, and its bias
        ℓ_t(S)  = |layer_norm(f(S, k_t)) - (v_t - k_t)|² / 2
        S_t     = S' - η_t Σ_{t' < i <= t} ∇ℓ_i(S')
        o_t     = f(S_t, scale · q_t) + layer_norm(f(S_t, scale · q_t))         (read after write)

    where t' is the last token of the mini-batch before, S' = S_t' the model after it, and

        layer_norm(z) = weight ∘ (z - mean(z)) / sqrt(var(z) + ε) + bias

    with the mean of squares as the variance. Mini-batches of a sequence have `mini_batch_size`
    tokens, but for the last, and begin anew in each call: a sequence may go on from its final state
    as if it had not been cut if it was cut between mini-batches. η_t weighs all gradients of its
    mini-batch so far, not the one of its token alone.

    A model that maps a key to equal channels is at a point where the loss is steep: its gradient is
    that of a division by sqrt ε, as it is for the first key where there is no initial state.

    Args:
        v: Values; v - k is what the model is to make of k.
        weight: Factor of the layer norm.
        bias: Summand of the layer norm.
        eta: Rate of learning, meant to be >= 0.
        eps: ε, positive and finite, in units of squared outputs of the model.
        mini_batch_size: Tokens whose gradients are taken at one state.
        initial_state: W, and the bias of the model in its last row. None means zero.

    Raises:
        ValueError: an eps that is not positive and normal in float32; a mini_batch_size below 1.

    Source: Sun et al., arXiv 2407.04620, section 2.4 (mini-batches) and 2.7 (the layer norm and the
        residual); v - k as the target as in its code and in flash-linear-attention 0.6.0.
    """
