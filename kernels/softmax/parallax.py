"""Parallax: a softmax whose weights a second product corrects; see `weighted.py`."""

from functools import partial
from typing import Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.recurrence import StatelessOptions
from kernels.softmax.pairs import pairs
from kernels.softmax.weighted import weighted


@pairs(
    partial(weighted, "parallax", "softmax", divided=True),
    same_dtype=("q", "r", "k", "v"),
)
def parallax(
    q: Float[Tensor, "B T H K"],
    r: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    *,
    window: int | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Softmax attention with a first-order correction of its values, in tiles of all pairs."""
