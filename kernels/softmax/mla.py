"""Multi-head latent attention: keys and values from latents by PyTorch, then `attention`."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.arguments import bind_dims, check_flags, check_one_dtype, check_range
from kernels.op import op
from kernels.scale import resolve_scale
from kernels.softmax.arguments import MAX_DIM, LseOptions
from kernels.softmax.attention import attention


def compute(
    *,
    q_n: Tensor,
    q_r: Tensor,
    c: Tensor,
    k_r: Tensor,
    w_uk: Tensor,
    w_uv: Tensor,
    scale: float | None,
    mode: str,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    sizes = bind_dims(
        q_n=(q_n, "B T_q H K"),
        q_r=(q_r, "B T_q H D"),
        c=(c, "B T_k R"),
        k_r=(k_r, "B T_k D"),
        w_uk=(w_uk, "H K R"),
        w_uv=(w_uv, "H V R"),
    )
    check_one_dtype(q_n=q_n, q_r=q_r, c=c, k_r=k_r, w_uk=w_uk, w_uv=w_uv)
    check_range("K + D of q_n and q_r", sizes["K"] + sizes["D"], 1, MAX_DIM)
    check_range("V of w_uv", sizes["V"], 1, MAX_DIM)
    check_flags(causal=options["causal"], return_lse=options["return_lse"])
    scale = resolve_scale(scale, sizes["K"] + sizes["D"])
    if mode not in ("auto", "parallel"):
        raise ValueError(f"mode: {mode!r}, expected 'auto' or 'parallel'")
    with torch.autocast(c.device.type, enabled=False):
        k_n, v = (_up(c, w) for w in (w_uk, w_uv))
        k = torch.cat([k_n, k_r[:, :, None].expand(*k_n.shape[:3], -1)], -1)
        q = torch.cat([q_n, q_r], -1)
    return attention(q, k, v, scale=scale, **options)


def _up(c: Tensor, w: Tensor) -> Tensor:
    """`[B, T, R]` and `[H, D, R]` to `[B, T, H, D]`."""
    return (c @ w.flatten(0, 1).mT).unflatten(-1, w.shape[:2])


@op(
    compute,
    outputs=("o", "lse"),
    about=f"Differentiable once. The naive form. K + D and V are 1 to {MAX_DIM}. The tile is one "
    "of `attention`.",
    same_dtype=("q_n", "q_r", "c", "k_r", "w_uk", "w_uv"),
    texts={"lse": "float32; None unless `return_lse`."},
    raises=[f"K + D or V above {MAX_DIM}"],
)
def mla(
    q_n: Float[Tensor, "B T_q H K"],
    q_r: Float[Tensor, "B T_q H D"],
    c: Float[Tensor, "B T_k R"],
    k_r: Float[Tensor, "B T_k D"],
    w_uk: Float[Tensor, "H K R"],
    w_uv: Float[Tensor, "H V R"],
    *,
    scale: float | None = None,
    causal: bool = False,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Multi-head latent attention: `attention` to keys and values that PyTorch projects."""
