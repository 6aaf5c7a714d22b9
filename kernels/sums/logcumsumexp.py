"""The logarithm of running sums of exponentials."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.linear.hgrn import checked
from kernels.op import op


def without_decay(*, x: Tensor, **given) -> tuple[Tensor, Tensor | None]:
    g = torch.zeros_like(x) if isinstance(x, Tensor) else x
    return checked(x=x, g=g, log=True, **given)


@op(
    without_decay,
    outputs=("z", "final_state"),
    about="Differentiable once, through both returns. All sums are float32.",
    texts={
        "initial_state": "float32.",
        "cu_seqlens": "int32 or int64.",
        "final_state": "float32; None unless `output_final_state`.",
        "tile": 'Index into `kernels.tiles.TABLE["hgrn", "fused_recurrent"]`; None chooses.',
    },
)
def logcumsumexp(
    x: Float[Tensor, "B T D"],
    *,
    initial_state: Float[Tensor, "N D"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "fused_recurrent"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N D"] | None]:
    """The logarithm of running sums of exponentials, `reference.logcumsumexp`: the kernel of `hgrn`
    in logarithms, without decay.
    """
