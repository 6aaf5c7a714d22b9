"""Short convolution: every channel mixes its last few tokens, with weights of its own."""

from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import Run, StateOptions, recurrence


def taps(
    x: Tensor, weight: Tensor, bias: Tensor | None, S: Tensor, activation: str | None
) -> tuple[Tensor, Tensor]:
    T, W = x.shape[1], weight.shape[1]
    tokens = torch.cat([S, x], dim=1)
    y = torch.stack([weight[:, i] * tokens[:, i : i + T] for i in range(W)]).sum(0)
    y = y if bias is None else y + bias
    return y * torch.sigmoid(y) if activation == "silu" else y, tokens[:, T:]


def toeplitz(
    x: Tensor, weight: Tensor, bias: Tensor | None, S: Tensor, activation: str | None
) -> tuple[Tensor, Tensor]:
    """A product with one matrix for each channel.

        y   = f(bias + M (S_0 ; x)),    M_ts = weight_{s-t}   if 0 <= s - t < W else 0
        S_T = the last W - 1 rows of (S_0 ; x)

    where (S_0 ; x) has W - 1 + T rows, and f(z) = (z + z tanh(z / 2)) / 2 with `activation="silu"`.

    Source: Gray, Toeplitz and Circulant Matrices: A Review, 2006, chapter 1.
    """
    T, W = x.shape[1], weight.shape[1]
    tokens = torch.cat([S, x], dim=1)
    tap = torch.arange(W - 1 + T, device=x.device) - torch.arange(T, device=x.device)[:, None]
    M = torch.where((tap >= 0) & (tap < W), weight[:, tap.clamp(0, W - 1)], 0.0)
    z = (M @ tokens.permute(2, 1, 0)).permute(2, 1, 0)
    z = z if bias is None else z + bias
    y = (z + z * torch.tanh(z / 2)) / 2 if activation == "silu" else z
    return y, tokens[:, T:]


def _checked(
    run: Run,
    *,
    weight: Tensor,
    activation: str | None,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    if weight.shape[1] == 0:
        raise ValueError("weight: 0 taps, expected at least 1")
    if activation not in (None, "silu"):
        raise ValueError(f"activation: {activation!r}, expected 'silu' or None")
    return run(weight=weight, activation=activation, **arguments)


@recurrence(
    taps,
    toeplitz,
    around=_checked,
    same_dtype=("x", "weight", "bias"),
    outputs=("y", "final_state"),
)
def short_conv(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, "D"] | None = None,
    *,
    activation: str | None = None,
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N W-1 D"] | None]:
    """Causal depthwise convolution over tokens.

        y_t = f(bias + Σ_{i < W} weight_i ∘ x_{t-W+1+i})

    so that weight_{W-1} is that of the token itself. The tokens before the first are the rows of
    the initial state, the oldest first: the state is the last W - 1 tokens, and nothing else. f is
    the identity, or with `activation="silu"` f(z) = z sigmoid(z). Always stable: a token is
    forgotten after W - 1 others.

    Args:
        x: Inputs.
        weight: W >= 1 taps for each channel, from the oldest token to the newest.
        bias: None means 0.
        activation: "silu", or None for none.
        initial_state: The W - 1 tokens before the first. None means zeros.
        output_final_state: Return the last W - 1 tokens as well; where a sequence has fewer, those
            of its initial state come first.

    Raises:
        ValueError: W = 0; another activation.

    Source: Gu and Dao, Mamba, arXiv 2312.00752, section 3.4 (before the state space); Yang et al.,
        arXiv 2406.06484, section 3.3 (of q, k and v).
    """
