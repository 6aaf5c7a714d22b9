"""Based and ReBased: weights that are polynomials of the products, divided by their sum."""

import functools
from typing import Any, Literal, Unpack

from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.differentiable import differentiable
from kernels.recurrence import StatelessOptions
from kernels.softmax.pairs import pairs
from kernels.softmax.weighted import Weights, attend, gradients

_ABOUT = "Time grows with T², not with K²."
_KINDS = {"based": ("taylor", 1e-6), "rebased": ("square", 1e-5)}


def _of(name: str, scale: float, normalize: bool, tile: int) -> Weights:
    kind, eps = _KINDS[name]
    entry = tiles.TABLE[name, "parallel"][tile]
    return Weights(kind, scale, entry, divided=normalize, eps=eps)


def _forward(
    *, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, **given: Any
) -> list[Tensor | None]:
    return [attend(q, k, v, _of(**given), cu_seqlens, cu_seqlens)]


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, d0: Tensor, **given: Any
) -> list[Tensor | None]:
    dq, dk, dv = gradients(q, k, v, d0, _of(**given), cu_seqlens, cu_seqlens)
    return [dq, dk, dv, None]


_polynomial = differentiable(
    "polynomial_parallel",
    tensors=("q", "k", "v", "cu_seqlens?"),
    settings={"name": "str", "scale": "float", "normalize": "bool", "tile": "int"},
    outputs=1,
    forward=_forward,
    backward=_backward,
    shapes=lambda given: [((*given["q"].shape[:3], given["v"].shape[3]), given["q"].dtype)],
)


@pairs(functools.partial(_polynomial, name="based"), about=_ABOUT)
def based(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    normalize: bool = True,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Linear attention with the Taylor polynomial of the exponential, in tiles of all pairs."""


@pairs(functools.partial(_polynomial, name="rebased"), about=_ABOUT)
def rebased(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    normalize: bool = True,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Linear attention with the square of the product, in tiles of all pairs."""
