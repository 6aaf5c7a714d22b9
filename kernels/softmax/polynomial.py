"""Based and ReBased: weights that are polynomials of the products, divided by their sum."""

from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels import tiles
from kernels.arguments import bind_dims, check_flags, check_one_dtype
from kernels.differentiable import differentiable
from kernels.softmax.causal import ABOUT, causal_op, checked
from kernels.softmax.weighted import Weights, attend, gradients

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


def _compute(
    name: str, *, q: Tensor, k: Tensor, v: Tensor, normalize: bool, **options: Any
) -> Tensor:
    sizes = bind_dims(q=(q, "B T H K"), k=(k, "B T H K"), v=(v, "B T H V"))
    dtype = check_one_dtype(q=q, k=k, v=v)
    check_flags(normalize=normalize)
    cu_seqlens, scale, tile = checked(name, sizes, dtype, q.device, **options)
    o: Tensor = _polynomial(q, k, v, cu_seqlens, name, scale, normalize, tile)
    return o


@causal_op(
    lambda **given: _compute("based", **given),
    outputs=("o",),
    about=f"{ABOUT} Time grows with T², not with K².",
    same_dtype=("q", "k", "v"),
)
def based(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    scale: float | None = None,
    normalize: bool = True,
    cu_seqlens: Int[Tensor, "N+1"] | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H V"]:
    """Linear attention with the Taylor polynomial of the exponential, in tiles of all pairs."""


@causal_op(
    lambda **given: _compute("rebased", **given),
    outputs=("o",),
    about=f"{ABOUT} Time grows with T², not with K².",
    same_dtype=("q", "k", "v"),
)
def rebased(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    scale: float | None = None,
    normalize: bool = True,
    cu_seqlens: Int[Tensor, "N+1"] | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H V"]:
    """Linear attention with the square of the product, in tiles of all pairs."""
