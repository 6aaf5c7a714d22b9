"""Short convolution: every channel mixes its last few tokens, with weights of its own."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference import recurrence
from reference.arguments import checked
from reference.sequences import CuSeqlens


@checked(same_dtype=("x", "weight", "bias"))
def short_conv(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, "D"] | None = None,
    *,
    activation: str | None = None,
    initial_state: Float[Tensor, "N W-1 D"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N W-1 D"] | None]:
    """Causal depthwise convolution over tokens.

        y_t = f(bias + Σ_{i < W} weight_i ∘ x_{t-W+1+i})

    so that weight_{W-1} is that of the token itself. The tokens before the first are the rows of
    the initial state, the oldest first: the state is the last W - 1 tokens, and nothing else. f is
    the identity, or with `activation="silu"` f(z) = z sigmoid(z). Always stable: a token is
    forgotten after W - 1 others.

    Args:
        x: inputs `[B, T, D]`.
        weight: `[D, W]`, in the dtype of x, W >= 1 taps from the oldest token to the newest.
        bias: `[D]`, in the dtype of x. None means 0.
        activation: "silu", or None for none.
        initial_state: the W - 1 tokens before the first `[N, W-1, D]`, any float dtype. None means
            zeros.
        output_final_state: return the last W - 1 tokens as well; where a sequence has fewer, its
            initial state fills up.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.

    Returns:
        y: `[B, T, D]`, in the dtype of x.
        final_state: `[N, W-1, D]`, in the promoted dtype of the inputs; None unless
            `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; x, weight, bias not of one dtype.
        ValueError: shapes that do not match; W = 0; another activation; `cu_seqlens` with B != 1,
            or that does not start at 0, decreases, or does not end at T.

    Source: Gu and Dao, Mamba, arXiv 2312.00752, section 3.4 (before the state space); Yang et al.,
        arXiv 2406.06484, section 3.3 (of q, k and v).
    """
    return _run(_taps, x, weight, bias, activation, initial_state, output_final_state, cu_seqlens)


def _taps(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, "D"] | None,
    S: Float[Tensor, "B W-1 D"],
    activation: str | None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B W-1 D"]]:
    T, W = x.shape[1], weight.shape[1]
    tokens = torch.cat([S, x], dim=1)
    y = torch.stack([weight[:, i] * tokens[:, i : i + T] for i in range(W)]).sum(0)
    y = y if bias is None else y + bias
    return y * torch.sigmoid(y) if activation == "silu" else y, tokens[:, T:]


@checked(same_dtype=("x", "weight", "bias"))
def short_conv_toeplitz(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, "D"] | None = None,
    *,
    activation: str | None = None,
    initial_state: Float[Tensor, "N W-1 D"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N W-1 D"] | None]:
    """Causal depthwise convolution as a product with one matrix for each channel.

        y   = f(bias + M (S_0 ; x)),    M_ts = weight_{s-t}   if 0 <= s - t < W else 0
        S_T = the last W - 1 rows of (S_0 ; x)

    where (S_0 ; x) has W - 1 + T rows, and f(z) = (z + z tanh(z / 2)) / 2 with `activation="silu"`.
    Everything else is said of `short_conv`.

    Source: Gray, Toeplitz and Circulant Matrices: A Review, 2006, chapter 1.
    """
    return _run(
        _toeplitz, x, weight, bias, activation, initial_state, output_final_state, cu_seqlens
    )


def _toeplitz(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, "D"] | None,
    S: Float[Tensor, "B W-1 D"],
    activation: str | None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B W-1 D"]]:
    T, W = x.shape[1], weight.shape[1]
    tokens = torch.cat([S, x], dim=1)
    tap = torch.arange(W - 1 + T, device=x.device) - torch.arange(T, device=x.device)[:, None]
    M = torch.where((tap >= 0) & (tap < W), weight[:, tap.clamp(0, W - 1)], 0.0)
    z = (M @ tokens.permute(2, 1, 0)).permute(2, 1, 0)
    z = z if bias is None else z + bias
    y = (z + z * torch.tanh(z / 2)) / 2 if activation == "silu" else z
    return y, tokens[:, T:]


def _run(
    form: recurrence.Form,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    D, W = weight.shape
    if W == 0:
        raise ValueError("weight: 0 taps, expected at least 1")
    if activation not in (None, "silu"):
        raise ValueError(f"activation: {activation!r}, expected 'silu' or None")
    y, final_state = recurrence.run(
        form,
        x,
        parameters=(weight, bias),
        state_shape=(W - 1, D),
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        activation=activation,
    )
    return y.to(x.dtype), final_state
