"""Decay over a stretch of tokens, each stretch summed by itself."""

import torch
from jaxtyping import Float
from torch import Tensor


def decays(
    g: Float[Tensor, "B T *C"],
) -> tuple[Float[Tensor, "B T *C"], Float[Tensor, "B T T *C"]]:
    """The factors by which a state shrinks on its way to token i.

        from_start_i = exp Σ_{t <= i} g_t
        between_ij   = exp Σ_{j < t <= i} g_t           for j <= i

    Each exponent is a sum of its own and not a difference of prefix sums, which would lose small
    terms behind a large one, and be NaN behind an infinite one.

    Args:
        g: natural logarithm of the decay at each token `[B, T, ...]`.

    Returns:
        from_start: `[B, T, ...]`.
        between: `[B, T, T, ...]`; 1 where j > i.
    """
    between = sums_between(g)
    return torch.exp(g.cumsum(1)), torch.exp(between)


def sums_between(g: Float[Tensor, "B T *C"]) -> Float[Tensor, "B T T *C"]:
    """Σ_{j < t <= i} g_t of tokens i and j, summed by itself; 0 where j >= i."""
    t = torch.arange(g.shape[1], device=g.device)
    later = (t[:, None] > t).view(len(t), len(t), *[1] * (g.ndim - 2))
    return torch.where(later, g[:, :, None], 0.0).cumsum(1)
