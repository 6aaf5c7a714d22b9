"""Sigmoid attention: weights that need no sum over keys, and so no maximum and no second pass.

Logits are in base 2, as in `logits.py`, and x is a logit with its bias. With P = 1 / (1 + 2^-x) the
gradients are dV = Pᵀ dO and dS = P (1 - P) (dO Vᵀ): see `weighted.py`.
"""

import math
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import describe
from kernels.differentiable import Given, differentiable
from kernels.softmax.arguments import Options
from kernels.softmax.pairs import pairs
from kernels.softmax.weighted import Weights, attend, gradients


def _of(given: dict[str, Any]) -> tuple[Weights, Tensor | None, Tensor | None]:
    """The weights, and the boundaries of queries and of keys."""
    weights = Weights(
        "sigmoid",
        given["scale"],
        tiles.TABLE["sigmoid_attention", "parallel"][given["tile"]],
        causal=given["causal"],
        window=given["window"],
        bias=given["bias"],
    )
    return weights, given["cu_seqlens"], given["cu_seqlens_k"]


def _forward(*, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> list[Tensor | None]:
    return [attend(q, k, v, *_of(given))]


def _backward(*, q: Tensor, k: Tensor, v: Tensor, d0: Tensor, **given: Any) -> list[Tensor | None]:
    dq, dk, dv = gradients(q, k, v, d0, *_of(given))
    return [dq, dk, dv, None, None]


def _shapes(given: Given) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((*given["q"].shape[:3], given["v"].shape[3]), given["q"].dtype)]


_sigmoid_attention = differentiable(
    "sigmoid_attention_parallel",
    tensors=("q", "k", "v", "cu_seqlens?", "cu_seqlens_k?"),
    settings={
        "scale": "float",
        "causal": "bool",
        "window": "int?",
        "bias": "float?",
        "tile": "int",
    },
    outputs=1,
    forward=_forward,
    backward=_backward,
    shapes=_shapes,
)


def _with_bias(*, bias: float | None, **given: Any) -> Tensor:
    o: Tensor = _sigmoid_attention(**given, bias=_check_bias(bias))
    return o


def _check_bias(bias: float | None) -> float | None:
    if bias is None:
        return None
    if isinstance(bias, bool) or not isinstance(bias, (int, float)):
        raise TypeError(f"bias: {describe(bias)}, expected a real number or None")
    if not -math.inf < bias < math.inf:
        raise ValueError(f"bias: {bias}, expected a finite number or None")
    return float(bias)


@pairs(_with_bias, raises=("a bias that is NaN or infinite",))
def sigmoid_attention(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    causal: bool = False,
    window: int | None = None,
    bias: float | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
    **options: Unpack[Options],
) -> Float[Tensor, "B T_q H V"]:
    """Sigmoid attention in tiles, `reference.sigmoid_attention`."""
