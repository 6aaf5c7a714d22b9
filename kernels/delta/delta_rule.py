"""The delta rule: linear attention that writes how far a value is from its key's in the state."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.delta import chunk, fused_recurrent
from kernels.delta.keys import normalized_keys
from kernels.recurrence import DeltaOptions, recurrence


@recurrence(chunk, fused_recurrent, transform=normalized_keys, saves=True, neutral={"beta": 1.0})
def delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The delta rule of `reference.delta_rule`."""
