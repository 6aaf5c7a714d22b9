"""Mamba: a selective state space with a decay for each channel and each of its states."""

from typing import Any, Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.linear.gla import gla
from kernels.primitives.layout import widened
from kernels.recurrence import StateOptions, compute, wrapper


def through_gla(
    *, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    initial_state: Tensor | None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    dtype = x.dtype
    step, (x,) = dt.float(), widened(x)
    y, final_state = compute(
        gla.__name__,
        grouped=("q", "k"),
        q=C[:, :, None],
        k=B[:, :, None],
        v=(step * x)[..., None].to(x.dtype),
        g=step[..., None] * A,
        gv=None,
        scale=1.0,
        normalize=False,
        reverse=False,
        within=dtype,
        initial_state=None if initial_state is None else initial_state[..., None],
        **given,
    )
    y = y.squeeze(-1)
    if D is not None:
        y = (y + D.float() * x).to(dtype)
    return y, None if final_state is None else final_state.squeeze(-1)


@wrapper(
    through_gla,
    "gla",
    same_dtype=("x", "B", "C"),
    outputs=("y", "final_state"),
)
def selective_scan(
    x: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Float[Tensor, "D K"],
    B: Float[Tensor, "B T K"],
    C: Float[Tensor, "B T K"],
    D: Float[Tensor, "D"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N D K"] | None]:
    """The selective scan of Mamba, `reference.selective_scan`: `gla` with a head of one value for
    each channel.
    """
