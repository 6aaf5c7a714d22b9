"""Sigmoid attention: weights that need no sum over keys, and so no maximum and no second pass.

Logits are in base 2, as in `logits.py`, and x is a logit with its bias. With P = 1 / (1 + 2^-x) the
gradients are dV = Pᵀ dO and dS = P (1 - P) (dO Vᵀ): see `weighted.py`.
"""

from typing import Any, Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.arguments import check_number, is_finite
from kernels.softmax.arguments import Options
from kernels.softmax.pairs import pairs
from kernels.softmax.weighted import weighted


def _run(*, bias: float | None, **given: Any) -> Tensor:
    return weighted("sigmoid_attention", "sigmoid", bias=_check_bias(bias), **given)


def _check_bias(bias: float | None) -> float | None:
    if bias is None:
        return None
    check_number("bias", bias, optional=True)
    if not is_finite(bias):
        raise ValueError(f"bias: {bias}, expected a number that is finite in float32, or None")
    return float(bias)


@pairs(_run, raises=("a bias that is NaN, or not finite in float32",))
def sigmoid_attention(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    causal: bool = False,
    window: int | None = None,
    bias: float | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[Options],
) -> Float[Tensor, "B T_q H V"]:
    """Sigmoid attention in tiles, `reference.sigmoid_attention`."""
