"""The gated delta rule: a delta rule whose state forgets, all channels alike."""

from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.delta import chunk, fused_recurrent
from kernels.delta.keys import normalized_keys
from kernels.recurrence import DeltaOptions, recurrence


@recurrence(chunk, fused_recurrent, transform=normalized_keys, saves=True, neutral={"beta": 1.0})
def gated_delta_rule(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The gated delta rule of `reference.gated_delta_rule`."""
