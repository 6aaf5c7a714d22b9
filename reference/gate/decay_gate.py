"""Gates inside an op: the logarithm of a decay from what a layer projects."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import is_normal
from reference.op import Form, op


def definition(x: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    z, A = x + dt_bias, torch.exp(A_log)[:, None]
    if lower_bound is None:
        return -A * torch.logaddexp(z, torch.zeros_like(z))
    return lower_bound * torch.sigmoid(A * z)


def hyperbolic(x: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """`definition` in hyperbolic functions.

        g = -A (z / 2 + log(2 cosh(z / 2)))
        g = lower_bound · (1 + tanh(A z / 2)) / 2

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 4.5 (of exponentials).
    """
    half, A = (x + dt_bias) / 2, torch.exp(A_log)[:, None]
    if lower_bound is None:
        return -A * (half + torch.logaddexp(half, -half))
    return lower_bound * (1 + torch.tanh(A * half)) / 2


def _run(
    form: Form,
    sizes: dict[str, int],
    *,
    x: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
) -> Tensor:
    if lower_bound is not None and not is_normal(-lower_bound):
        wanted = "expected a negative finite number, normal in float32, or None"
        raise ValueError(f"lower_bound: {lower_bound}, {wanted}")
    if A_log is None:
        A_log = x.new_zeros(sizes["H"])
    if dt_bias is None:
        dt_bias = x.new_zeros(sizes["H"], sizes["D"])
    dtype = torch.promote_types(torch.promote_types(x.dtype, A_log.dtype), dt_bias.dtype)
    g: Tensor = form(x.to(dtype), A_log.to(dtype), dt_bias.to(dtype), lower_bound)
    return g


@op(definition, hyperbolic, run=_run, outputs=("g",))
def decay_gate(
    x: Float[Tensor, "B T H D"],
    A_log: Float[Tensor, "H"] | None = None,
    dt_bias: Float[Tensor, "H D"] | None = None,
    *,
    lower_bound: float | None = None,
) -> Float[Tensor, "B T H D"]:
    """The logarithm of a decay, which is at most 0, from any number.

        z = x + dt_bias,    A = exp(A_log)
        g = -A softplus(z)                     softplus(z) = log(1 + exp z)
        g = lower_bound · sigmoid(A z)         with `lower_bound`: between it and 0

    A gate of each head has D = 1 (Mamba-2, Gated DeltaNet), one of each channel D = K (KDA).

    Args:
        x: What a layer projects, one number for each gate.
        A_log: Logarithm of the rate of each head. None means a rate of 1.
        dt_bias: Added to x. None means 0.
        lower_bound: The least g, negative and finite. None means none, and the first equation.

    Returns:
        g: In the promoted dtype of the inputs.

    Raises:
        ValueError: a lower_bound that is not negative and normal in float32.

    Source: Dao and Gu, Transformers are SSMs, arXiv 2405.21060, section 7 (A and dt as Mamba-2 has
        them, with g = A dt); Kimi Team, Kimi Linear, arXiv 2510.26692, section 4 (of each channel);
        the lower bound is that of flash-linear-attention 0.6.0.
    """
