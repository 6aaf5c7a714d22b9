"""Token shift: the difference of each token to the one before."""

from typing import Any, Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.arguments import bind_dims
from kernels.conv.short_conv import short_conv
from kernels.recurrence import StateOptions, stateful


def of_two_taps(*, x: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
    D = bind_dims(x=(x, "B T D"))["D"]
    taps = x.new_ones(2)
    taps[1] = -1
    return short_conv(x, taps.expand(D, 2), **given)


@stateful(
    of_two_taps,
    outputs=("y", "final_state"),
    texts={"tile": 'Index into `kernels.tiles.TABLE["short_conv", "fused"]`; None chooses.'},
)
def token_shift(
    x: Float[Tensor, "B T D"],
    *,
    mode: Literal["auto", "fused"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N 1 D"] | None]:
    """The token before, less the token itself, `reference.token_shift`: `short_conv` with the
    taps 1 and -1.
    """
