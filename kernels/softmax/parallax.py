"""Parallax: a softmax of the scores, and a correction of the weights by a second product."""

from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels import tiles
from kernels.arguments import bind_dims, check_one_dtype
from kernels.differentiable import differentiable
from kernels.softmax.arguments import check_window
from kernels.softmax.causal import ABOUT, causal_op, checked
from kernels.softmax.weighted import Weights, attend, gradients


def _of(scale: float, window: int | None, tile: int) -> Weights:
    return Weights("softmax", scale, tiles.TABLE["parallax", "parallel"][tile], window=window)


def _forward(
    *, q: Tensor, r: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, **given: Any
) -> list[Tensor | None]:
    return [attend(q, k, v, _of(**given), cu_seqlens, cu_seqlens, r)]


def _backward(
    *, q: Tensor, r: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, d0: Tensor,
    **given: Any,
) -> list[Tensor | None]:  # fmt: skip
    return [*gradients(q, k, v, d0, _of(**given), cu_seqlens, cu_seqlens, r), None]


_parallax = differentiable(
    "parallax_parallel",
    tensors=("q", "r", "k", "v", "cu_seqlens?"),
    settings={"scale": "float", "window": "int?", "tile": "int"},
    outputs=1,
    forward=_forward,
    backward=_backward,
    shapes=lambda given: [((*given["q"].shape[:3], given["v"].shape[3]), given["q"].dtype)],
)


def compute(
    *, q: Tensor, r: Tensor, k: Tensor, v: Tensor, window: int | None, **options: Any
) -> Tensor:
    sizes = bind_dims(q=(q, "B T H K"), r=(r, "B T H K"), k=(k, "B T G K"), v=(v, "B T G V"))
    dtype = check_one_dtype(q=q, r=r, k=k, v=v)
    window = check_window(window)
    cu_seqlens, scale, tile = checked("parallax", sizes, dtype, q.device, **options)
    o: Tensor = _parallax(q, r, k, v, cu_seqlens, scale, window, tile)
    return o


@causal_op(
    compute,
    outputs=("o",),
    about=f"{ABOUT} On compute capability 12 they are 1 to 128 in float32.",
    same_dtype=("q", "r", "k", "v"),
)
def parallax(
    q: Float[Tensor, "B T H K"],
    r: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    *,
    scale: float | None = None,
    window: int | None = None,
    cu_seqlens: Int[Tensor, "N+1"] | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H V"]:
    """Softmax attention with a first-order correction of its values, `reference.parallax`."""
