"""The logarithm of running sums of exponentials."""

from typing import Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.linear.hgrn import checked
from kernels.recurrence import StateOptions, stateful


def without_decay(*, x: Tensor, **given) -> tuple[Tensor, Tensor | None]:
    g = torch.zeros_like(x) if isinstance(x, Tensor) else x
    return checked(x=x, g=g, log=True, **given)


@stateful(
    without_decay,
    outputs=("z", "final_state"),
    texts={"tile": 'Index into `kernels.tiles.TABLE["hgrn", "fused_recurrent"]`; None chooses.'},
)
def logcumsumexp(
    x: Float[Tensor, "B T D"],
    *,
    mode: Literal["auto", "fused_recurrent"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N D"] | None]:
    """The logarithm of running sums of exponentials, `reference.logcumsumexp`: the kernel of `hgrn`
    in logarithms, without decay.
    """
