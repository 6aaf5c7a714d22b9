"""Differential attention: two calls of `attention`, and their difference by PyTorch."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.arguments import bind_dims, check_dtype, check_one_dtype
from kernels.op import op
from kernels.softmax.arguments import MAX_DIM, Packing, check_heads
from kernels.softmax.attention import attention


def compute(
    *, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor, **options: Any
) -> Tensor:
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
    first, _ = attention(q1, k1, v, **options)
    second, _ = attention(q2, k2, v, **options)
    return (first - lam.float()[:, None] * second).to(dtype)


@op(
    compute,
    outputs=("o",),
    about=f"Differentiable once. K and V are 1 to {MAX_DIM}. Both attentions are rounded to the "
    "dtype of q1 before they are subtracted. The tile is one of `attention`.",
    same_dtype=("q1", "k1", "q2", "k2", "v"),
    texts={
        "cu_seqlens": "int32 or int64. Boundaries of packed sequences of queries.",
        "cu_seqlens_k": "int32 or int64. Those of the keys; None means those of the queries.",
    },
    raises=[f"K or V above {MAX_DIM}", "H not a multiple of G"],
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
    """Differential attention: the difference of two calls of `attention`."""
