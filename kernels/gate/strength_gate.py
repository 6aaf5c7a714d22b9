"""The strength of a write from what a layer projects."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from kernels.fused import fused
from kernels.gate.decay_gate import gate


def compute(*, x: Tensor, allow_neg_eigval: bool, tile: int) -> Tensor:
    most = 2.0 if allow_neg_eigval else 1.0
    return gate(x[..., None], None, None, most, tile)[..., 0]


@fused(compute, output="beta", wraps="decay_gate", texts={"beta": "float32, contiguous."})
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
