"""The logarithm of a sum over the tokens so far, and what is left of it at each token."""

import torch
from torch import Tensor

from kernels.linear.hgrn import scan
from kernels.primitives.shift import of_the_token_before


def log_weights(
    x: Tensor, g: Tensor | None, initial: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`z_t = log(exp(z_{t-1} + g_t) + exp(x_t))`, in float32.

    Args:
        x: `[B, T, ...]`; g alike, None for 0.
        initial: z before the first token `[N, ...]`, None for -inf.

    Returns:
        z_t; z_{t-1} at each token; z_{t-1} + g_t - z_t, the log of what is left; the last z of each
        sequence.
    """
    inner, x = x.shape[2:], x.float()
    x, g = (y.flatten(2) for y in (x, torch.zeros_like(x) if g is None else g.float()))
    before = -torch.inf if initial is None else initial.flatten(1)
    z, last = scan(
        x, g, initial_state=None if initial is None else before, output_final_state=True,
        cu_seqlens=cu_seqlens, log=True,
    )  # fmt: skip
    before = of_the_token_before(z, cu_seqlens, before)
    each = (z, before, before + g - z)
    return *(y.unflatten(2, inner) for y in each), last.unflatten(1, inner)
