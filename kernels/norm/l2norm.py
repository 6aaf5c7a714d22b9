"""L2 normalization: every vector is divided by its length."""

from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_number, is_normal
from kernels.differentiable import differentiable, like_the_first
from kernels.fused import fused
from kernels.primitives.layout import contiguous
from kernels.primitives.rows import load_rows, store_rows
from kernels.tiles import cdiv, next_power_of_2

EPS = 1e-6


@triton.jit
def _inverse_length(x, eps):
    return 1.0 / tl.sqrt(tl.sum(x * x, 1) + eps)


@triton.jit(do_not_specialize=["count"])
def _forward(x_ptr, y_ptr, eps, count, dim: tl.int32, ROWS: tl.constexpr, BD: tl.constexpr):
    """y of ROWS vectors."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, BD)
    x = load_rows(x_ptr, rows, dims, dim, count, dim).to(tl.float32)
    store_rows(y_ptr, x * _inverse_length(x, eps)[:, None], rows, dims, dim, count, dim)


@triton.jit(do_not_specialize=["count"])
def _backward(
    x_ptr, dy_ptr, dx_ptr, eps, count, dim: tl.int32, ROWS: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    """`dx = (dy - y (y · dy)) / length`, of y in float32."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, BD)
    x = load_rows(x_ptr, rows, dims, dim, count, dim).to(tl.float32)
    dy = load_rows(dy_ptr, rows, dims, dim, count, dim)
    inverse = _inverse_length(x, eps)[:, None]
    y = x * inverse
    dx = (dy - y * tl.sum(y * dy, 1)[:, None]) * inverse
    store_rows(dx_ptr, dx, rows, dims, dim, count, dim)


def normalized(x: Tensor, eps: float = EPS, tile: int | None = None) -> Tensor:
    """`l2norm` of checked arguments, without a history."""
    return _launch(_forward, x, eps=eps, tile=tile)


def normalized_backward(x: Tensor, dy: Tensor, eps: float = EPS, tile: int | None = None) -> Tensor:
    """The gradient of x from that of `normalized(x)`, which may be float32."""
    return _launch(_backward, x, dy, eps=eps, tile=tile)


def _launch(kernel, x: Tensor, *others: Tensor, eps: float, tile: int | None) -> Tensor:
    x, *others = contiguous(x, *others)
    out = torch.empty_like(x)
    dim = x.shape[-1]
    tile = tiles.choose("l2norm", "fused", dim=dim, dtype=x.dtype, device=x.device, tile=tile)
    entry = tiles.TABLE["l2norm", "fused"][tile]
    count = x.numel() // dim
    kernel[(cdiv(count, entry.tokens),)](
        x, *others, out, eps, count, dim,
        ROWS=entry.tokens, BD=next_power_of_2(dim), num_warps=entry.num_warps,
    )  # fmt: skip
    return out


_l2norm = differentiable(
    "l2norm_fused",
    lambda x, **settings: [normalized(x, **settings)],
    lambda x, d0, **settings: [normalized_backward(x, d0, **settings)],
    like_the_first,
    outputs=1,
    takes={"x": "Tensor", "eps": "float", "tile": "int"},
)


def check_eps(eps: float) -> None:
    check_number("eps", eps)
    if not is_normal(eps):
        raise ValueError(f"eps: {eps}, expected a positive finite number, normal in float32")


def compute(*, x: Tensor, eps: float, tile: int) -> Tensor:
    check_eps(eps)
    return _l2norm(x, float(eps), tile)


BAD_EPS = "an eps that is not positive and normal in float32"
LIMIT = "Lengths above 2^64, about 1.8e19, overflow and count as infinite."


@fused(compute, about=LIMIT, widest=256, raises=[BAD_EPS])
def l2norm(
    x: Float[Tensor, "B T H D"],
    *,
    eps: float = EPS,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H D"]:
    """Divide every vector by its length, `reference.l2norm`."""
