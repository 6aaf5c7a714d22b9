"""The hierarchically gated recurrent network: one number of state for each channel."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.recurrence import StateOptions, recurrence


def recurrent(x: Tensor, g: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(x.shape[1]):
        S = torch.exp(g[:, t]) * S + x[:, t]
        o.append(S)
    return torch.stack(o, dim=1) if o else x, S


def parallel(x: Tensor, g: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """All tokens at once: a triangular matrix of decays for each channel.

        D_ij = exp(Σ_{j < t <= i} g_t)   if j <= i else 0
        h_i  = Σ_j D_ij ∘ x_j + exp(Σ_{t <= i} g_t) ∘ h_0

    Source: Martin and Cundy, Parallelizing Linear Recurrent Neural Nets, arXiv 1709.04057, section
        2 (the recurrence solved).
    """
    if x.shape[1] == 0:
        return x, S
    from_start, between = decays(g)
    T = x.shape[1]
    seen = torch.ones(T, T, dtype=x.dtype, device=x.device).tril()[..., None]
    h = torch.einsum("bijd,bjd->bid", seen * between, x) + from_start * S[:, None]
    return h, h[:, -1]


@recurrence(recurrent, parallel, same_dtype=("x",))
def hgrn(
    x: Float[Tensor, "B T D"],
    g: Float[Tensor, "B T D"],
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N D"] | None]:
    """A gated recurrence of each channel by itself.

        h_t = exp(g_t) ∘ h_{t-1} + x_t
        o_t = h_t

    x is what the network calls (1 - f_t) ∘ c_t: the caller multiplies. Stable for g <= 0.

    Args:
        x: Inputs.
        g: Natural logarithm of the forget gate of each channel, meant to be <= 0, -inf included.
        initial_state: h before the first token. None means zero.

    Source: Qin et al., Hierarchically Gated Recurrent Neural Network, arXiv 2311.04823,
        section 3.2.
    """
