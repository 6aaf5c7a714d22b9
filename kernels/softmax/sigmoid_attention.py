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
from kernels.arguments import bind_dims, check_flags, check_one_dtype, describe
from kernels.differentiable import Given, differentiable
from kernels.op import op
from kernels.scale import resolve_scale
from kernels.softmax.arguments import Packing, check_heads, check_mode, check_packing, check_window
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


def compute(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    causal: bool,
    window: int | None,
    bias: float | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    mode: str,
    tile: int | None,
) -> Tensor:
    sizes = bind_dims(q=(q, "B T_q H K"), k=(k, "B T_k G K"), v=(v, "B T_k G V"))
    dtype = check_one_dtype(q=q, k=k, v=v)
    check_heads(sizes)
    check_flags(causal=causal)
    check_mode(mode)
    cu_seqlens, cu_seqlens_k = check_packing(cu_seqlens, cu_seqlens_k, sizes, q.device)
    dim = max(sizes["K"], sizes["V"])
    tile = tiles.choose(
        "sigmoid_attention", "parallel", dim=dim, dtype=dtype, device=q.device, tile=tile
    )
    scale = resolve_scale(scale, sizes["K"])
    window, bias = check_window(window), _check_bias(bias)
    return _sigmoid_attention(q, k, v, cu_seqlens, cu_seqlens_k, scale, causal, window, bias, tile)


def _check_bias(bias: float | None) -> float | None:
    if bias is None:
        return None
    if isinstance(bias, bool) or not isinstance(bias, (int, float)):
        raise TypeError(f"bias: {describe(bias)}, expected a real number or None")
    if not -math.inf < bias < math.inf:
        raise ValueError(f"bias: {bias}, expected a finite number or None")
    return float(bias)


@op(
    compute,
    outputs=("o",),
    about="Differentiable once. Sums are float32. K and V are 1 to 256.",
    same_dtype=("q", "k", "v"),
    texts={
        "cu_seqlens": "int32 or int64. Boundaries of packed sequences of queries.",
        "cu_seqlens_k": "int32 or int64. Those of the keys; None means those of the queries.",
    },
    raises=[
        "K or V outside 1 to 256",
        "H not a multiple of G",
        "a scale or bias that is NaN or infinite",
        "a window below 1",
        "boundaries that do not delimit all tokens, or of the keys alone",
    ],
)
def sigmoid_attention(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: float | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
    **options: Unpack[Packing],
) -> Float[Tensor, "B T_q H V"]:
    """Sigmoid attention in tiles, `reference.sigmoid_attention`."""
