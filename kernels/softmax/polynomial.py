"""Based and ReBased: weights that are polynomials of the products, divided by their sum."""

from typing import Any, Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels.recurrence import StatelessOptions
from kernels.softmax.pairs import pairs
from kernels.softmax.weighted import weighted

_ABOUT = "Time grows with T², not with K²."


def _based(*, normalize: bool, **given: Any) -> Tensor:
    return weighted("based", "taylor", divided=normalize, eps=1e-6, **given)


def _rebased(*, normalize: bool, **given: Any) -> Tensor:
    return weighted("rebased", "square", divided=normalize, eps=1e-5, **given)


@pairs(_based, about=_ABOUT)
def based(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    normalize: bool = True,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Linear attention with the Taylor polynomial of the exponential, in tiles of all pairs."""


@pairs(_rebased, about=_ABOUT)
def rebased(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    normalize: bool = True,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Linear attention with the square of the product, in tiles of all pairs."""
