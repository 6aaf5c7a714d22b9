"""Mamba-2: a selective state space whose state matrix is a number times the identity."""

from typing import Any, Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.linear.simple_gla import simple_gla
from kernels.primitives.layout import widened
from kernels.recurrence import StateOptions, compute, wrapper


def through_simple_gla(
    *, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, **given: Any
) -> tuple[Tensor, Tensor | None]:
    dtype = x.dtype
    step, (x,) = dt.float(), widened(x)
    y, final_state = compute(
        simple_gla.__name__,
        grouped=("q", "k"),
        q=C,
        k=B,
        v=(step[..., None] * x).to(x.dtype),
        g=step * A,
        scale=1.0,
        reverse=False,
        within=dtype,
        **given,
    )
    if D is not None:
        y = (y + D.float()[:, None] * x).to(dtype)
    return y, final_state


@wrapper(
    through_simple_gla,
    "simple_gla",
    same_dtype=("x", "B", "C"),
    outputs=("y", "final_state"),
)
def mamba2(
    x: Float[Tensor, "B T H V"],
    dt: Float[Tensor, "B T H"],
    A: Float[Tensor, "H"],
    B: Float[Tensor, "B T G K"],
    C: Float[Tensor, "B T G K"],
    D: Float[Tensor, "H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The state space of Mamba-2, `reference.mamba2`: `simple_gla` with q = C, k = B, v = dt ∘ x,
    g = dt A and scale 1, plus D x. The paper's head dim P is V here, and its state dim N is K.
    """
