"""Mamba: a selective state space with a decay for each channel and each of its states."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.recurrence import StateOptions, recurrence


def recurrent(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    y = []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None]
        S = torch.exp(step * A) * S + step * B[:, t, None] * x[:, t, :, None]
        read = torch.einsum("bk,bdk->bd", C[:, t], S)
        y.append(read if D is None else read + D * x[:, t])
    return torch.stack(y, dim=1) if y else x, S


def convolved(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, S: Tensor
) -> tuple[Tensor, Tensor]:
    """All tokens at once: each channel is a sum over pairs of tokens.

        M_ij = C_i · (exp(A Σ_{j < t <= i} dt_t) ∘ B_j) dt_j   if j <= i else 0
        y    = M x + D x + C_i · (exp(A Σ_{t <= i} dt_t) ∘ S_0)

    Source: Dao and Gu, arXiv 2405.21060, section 3.1 (a state space as a matrix of pairs).
    """
    if x.shape[1] == 0:
        return x, S
    from_start, between = decays(dt[..., None] * A)
    written = torch.einsum("bijdk,bjk,bjd->bijdk", between, B, dt * x)
    seen = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype, device=x.device).tril()
    states = torch.einsum("ij,bijdk->bidk", seen, written) + from_start * S[:, None]
    y = torch.einsum("bik,bidk->bid", C, states)
    return y if D is None else y + D * x, states[:, -1]


@recurrence(recurrent, convolved, same_dtype=("x", "B", "C"), outputs=("y", "final_state"))
def selective_scan(
    x: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Float[Tensor, "D K"],
    B: Float[Tensor, "B T K"],
    C: Float[Tensor, "B T K"],
    D: Float[Tensor, "D"] | None = None,
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N D K"] | None]:
    """The selective scan of Mamba, as a recurrence over tokens.

        S_t = exp(dt_t A) ∘ S_{t-1} + (dt_t ∘ x_t) B_tᵀ
        y_t = S_t C_t + D ∘ x_t             (read after write)

    with a row of the state for each of D channels. It is `gla` with a head of one value for each
    channel: q = C, k = B, v = dt ∘ x and g = dt A, at scale 1. Stable for dt A <= 0.

    Args:
        x: Inputs.
        dt: Step of each token and channel: any bias is added and softplus taken before. Meant to be
            >= 0.
        A: Rate of each state, meant to be <= 0.
        B: Input projection of each token.
        C: Output projection of each token.
        D: Weight of the skip connection. None means 0.

    Source: Gu and Dao, Mamba, arXiv 2312.00752, section 3.2, with the step of B to first order.
    """
