"""Feature maps: a program computes some features of some rows, or the gradient of whole rows.

With r = max((x, -x), 0), y the features and i = 1 ... ν, the gradients are

    hedgehog   dx = y⁺ ∘ (dy⁺ - y · dy) - y⁻ ∘ (dy⁻ - y · dy)       halves of x and of -x
    dpfp       dr_j = Σ_i dy_ij r_{j-i} + dy_{i, j+i} r_{j+i},      dx = dr⁺ [x > 0] - dr⁻ [x < 0]
    taylor     dx_a = dy_a / D^(1/4) + Σ_b (dy_ab + dy_ba) x_b / sqrt(2 D)

All is computed in float32 and rounded once.
"""

import math
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_choice, check_size
from kernels.differentiable import Given, differentiable
from kernels.fused import fused
from kernels.primitives.rows import load_rows, store_rows
from kernels.tiles import cdiv, next_power_of_2

KINDS = ("elu", "relu", "hedgehog", "dpfp", "taylor")


@triton.jit
def _gather(ptr, rows, cols, width, inside):
    """Elements `[rows, cols]` of contiguous rows in float32, 0 outside."""
    cells = rows[:, None] * width + cols[None, :]
    return tl.load(ptr + cells, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _relu(x):
    """max(x, 0), NaN of NaN."""
    return tl.where(x <= 0, 0.0, x)


@triton.jit
def _rectified(x_ptr, rows, j, dim, inside):
    """r_j for 0 <= j < 2 D."""
    below = j >= dim
    x = _gather(x_ptr, rows, tl.where(below, j - dim, j), dim, inside)
    return _relu(tl.where(below[None, :], -x, x))


@triton.jit
def _halves(x_ptr, rows, cols, count, dim):
    """The softmax of (x, -x): both halves, 0 outside."""
    x = load_rows(x_ptr, rows, cols, dim, count, dim).to(tl.float32)
    inside = (cols < dim)[None, :]
    largest = tl.max(tl.abs(x), 1)[:, None]
    above = tl.where(inside, tl.exp(x - largest), 0.0)
    below = tl.where(inside, tl.exp(-x - largest), 0.0)
    total = tl.sum(above + below, 1)[:, None]
    return above / total, below / total


@triton.jit(do_not_specialize=["count"])
def _forward(
    x_ptr, y_ptr, linear, square, count, width, dim: tl.int32,
    KIND: tl.constexpr, ROWS: tl.constexpr, BD: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    """The factors of `taylor` are those of x and of its squares."""
    parts = tl.cdiv(width, BF)
    rows = (tl.program_id(0) // parts).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    f = (tl.program_id(0) % parts) * BF + tl.arange(0, BF)
    inside = (rows < count)[:, None] & (f < width)[None, :]
    if KIND == "hedgehog":
        cols = tl.arange(0, BD)
        above, below = _halves(x_ptr, rows, cols, count, dim)
        store_rows(y_ptr, above, rows, cols, width, count, dim)
        store_rows(y_ptr + dim, below, rows, cols, width, count, dim)
    else:
        if KIND == "elu":
            x = _gather(x_ptr, rows, f, dim, inside)
            y = tl.where(x <= 0, tl.exp(tl.minimum(x, 0.0)), x + 1.0)
        elif KIND == "relu":
            y = _relu(_gather(x_ptr, rows, f, dim, inside))
        elif KIND == "dpfp":
            j = f % (2 * dim)
            i = (f // (2 * dim) + 1) % (2 * dim)
            other = tl.where(j >= i, j - i, j - i + 2 * dim)
            y = _rectified(x_ptr, rows, j, dim, inside)
            y *= _rectified(x_ptr, rows, other, dim, inside)
        else:
            single = f <= dim
            pair = tl.where(single, 0, f - 1 - dim)
            a = tl.where(single, tl.maximum(f - 1, 0), pair // dim)
            x = _gather(x_ptr, rows, a, dim, inside)
            squares = x * _gather(x_ptr, rows, pair % dim, dim, inside) * square
            y = tl.where(single[None, :], x * linear, squares)
            y = tl.where((f == 0)[None, :], 1.0, y)
        tl.store(y_ptr + rows[:, None] * width + f[None, :], y, mask=inside)


@triton.jit
def _of_rectified(x_ptr, dy_ptr, rows, j, nu, width, dim, inside):
    """The gradient of r_j."""
    dr = tl.zeros((rows.shape[0], j.shape[0]), tl.float32)
    for n in range(nu):
        i = (n + 1) % (2 * dim)
        before = tl.where(j >= i, j - i, j - i + 2 * dim)
        after = tl.where(j + i < 2 * dim, j + i, j + i - 2 * dim)
        first = n * 2 * dim
        dr += _gather(dy_ptr, rows, first + j, width, inside) * _rectified(
            x_ptr, rows, before, dim, inside
        )
        dr += _gather(dy_ptr, rows, first + after, width, inside) * _rectified(
            x_ptr, rows, after, dim, inside
        )
    return dr


@triton.jit(do_not_specialize=["count", "nu"])
def _backward(
    x_ptr, dy_ptr, dx_ptr, linear, square, count, nu, width, dim: tl.int32,
    KIND: tl.constexpr, ROWS: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx of ROWS vectors, from the gradient dy of their features."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BD)
    inside = (rows < count)[:, None] & (cols < dim)[None, :]
    x = load_rows(x_ptr, rows, cols, dim, count, dim).to(tl.float32)
    if KIND == "elu":
        dy = _gather(dy_ptr, rows, cols, width, inside)
        dx = tl.where(x <= 0, dy * tl.exp(tl.minimum(x, 0.0)), dy)
    elif KIND == "relu":
        dx = tl.where(x <= 0, 0.0, _gather(dy_ptr, rows, cols, width, inside))
    elif KIND == "hedgehog":
        above, below = _halves(x_ptr, rows, cols, count, dim)
        of_above = _gather(dy_ptr, rows, cols, width, inside)
        of_below = _gather(dy_ptr, rows, dim + cols, width, inside)
        mean = tl.sum(above * of_above + below * of_below, 1)[:, None]
        dx = above * (of_above - mean) - below * (of_below - mean)
    elif KIND == "dpfp":
        above = _of_rectified(x_ptr, dy_ptr, rows, cols, nu, width, dim, inside)
        below = _of_rectified(x_ptr, dy_ptr, rows, dim + cols, nu, width, dim, inside)
        dx = tl.where(x > 0, above, 0.0) - tl.where(x < 0, below, 0.0)
    else:
        dx = _gather(dy_ptr, rows, 1 + cols, width, inside) * linear
        products = dy_ptr + 1 + dim
        for b in range(dim):
            other = tl.load(x_ptr + rows * dim + b, mask=rows < count, other=0.0).to(tl.float32)
            both = _gather(products, rows, cols * dim + b, width, inside)
            both += _gather(products, rows, b * dim + cols, width, inside)
            dx += both * (other[:, None] * square)
    store_rows(dx_ptr, dx, rows, cols, dim, count, dim)


def _width(kind: str, dim: int, nu: int) -> int:
    """F."""
    widths = {"hedgehog": 2 * dim, "dpfp": 2 * dim * nu, "taylor": 1 + dim + dim * dim}
    return widths.get(kind, dim)


def _factors(dim: int) -> tuple[float, float]:
    return dim**-0.25, 1 / math.sqrt(2 * dim)


def _forward_of(*, x: Tensor, kind: str, nu: int, tile: int) -> list[Tensor | None]:
    *sizes, dim = x.shape
    width = _width(kind, dim, nu)
    entry = tiles.TABLE["feature_map", "fused"][tile]
    y = x.new_empty(*sizes, width)
    count = x.numel() // dim
    BD = next_power_of_2(dim)
    parts = 1 if kind == "hedgehog" else cdiv(width, entry.features)
    _forward[(cdiv(count, entry.tokens) * parts,)](
        x.contiguous(), y, *_factors(dim), count, width, dim, KIND=kind, ROWS=entry.tokens,
        BD=BD, BF=next_power_of_2(width) if parts == 1 else entry.features,
        num_warps=entry.num_warps,
    )  # fmt: skip
    return [y]


def _backward_of(*, x: Tensor, kind: str, nu: int, tile: int, d0: Tensor) -> list[Tensor | None]:
    dim = x.shape[3]
    entry = tiles.TABLE["feature_map", "fused"][tile]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    count = x.numel() // dim
    _backward[(cdiv(count, entry.tokens),)](
        x.contiguous(), d0.contiguous(), dx, *_factors(dim), count, nu, _width(kind, dim, nu), dim,
        KIND=kind, ROWS=entry.tokens, BD=next_power_of_2(dim), num_warps=entry.num_warps,
    )  # fmt: skip
    return [dx]


def _shapes(given: Given) -> list[tuple[tuple[int, ...], torch.dtype]]:
    x = given["x"]
    width = _width(given["kind"], x.shape[3], given["nu"])
    return [((*x.shape[:3], width), x.dtype)]


_feature_map = differentiable("feature_map_fused", _forward_of, _backward_of, _shapes, outputs=1)


def compute(*, x: Tensor, kind: str, nu: int, tile: int) -> Any:
    check_choice("kind", kind, *KINDS)
    return _feature_map(x, kind, check_size("nu", nu), tile)


@fused(compute, widest=256, raises=["another kind", "a nu below 1"])
def feature_map(
    x: Float[Tensor, "B T H D"],
    kind: str,
    *,
    nu: int = 1,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H F"]:
    """Features of queries or keys, `reference.feature_map`."""
