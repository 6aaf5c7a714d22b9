"""Differential attention: two softmaxes, and their difference before anything is rounded.

dλ = -Σ dO ∘ O2,    and the second attention has the cotangent -λ dO
"""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import bind_dims, check_dtype, check_flags, check_one_dtype
from kernels.differentiable import differentiable
from kernels.op import op
from kernels.scale import resolve_scale
from kernels.softmax.arguments import (
    MAX_DIM,
    Packing,
    check_heads,
    check_mode,
    check_packing,
    check_window,
)
from kernels.softmax.weighted import Weights, attend, gradients


def _of(
    cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None, scale: float, causal: bool,
    window: int | None, tile: int,
) -> tuple[Weights, Tensor | None, Tensor | None]:  # fmt: skip
    """The weights, and the boundaries of queries and of keys."""
    entry = tiles.TABLE["differential_attention", "parallel"][tile]
    weights = Weights("softmax", scale, entry, causal=causal, window=window)
    return weights, cu_seqlens, cu_seqlens_k


def _forward(
    *, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor, **given: Any
) -> list[Tensor | None]:
    first, second = (
        attend(q, k, v, *_of(**given), dtype=torch.float32) for q, k in ((q1, k1), (q2, k2))
    )
    return [(first - lam.float()[:, None] * second).to(v.dtype)]


def _backward(
    *, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor, d0: Tensor,
    **given: Any,
) -> list[Tensor | None]:  # fmt: skip
    of = _of(**given)
    second = attend(q2, k2, v, *of, dtype=torch.float32)
    # In float64 no order of the terms shows.
    dlam = -(d0.double() * second).sum((0, 1, 3)).to(lam.dtype)
    d1 = d0.float()
    d2 = -lam.float()[:, None] * d1
    dq1, dk1, dv1 = gradients(q1, k1, v, d1, *of, dtype=torch.float32)
    dq2, dk2, dv2 = gradients(q2, k2, v, d2, *of, dtype=torch.float32)
    each = [x.to(v.dtype) for x in (dq1, dk1, dq2, dk2, dv1 + dv2)]
    return [*each, dlam, None, None]


_differential_attention = differentiable(
    "differential_attention_parallel",
    tensors=("q1", "k1", "q2", "k2", "v", "lam", "cu_seqlens?", "cu_seqlens_k?"),
    settings={"scale": "float", "causal": "bool", "window": "int?", "tile": "int"},
    outputs=1,
    forward=_forward,
    backward=_backward,
    shapes=lambda given: [((*given["q1"].shape[:3], given["v"].shape[3]), given["q1"].dtype)],
)


def compute(
    *, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor,
    scale: float | None, causal: bool, window: int | None, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, mode: str, tile: int | None,
) -> Tensor:  # fmt: skip
    sizes = bind_dims(
        q1=(q1, "B T_q H K"),
        k1=(k1, "B T_k G K"),
        q2=(q2, "B T_q H K"),
        k2=(k2, "B T_k G K"),
        v=(v, "B T_k G V"),
        lam=(lam, "H"),
    )
    dtype = check_one_dtype(q1=q1, k1=k1, q2=q2, k2=k2, v=v)
    check_dtype("lam", lam, dtype, torch.float32)
    check_heads(sizes, queries="q1", keys="k1, k2 and v")
    check_flags(causal=causal)
    check_mode(mode)
    window, scale = check_window(window), resolve_scale(scale, sizes["K"])
    boundaries = check_packing(cu_seqlens, cu_seqlens_k, sizes, q1.device)
    tile = tiles.choose(
        "differential_attention", "parallel",
        dim=max(sizes["K"], sizes["V"]), dtype=dtype, device=q1.device, tile=tile,
    )  # fmt: skip
    o: Tensor = _differential_attention(
        q1, k1, q2, k2, v, lam, *boundaries, scale, causal, window, tile
    )
    return o


@op(
    compute,
    outputs=("o",),
    about=f"Differentiable once. Sums are float32. K and V are 1 to {MAX_DIM}.",
    same_dtype=("q1", "k1", "q2", "k2", "v"),
    texts={
        "cu_seqlens": "int32 or int64. Boundaries of packed sequences of queries.",
        "cu_seqlens_k": "int32 or int64. Those of the keys; None means those of the queries.",
    },
    raises=[
        f"K or V outside 1 to {MAX_DIM}",
        "H not a multiple of G",
        "a scale that is NaN or infinite",
        "a window below 1",
        "boundaries that do not delimit all tokens, or of the keys alone",
    ],
)
def differential_attention(
    q1: Float[Tensor, "B T_q H K"],
    k1: Float[Tensor, "B T_k G K"],
    q2: Float[Tensor, "B T_q H K"],
    k2: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    lam: Float[Tensor, "H"],
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
    **options: Unpack[Packing],
) -> Float[Tensor, "B T_q H V"]:
    """The difference of two softmax attentions in tiles, `reference.differential_attention`."""
