"""Normalization of a layer's output, and its gate.

A program has some vectors. With n the normalized vector, r the inverse of its root, a = f(z) and

    y = (n w + b) a                      or, with the gate first,    y = n w + b of x a

    du = r (dn - n mean(n dn) - mean(dn)),    the last term for a mean that is taken away.
"""

from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_choice
from kernels.differentiable import differentiable, like_the_first
from kernels.fused import fused
from kernels.norm.l2norm import BAD_EPS, EPS, LIMIT, check_eps
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.rows import load_rows, store_rows
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def _gate(z, SILU: tl.constexpr):
    """f(z) and its derivative."""
    s = tl.sigmoid(z)
    # 1 - s, to the last digits.
    rest = tl.sigmoid(-z)
    if SILU:
        a = z * s
        slope = s * (1.0 + z * rest)
    else:
        a = s
        slope = s * rest
    return a, slope


@triton.jit
def _normalize(u, inside, dim, eps, CENTER: tl.constexpr):
    """n, and the inverse of the root by which it is divided."""
    if CENTER:
        u = tl.where(inside, u - (tl.sum(u, 1) / dim)[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(u * u, 1) / dim + eps)
    return u * inverse[:, None], inverse


@triton.jit(do_not_specialize=["count"])
def _forward(
    x_ptr, z_ptr, weight_ptr, bias_ptr, y_ptr, eps, count, dim: tl.int32,
    ROWS: tl.constexpr, BD: tl.constexpr, CENTER: tl.constexpr, SILU: tl.constexpr,
    FIRST: tl.constexpr,
):  # fmt: skip
    """y of ROWS vectors; FIRST if the gate comes before the norm."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BD)
    x = load_rows(x_ptr, rows, cols, dim, count, dim).to(tl.float32)
    z = load_rows(z_ptr, rows, cols, dim, count, dim).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=cols < dim, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=cols < dim, other=0.0)
    a, _ = _gate(z, SILU)
    u = x * a if FIRST else x
    n, _ = _normalize(u, (cols < dim)[None, :], dim, eps, CENTER)
    y = n * weight[None, :] + bias[None, :]
    if not FIRST:
        y *= a
    store_rows(y_ptr, y, rows, cols, dim, count, dim)


@triton.jit(do_not_specialize=["count"])
def _backward(
    x_ptr, z_ptr, weight_ptr, bias_ptr, dy_ptr, dx_ptr, dz_ptr, dweight_ptr, dbias_ptr,
    eps, count, dim: tl.int32,
    ROWS: tl.constexpr, BD: tl.constexpr, CENTER: tl.constexpr, SILU: tl.constexpr,
    FIRST: tl.constexpr,
):  # fmt: skip
    """dx and dz of ROWS vectors, and their parts of dweight and dbias."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BD)
    x = load_rows(x_ptr, rows, cols, dim, count, dim).to(tl.float32)
    z = load_rows(z_ptr, rows, cols, dim, count, dim).to(tl.float32)
    dy = load_rows(dy_ptr, rows, cols, dim, count, dim).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=cols < dim, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=cols < dim, other=0.0)
    a, slope = _gate(z, SILU)
    u = x * a if FIRST else x
    n, inverse = _normalize(u, (cols < dim)[None, :], dim, eps, CENTER)
    dz = dy * (n * weight[None, :] + bias[None, :]) * slope
    if not FIRST:
        dy *= a
    dn = dy * weight[None, :]
    du = dn - n * (tl.sum(n * dn, 1) / dim)[:, None]
    if CENTER:
        # Beside a large mean n is not quite centred either.
        du -= (tl.sum(du, 1) / dim)[:, None]
    du *= inverse[:, None]
    if FIRST:
        dz = du * x * slope
        du *= a
    store_rows(dx_ptr, du, rows, cols, dim, count, dim)
    store_rows(dz_ptr, dz, rows, cols, dim, count, dim)
    # Rows past the end have dy = 0.
    part = tl.program_id(0).to(tl.int64) * dim
    tl.store(dweight_ptr + part + cols, tl.sum(dy * n, 0), mask=cols < dim)
    tl.store(dbias_ptr + part + cols, tl.sum(dy, 0), mask=cols < dim)


