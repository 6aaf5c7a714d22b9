"""Token shift: the difference of each token to the one before."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels.arguments import bind_dims
from kernels.conv.short_conv import short_conv
from kernels.op import op


def of_two_taps(*, x: Tensor, **given: object) -> tuple[Tensor, Tensor | None]:
    D = bind_dims(x=(x, "B T D"))["D"]
    taps = x.new_ones(2)
    taps[1] = -1
    return short_conv(x, taps.expand(D, 2), **given)


@op(
    of_two_taps,
    outputs=("y", "final_state"),
    texts={
        "initial_state": "float32.",
        "cu_seqlens": "int32 or int64.",
        "final_state": "float32; None unless `output_final_state`.",
        "tile": 'Index into `kernels.tiles.TABLE["short_conv", "fused"]`; None chooses.',
    },
)
def token_shift(
    x: Float[Tensor, "B T D"],
    *,
    initial_state: Float[Tensor, "N 1 D"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N 1 D"] | None]:
    """The token before, less the token itself, `reference.token_shift`: `short_conv` with the
    taps 1 and -1.
    """
