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
    k_n, v = (_up(c, w) for w in (w_uk, w_uv))
    with torch.autocast(c.device.type, enabled=False):
        k = torch.cat([k_n, k_r[:, :, None].expand(*k_n.shape[:3], -1)], -1)
        q = torch.cat([q_n, q_r], -1)
    o, lse = attention_within(
        dtype, q, k, v, *packs, scale=scale, causal=causal, window=None, tile=tile
    )
    return o.to(dtype), lse if return_lse else None


def _product(c: Tensor, w: Tensor) -> list[Tensor]:
    """`[B, T, R]` and `[H, D, R]` to `[B, T, H, D]`."""
    # As matrices: PyTorch multiplies `[B, T, R]` as one matrix or not, by requires_grad.
    rows = c.to(w.dtype).flatten(0, 1) @ w.flatten(0, 1).mT
    return [rows.unflatten(0, c.shape[:2]).unflatten(-1, w.shape[:2]).to(c.dtype)]


def _product_backward(c: Tensor, w: Tensor, d0: Tensor) -> list[Tensor | None]:
    """dc and dw. In float16 the operands are divided by powers of two.

    They bound each result by the lengths of the two vectors that it is a product of (Cauchy and
    Schwarz): one power for each token in dc, one for all in dw.
    """
    if not w.numel():
        return [torch.zeros_like(c), torch.zeros_like(w)]
    rows, x, W = d0.flatten(2).flatten(0, 1), c.to(w.dtype).flatten(0, 1), w.flatten(0, 1)
    if w.dtype == torch.float16:
        of_tokens = power(_length(rows, -1) * _length(W, 0).amax().clamp(min=1))[:, None]
        of_all = power(_length(rows, 0).amax() * _length(x, 0).amax().clamp(min=1))
        dc = ((rows / of_tokens).to(w.dtype) @ W).to(c.dtype) * of_tokens
        dw = (((rows / of_all).to(w.dtype).mT @ x).to(c.dtype) * of_all).to(w.dtype)
    else:
        dc, dw = rows @ W, rows.mT @ x
    return [dc.unflatten(0, c.shape[:2]), dw.unflatten(0, w.shape[:2])]


def _length(x: Tensor, dim: int) -> Tensor:
    return torch.linalg.vector_norm(x, dim=dim, dtype=torch.float32)


# In the dtype of w, returned in that of c, which is float32 where w is float16.
_up = differentiable(
    "mla_up",
    _product,
    _product_backward,
    lambda given: [((*given["c"].shape[:2], *given["w"].shape[:2]), given["c"].dtype)],
    outputs=1,
)


@op(
    compute,
    outputs=("o", "lse"),
    about=f"Differentiable once. The naive form. K + D is 1 to {MAX_KEY_DIM}, V 1 to "
    f"{MAX_VALUE_DIM}, R any.",
    same_dtype=("q_n", "q_r", "c", "k_r", "w_uk", "w_uv"),
    texts={"lse": "float32; None unless `return_lse`.", "tile": "That of `attention`."},
    raises=[
        f"K + D outside 1 to {MAX_KEY_DIM} or V outside 1 to {MAX_VALUE_DIM}",
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
