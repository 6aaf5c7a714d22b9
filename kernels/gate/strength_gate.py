"""The strength of a write from what a layer projects."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from kernels.arguments import bind_dims, check_flags, check_one_dtype
from kernels.gate.decay_gate import gate
from kernels.modes import check_mode
from kernels.op import op


def compute(*, x: Tensor, allow_neg_eigval: bool, mode: str, tile: int | None) -> Tensor:
    check_flags(allow_neg_eigval=allow_neg_eigval)
    bind_dims(x=(x, "B T H"))
    check_one_dtype(x=x)
    check_mode(mode, "fused")
    most = 2.0 if allow_neg_eigval else 1.0
    return gate(x[..., None], None, None, most, tile)[..., 0]


@op(
    compute,
    outputs=("beta",),
    about="Differentiable once.",
    texts={
        "beta": "float32, contiguous.",
        "tile": 'Index into `kernels.tiles.TABLE["decay_gate", "fused"]`; None chooses.',
    },
)
def strength_gate(
    x: Float[Tensor, "B T H"],
    *,
    allow_neg_eigval: bool = False,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H"]:
    """The strength of a write from any number, `reference.strength_gate`: the kernel of
    `decay_gate`, whose bound is 1 or 2.
    """
