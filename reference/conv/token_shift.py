"""Token shift: the difference of each token to the one before."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import StateOptions, recurrence


def recurrent(x: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    y = []
    for t in range(x.shape[1]):
        y.append(S[:, 0] - x[:, t])
        S = x[:, t : t + 1]
    return torch.stack(y, dim=1) if y else x, S


def difference(x: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """The difference of two sequences, one of them a token behind: y = (x_0 ; x)_{<T} - x."""
    tokens = torch.cat([S, x], dim=1)
    return -tokens.diff(dim=1), tokens[:, -1:]


@recurrence(recurrent, difference, same_dtype=("x",), outputs=("y", "final_state"))
def token_shift(
    x: Float[Tensor, "B T D"],
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N 1 D"] | None]:
    """The token before, less the token itself.

        y_t = x_{t-1} - x_t

    so that x + μ ∘ y mixes both. It is `short_conv` with the taps 1 and -1.

    Args:
        x: Inputs.
        initial_state: The token before the first. None means zeros.
        output_final_state: Return the last token as well; that of the initial state for an empty
            sequence.

    Source: Peng et al., RWKV, arXiv 2305.13048, section 3.1 (token shift).
    """
