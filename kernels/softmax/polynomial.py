"""Based and ReBased: weights that are polynomials of the products, divided by their sum."""

import functools
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels import tiles
from kernels.arguments import bind_dims, check_cu_seqlens, check_flags, check_one_dtype
from kernels.differentiable import differentiable
from kernels.op import op
from kernels.scale import resolve_scale
from kernels.softmax.arguments import MAX_DIM, check_heads, check_mode
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
    name: str,
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    normalize: bool,
    cu_seqlens: Tensor | None,
    mode: str,
    tile: int | None,
) -> Tensor:
    sizes = bind_dims(q=(q, "B T H K"), k=(k, "B T H K"), v=(v, "B T H V"))
    dtype = check_one_dtype(q=q, k=k, v=v)
    check_flags(normalize=normalize)
    check_heads({"G": sizes["H"], **sizes})
    check_mode(mode)
    cu_seqlens = check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], q.device)
    dim = max(sizes["K"], sizes["V"])
    tile = tiles.choose(name, "parallel", dim=dim, dtype=dtype, device=q.device, tile=tile)
    scale = resolve_scale(scale, sizes["K"])
    o: Tensor = _polynomial(q, k, v, cu_seqlens, name, scale, normalize, tile)
    return o


_op = functools.partial(
    op,
    outputs=("o",),
    about=f"Differentiable once. Sums are float32. K and V are 1 to {MAX_DIM}. Time grows with T², "
    "not with K².",
    same_dtype=("q", "k", "v"),
    texts={"cu_seqlens": "int32 or int64. Boundaries of packed sequences."},
    raises=(
        f"K or V outside 1 to {MAX_DIM}",
        "a scale that is NaN or infinite",
        "boundaries that do not delimit all tokens",
    ),
)


@_op(functools.partial(_compute, "based"))
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


@_op(functools.partial(_compute, "rebased"))
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