def _blocks(x: Tensor, tile: int) -> dict[str, int]:
    entry = tiles.TABLE["rms_norm_gated", "fused"][tile]
    BD = next_power_of_2(x.shape[-1])
    return {"ROWS": entry.tokens, "BD": BD, "num_warps": entry.num_warps}


def _filled(x: Tensor, p: Tensor | None, value: float) -> Tensor:
    if p is None:
        return x.new_full(x.shape[-1:], value, dtype=torch.float32)
    return p.float().contiguous()


def _forward_of(
    *, x: Tensor, z: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, center: bool,
    silu: bool, gate_first: bool, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    x, z = contiguous(x, z)
    y, dim, blocks = torch.empty_like(x), x.shape[-1], _blocks(x, tile)
    count = x.numel() // dim
    _forward[(cdiv(count, blocks["ROWS"]),)](
        x, z, _filled(x, weight, 1.0), _filled(x, bias, 0.0), y, eps, count, dim,
        CENTER=center, SILU=silu, FIRST=gate_first, **blocks,
    )  # fmt: skip
    return [y]


def _backward_of(
    *, x: Tensor, z: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, center: bool,
    silu: bool, gate_first: bool, tile: int, d0: Tensor,
) -> list[Tensor | None]:  # fmt: skip
    x, z, dy = contiguous(x, z, d0)
    dx, dz, dim, blocks = torch.empty_like(x), torch.empty_like(z), x.shape[-1], _blocks(x, tile)
    count = x.numel() // dim
    parts = cdiv(count, blocks["ROWS"])
    dweight, dbias = (empty_parts(parts, (dim,), torch.float32, x.device) for _ in range(2))
    _backward[(parts,)](
        x, z, _filled(x, weight, 1.0), _filled(x, bias, 0.0), dy, dx, dz, dweight, dbias,
        eps, count, dim, CENTER=center, SILU=silu, FIRST=gate_first, **blocks,
    )  # fmt: skip
    return [
        dx,
        dz,
        None if weight is None else add_parts(dweight, weight.dtype).to(weight.dtype),
        None if bias is None else add_parts(dbias, bias.dtype).to(bias.dtype),
    ]


_norm = differentiable("gated_norm_fused", _forward_of, _backward_of, like_the_first, outputs=1)


def _checked(
    *, x: Tensor, z: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
    activation: str, gate_first: bool, center: bool, tile: int,
) -> Tensor:  # fmt: skip
    check_eps(eps)
    check_choice("activation", activation, "silu", "sigmoid")
    silu = activation == "silu"
    return _norm(x, z, weight, bias, float(eps), center, silu, gate_first, tile)


def root_mean_square(**given) -> Tensor:
    return _checked(bias=None, center=False, **given)


def deviation(**given) -> Tensor:
    return _checked(center=True, **given)


_RAISES = (BAD_EPS, "another activation")


@fused(root_mean_square, about=LIMIT, widest=256, same_dtype=("x", "z"), raises=_RAISES)
def rms_norm_gated(
    x: Float[Tensor, "B T H D"],
    z: Float[Tensor, "B T H D"],
    weight: Float[Tensor, "D"] | None = None,
    *,
    eps: float = EPS,
    activation: Literal["silu", "sigmoid"] = "silu",
    gate_first: bool = False,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H D"]:
    """Divide every vector by its root mean square, and gate it, `reference.rms_norm_gated`."""


@fused(
    deviation,
    about=LIMIT,
    wraps="rms_norm_gated",
    widest=256,
    same_dtype=("x", "z"),
    raises=_RAISES,
)
def layer_norm_gated(
    x: Float[Tensor, "B T H D"],
    z: Float[Tensor, "B T H D"],
    weight: Float[Tensor, "D"] | None = None,
    bias: Float[Tensor, "D"] | None = None,
    *,
    eps: float = EPS,
    activation: Literal["silu", "sigmoid"] = "silu",
    gate_first: bool = False,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H D"]:
    """Shift every vector to mean 0, divide it by its deviation, and gate it,
    `reference.layer_norm_gated`: the kernel of `rms_norm_gated`.
    """
