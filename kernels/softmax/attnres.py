"""Attention residuals: a softmax over the sources of each token, and its weighted sum.

A program has some tokens. With r_l the inverse of the root of source l, c = query ∘ weight and
t_l = Σ_d x_ld c_d, a logit is scale r_l t_l, and with du the cotangent of the weighted sum

    ds   = scale p ∘ (dp - Σ p dp),    dp_l = Σ_d du_d x_ld + dweights_l
    dx_l = p_l du + ds_l r_l (c - r_l² t_l x_l / D)
    dc   = Σ_l ds_l r_l x_l            over all tokens
"""

from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import bind_dims, check_dtype, check_flags, check_one_dtype, check_range
from kernels.differentiable import Given, differentiable
from kernels.modes import check_mode
from kernels.norm.l2norm import BAD_EPS, check_eps
from kernels.op import op
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.rows import load_rows, store_rows
from kernels.scale import BAD_SCALE, resolve_scale
from kernels.tiles import cdiv, next_power_of_2

_LOG2E = tl.constexpr(1.4426950408889634)
MAX_DIM = 8192


@triton.jit
def _pick(x, source):
    """Return the column of one source, of a tile with a column for each."""
    return tl.sum(tl.where(tl.arange(0, x.shape[1])[None, :] == source, x, 0.0), 1)[:, None]


@triton.jit
def _softmax(
    x_ptr, c, rows, cols, scale, eps, count, sources, dim, ROWS: tl.constexpr, BL: tl.constexpr
):
    """p, r and t of all sources, `[ROWS, BL]`."""
    at = tl.arange(0, BL)[None, :]
    products = tl.zeros((ROWS, BL), tl.float32)
    inverse = tl.zeros((ROWS, BL), tl.float32)
    for source in range(sources):
        x = load_rows(x_ptr + source * dim, rows, cols, sources * dim, count, dim).to(tl.float32)
        root = tl.sqrt(tl.sum(x * x, 1) / dim + eps)
        inverse = tl.where(at == source, (1.0 / root)[:, None], inverse)
        products = tl.where(at == source, tl.sum(x * c[None, :], 1)[:, None], products)
    s = tl.where(at < sources, scale * (inverse * products), float("-inf"))
    p = tl.exp2((s - tl.max(s, 1)[:, None]) * _LOG2E)
    return p / tl.sum(p, 1)[:, None], inverse, products


@triton.jit
def _mix(x_ptr, p, rows, cols, count, sources, dim, ROWS: tl.constexpr, BD: tl.constexpr):
    """Σ_l p_l x_l."""
    u = tl.zeros((ROWS, BD), tl.float32)
    for source in range(sources):
        x = load_rows(x_ptr + source * dim, rows, cols, sources * dim, count, dim).to(tl.float32)
        u += _pick(p, source) * x
    return u


