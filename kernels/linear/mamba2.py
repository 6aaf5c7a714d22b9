"""Mamba-2: a selective state space whose state matrix is a number times the identity."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.arguments import bind_dims, check_dtype, check_one_dtype, describe
from kernels.linear.recurrence import run


def mamba2(
    x: Float[Tensor, "B T H V"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, "H"],
    B: Float[Tensor, "B T G K"],
    C: Float[Tensor, "B T G K"],
    D: Float[Tensor, "H"] | None = None,
    *,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The state space of Mamba-2.

        S_t = exp(dt_t A) S_{t-1} + dt_t B_t x_tᵀ
        y_t = S_tᵀ C_t + D x_t              (read after write)

    The paper's head dim P is V here, and its state dim N is K. Head h reads group h // (H / G) of B
    and C. It is `simple_gla` with q = C, k = B, v = dt ∘ x, g = dt A and scale 1, plus D x.

    Stable for dt A <= 0: an error of the state does not grow on its way.

    Differentiable once, through both returns. All sums are float32.

    Args:
        x: inputs `[B, T, H, V]`, float32, bfloat16 or float16; V is 1 to 256. Any strides.
        dt: step of each token `[B, T, H]`, in the dtype of x or float32, as it multiplies A: any
            bias is added and softplus taken before. Meant to be >= 0.
        A: rate of each head `[H]`, in the dtype of x or float32, meant to be <= 0.
        B: what is written to `[B, T, G, K]`, in the dtype of x; K is 1 to 256.
        C: what is read from `[B, T, G, K]`, in the dtype of x.
        D: weight of the skip connection `[H]`, in the dtype of x or float32. None means 0.
        initial_state: state before the first token `[N, H, K, V]`, float32. None means zero.
        output_final_state: return the state after the last token as well.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.
        mode, tile: those of `simple_gla`.

    Returns:
        y: `[B, T, H, V]`, in the dtype of x.
        final_state: `[N, H, K, V]`, float32; None unless `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; x, B, C not of one dtype.
        ValueError: shapes or devices that do not match; K or V above 256; H not a multiple of G;
            `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not end at T;
            an unknown mode or tile.
        NotImplementedError: a gradient of a gradient.

    Source: Dao and Gu, Transformers are SSMs, arXiv 2405.21060, section 2.4 (the recurrence) and
        section 7.2 (heads and groups); Gu and Dao, Mamba, arXiv 2312.00752, equation 4, whose step
        of B is taken to first order, dt B, as the models do.
    """
    sizes = bind_dims(
        x=(x, "B T H V"),
        dt=(dt, "B T H"),
        A=(A, "H"),
        B=(B, "B T G K"),
        C=(C, "B T G K"),
        D=(D, "H"),
    )
    dtype = check_one_dtype(x=x, B=B, C=C)
    for name, each in (("dt", dt), ("A", A), ("D", D)):
        check_dtype(name, each, torch.float32, dtype)
    groups, heads = sizes["G"], sizes["H"]
    if groups == 0 or heads % groups:
        raise ValueError(f"x: {describe(x)}, expected a multiple of the {groups} groups of B and C")
    step = dt.float()
    y, final_state = run(
        "simple_gla",
        C,
        B,
        (step[..., None] * x).to(dtype),
        step * A,
        grouped=True,
        scale=1.0,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=False,
        cu_seqlens=cu_seqlens,
        mode=mode,
        tile=tile,
    )
    if D is not None:
        y = (y + D.float()[:, None] * x).to(dtype)
    return y, final_state
