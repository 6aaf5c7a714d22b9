"""Multi-head latent attention: keys and values from latents by PyTorch, then `attention`."""

from typing import Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.arguments import bind_dims, check_flags, check_one_dtype, check_range
from kernels.differentiable import differentiable
from kernels.modes import check_mode
from kernels.op import op
from kernels.primitives.layout import widened
from kernels.scale import BAD_SCALE, resolve_scale
from kernels.softmax.arguments import (
    BAD_BOUNDARIES,
    MAX_KEY_DIM,
    MAX_VALUE_DIM,
    LseOptions,
    check_packing,
)
from kernels.softmax.attention import attention_within
from kernels.softmax.ranges import power


def compute(
    *, q_n: Tensor, q_r: Tensor, c: Tensor, k_r: Tensor, w_uk: Tensor, w_uv: Tensor,
    scale: float | None, causal: bool, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None,
    return_lse: bool, mode: str, tile: int | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    sizes = bind_dims(
        q_n=(q_n, "B T_q H K"),
        q_r=(q_r, "B T_q H D"),
        c=(c, "B T_k R"),
        k_r=(k_r, "B T_k D"),
        w_uk=(w_uk, "H K R"),
        w_uv=(w_uv, "H V R"),
    )
    check_one_dtype(q_n=q_n, q_r=q_r, c=c, k_r=k_r, w_uk=w_uk, w_uv=w_uv)
    check_range("K + D of q_n and q_r", sizes["K"] + sizes["D"], 1, MAX_KEY_DIM)
    check_range("V of w_uv", sizes["V"], 1, MAX_VALUE_DIM)
    check_flags(causal=causal, return_lse=return_lse)
    scale = resolve_scale(scale, sizes["K"] + sizes["D"])
    check_mode(mode, "parallel")
    packs = check_packing(cu_seqlens, cu_seqlens_k, sizes, c.device)
    dtype = c.dtype
    q_n, q_r, c, k_r = widened(q_n, q_r, c, k_r)
    up = _up_in_float16 if dtype == torch.float16 else _up
    with torch.autocast(c.device.type, enabled=False):
        k_n, v = (up(c, w) for w in (w_uk, w_uv))
        k = torch.cat([k_n, k_r[:, :, None].expand(*k_n.shape[:3], -1)], -1)
        q = torch.cat([q_n, q_r], -1)
    o, lse = attention_within(
        dtype, q, k, v, *packs, scale=scale, causal=causal, window=None, tile=tile
    )
    return o.to(dtype), lse if return_lse else None


def _up(c: Tensor, w: Tensor) -> Tensor:
    """`[B, T, R]` and `[H, D, R]` to `[B, T, H, D]`."""
    # As matrices: PyTorch multiplies `[B, T, R]` as one matrix or not, by requires_grad.
    return (
        (c.flatten(0, 1) @ w.flatten(0, 1).mT).unflatten(0, c.shape[:2]).unflatten(-1, w.shape[:2])
    )


def _up_backward(c: Tensor, w: Tensor, d0: Tensor) -> list[Tensor | None]:
    """dc, float32, and dw, by products in float16 of operands that are divided by powers of two.

    They bound each result by the lengths of the two vectors that it is a product of (Cauchy and
    Schwarz): one power for each token in dc, one for all in dw.
    """
    if not w.numel():
        return [torch.zeros_like(c, dtype=torch.float32), torch.zeros_like(w)]
    c, rows, W = c.to(w.dtype), d0.flatten(2), w.flatten(0, 1)
    of_tokens = power(_length(rows, -1) * _length(W, 0).amax().clamp(min=1))[..., None]
    dc = ((rows / of_tokens).to(w.dtype) @ W).float() * of_tokens
    columns, c = rows.flatten(0, 1), c.flatten(0, 1)
    of_all = power(_length(columns, 0).amax() * _length(c, 0).amax().clamp(min=1))
    dw = ((columns / of_all).to(w.dtype).mT @ c).float() * of_all
    return [dc, dw.to(w.dtype).unflatten(0, w.shape[:2])]


def _length(x: Tensor, dim: int) -> Tensor:
    return torch.linalg.vector_norm(x, dim=dim, dtype=torch.float32)


# Round c to the dtype of w, multiply, and return float32.
_up_in_float16 = differentiable(
    "mla_up",
    lambda c, w: [_up(c.to(w.dtype), w).float()],
    _up_backward,
    lambda given: [((*given["c"].shape[:2], *given["w"].shape[:2]), torch.float32)],
    outputs=1,
    takes={"c": "Tensor", "w": "Tensor"},
)


@op(
    compute,
    outputs=("o", "lse"),
    about=f"Differentiable once. The naive form. K + D is 1 to {MAX_KEY_DIM}, V 1 to "
    f"{MAX_VALUE_DIM}, R any.",
    same_dtype=("q_n", "q_r", "c", "k_r", "w_uk", "w_uv"),
    texts={"lse": "float32; None unless `return_lse`.", "tile": "That of `attention`."},
    raises=[
        f"K + D above {MAX_KEY_DIM} or V above {MAX_VALUE_DIM}",
        BAD_SCALE,
        *BAD_BOUNDARIES,
    ],
)
def mla(
    q_n: Float[Tensor, "B T_q H K"],
    q_r: Float[Tensor, "B T_q H D"],
    c: Float[Tensor, "B T_k R"],
    k_r: Float[Tensor, "B T_k D"],
    w_uk: Float[Tensor, "H K R"],
    w_uv: Float[Tensor, "H V R"],
    *,
    causal: bool = False,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[LseOptions],
) -> tuple[Float[Tensor, "B T_q H V"], Float[Tensor, "B H T_q"] | None]:
    """Multi-head latent attention: `attention` to keys and values that PyTorch projects."""