@triton.jit(do_not_specialize=["count", "sources"])
def _forward(
    x_ptr, query_ptr, weight_ptr, last_ptr, o_ptr, p_ptr, scale, eps, count, sources,
    dim: tl.int32, WEIGHTS: tl.constexpr, ROWS: tl.constexpr, BL: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """o of ROWS tokens, and p if WEIGHTS."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BD)
    c = tl.load(query_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
    c *= tl.load(weight_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
    p, _, _ = _softmax(x_ptr, c, rows, cols, scale, eps, count, sources, dim, ROWS, BL)
    o = _mix(x_ptr, p, rows, cols, count, sources, dim, ROWS, BD)
    if last_ptr is not None:
        last = tl.load(last_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
        o = o * (1.0 / tl.sqrt(tl.sum(o * o, 1) / dim + eps))[:, None] * last[None, :]
    store_rows(o_ptr, o, rows, cols, dim, count, dim)
    if WEIGHTS:
        store_rows(p_ptr, p, rows, tl.arange(0, BL), sources, count, sources)


@triton.jit(do_not_specialize=["count", "sources"])
def _backward(
    x_ptr, query_ptr, weight_ptr, last_ptr, do_ptr, dp_ptr, dx_ptr, dc_ptr, dlast_ptr,
    scale, eps, count, sources, dim: tl.int32,
    ROWS: tl.constexpr, BL: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dx of ROWS tokens, and their parts of dc and of the gradient of the last weight."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BD)
    at = tl.arange(0, BL)
    part = tl.program_id(0).to(tl.int64) * dim
    c = tl.load(query_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
    c *= tl.load(weight_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
    p, inverse, products = _softmax(
        x_ptr, c, rows, cols, scale, eps, count, sources, dim, ROWS, BL
    )  # fmt: skip
    du = load_rows(do_ptr, rows, cols, dim, count, dim).to(tl.float32)
    if last_ptr is not None:
        last = tl.load(last_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
        n = _mix(x_ptr, p, rows, cols, count, sources, dim, ROWS, BD)
        root = tl.sqrt(tl.sum(n * n, 1) / dim + eps)[:, None]
        n /= root
        # Rows past the end have du = 0.
        tl.store(dlast_ptr + part + cols, tl.sum(du * n, 0), mask=cols < dim)
        du *= last[None, :]
        du = (du - n * (tl.sum(n * du, 1) / dim)[:, None]) / root

    dp = tl.zeros((ROWS, BL), tl.float32)
    if dp_ptr is not None:
        dp += load_rows(dp_ptr, rows, at, sources, count, sources)
    for source in range(sources):
        x = load_rows(x_ptr + source * dim, rows, cols, sources * dim, count, dim).to(tl.float32)
        dp += tl.where(at[None, :] == source, tl.sum(du * x, 1)[:, None], 0.0)
    ds = p * (dp - tl.sum(p * dp, 1)[:, None]) * scale * inverse
    # A cube of r underflows.
    along = inverse * (inverse * products) / dim
    dc = tl.zeros((BD,), tl.float32)
    for source in range(sources):
        x = load_rows(x_ptr + source * dim, rows, cols, sources * dim, count, dim).to(tl.float32)
        step = _pick(ds, source)
        dx = _pick(p, source) * du + step * (c[None, :] - _pick(along, source) * x)
        store_rows(dx_ptr + source * dim, dx, rows, cols, sources * dim, count, dim)
        dc += tl.sum(step * x, 0)
    tl.store(dc_ptr + part + cols, dc, mask=cols < dim)


def _sizes(x: Tensor, tile: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    """(tokens, sources, D), and the blocks of a launch."""
    batch, tokens, sources, dim = x.shape
    entry = tiles.TABLE["attnres", "fused"][tile]
    blocks = {"BL": next_power_of_2(sources), "BD": next_power_of_2(dim)}
    blocks |= {"ROWS": entry.tokens, "num_warps": entry.num_warps}
    return (batch * tokens, sources, dim), blocks


def _forward_of(
    *, x: Tensor, query: Tensor, weight: Tensor, output_weight: Tensor | None, scale: float,
    eps: float, return_weights: bool, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    x, query, weight, last = contiguous(x, query, weight, output_weight)
    sizes, blocks = _sizes(x, tile)
    o = x.new_empty(*x.shape[:2], x.shape[3])
    p = x.new_empty(x.shape[:3], dtype=torch.float32) if return_weights else None
    _forward[(cdiv(sizes[0], blocks["ROWS"]),)](
        x, query, weight, last, o, p, scale, eps, *sizes, WEIGHTS=return_weights, **blocks
    )
    return [o, p]


def _backward_of(
    *, x: Tensor, query: Tensor, weight: Tensor, output_weight: Tensor | None, d0: Tensor,
    d1: Tensor | None, scale: float, eps: float, return_weights: bool, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    x, query, weight, last, do, dp = contiguous(x, query, weight, output_weight, d0, d1)
    sizes, blocks = _sizes(x, tile)
    parts = cdiv(sizes[0], blocks["ROWS"])
    dx = torch.empty_like(x)
    dc, dlast = (empty_parts(parts, sizes[2:], torch.float32, x.device) for _ in range(2))
    _backward[(parts,)](x, query, weight, last, do, dp, dx, dc, dlast, scale, eps, *sizes, **blocks)
    dc = add_parts(dc, torch.float32)
    return [
        dx,
        (dc * weight).to(query.dtype),
        (dc * query).to(weight.dtype),
        None if last is None else add_parts(dlast, torch.float32).to(last.dtype),
    ]


def _shapes(given: Given) -> list[tuple[tuple[int, ...], torch.dtype]]:
    x = given["x"]
    weights = tuple(x.shape[:3]) if given["return_weights"] else (0,)
    return [((*x.shape[:2], x.shape[3]), x.dtype), (weights, torch.float32)]


_attnres = differentiable("attnres_fused", _forward_of, _backward_of, _shapes, outputs=2)


def compute(
    *, x: Tensor, query: Tensor, weight: Tensor, output_weight: Tensor | None,
    scale: float | None, eps: float, return_weights: bool, mode: str, tile: int | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    sizes = bind_dims(
        x=(x, "B T L D"),
        query=(query, "D"),
        weight=(weight, "D"),
        output_weight=(output_weight, "D"),
    )
    dtype = check_one_dtype(x=x)
    for name, each in (("query", query), ("weight", weight), ("output_weight", output_weight)):
        check_dtype(name, each, dtype, torch.float32)
    check_range("L (the sources of x)", sizes["L"], 1, 256)
    check_range("D (the last dim of x)", sizes["D"], 1, MAX_DIM)
    check_eps(eps)
    check_flags(return_weights=return_weights)
    check_mode(mode, "fused")
    tile = tiles.choose("attnres", "fused", dim=sizes["D"], dtype=dtype, device=x.device, tile=tile)
    scale = resolve_scale(scale, sizes["D"])
    o: Tensor
    weights: Tensor
    o, weights = _attnres(x, query, weight, output_weight, scale, float(eps), return_weights, tile)
    return o, weights if return_weights else None


@op(
    compute,
    outputs=("o", "weights"),
    about=f"Differentiable once. Sums are float32. L is 1 to 256, and D 1 to {MAX_DIM}.",
    texts={
        "o": "in the dtype of x, contiguous.",
        "weights": "float32; None unless `return_weights`.",
    },
    raises=(
        f"L outside 1 to 256 or D outside 1 to {MAX_DIM}",
        BAD_SCALE,
        BAD_EPS,
    ),
)
def attnres(
    x: Float[Tensor, "B T L D"],
    query: Float[Tensor, "D"],
    weight: Float[Tensor, "D"],
    *,
    output_weight: Float[Tensor, "D"] | None = None,
    scale: float | None = 1.0,
    eps: float = 1e-6,
    return_weights: bool = False,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T L"] | None]:
    """Mix the outputs of earlier layers by a softmax over depth, `reference.attnres`."""
