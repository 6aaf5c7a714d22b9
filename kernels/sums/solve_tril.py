"""The inverses of the unit triangles that delta rules solve, one for each chunk of tokens.

A program has the chunk of a head. The gradient is `dA = -Xᵀ dX Xᵀ` below the diagonal.
"""

from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kernels import tiles
from kernels.arguments import (
    check_boundaries,
    check_range,
)
from kernels.differentiable import differentiable, like_the_first
from kernels.fused import fused
from kernels.primitives.chunks import cut, locate_chunk
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows
from kernels.primitives.triangular import inverse_unit_lower
from kernels.tiles import next_power_of_2


@triton.jit(do_not_specialize=["sequences", "tokens"])
def _invert(
    A_ptr, X_ptr, dX_ptr, dA_ptr, cu_seqlens_ptr, sequences, tokens, heads,
    C: tl.constexpr, BC: tl.constexpr, BACKWARD: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """X of one chunk of a head, or if BACKWARD dA."""
    head = tl.program_id(0) % heads
    first, left, _, _ = locate_chunk(
        tl.program_id(0) // heads, cu_seqlens_ptr, sequences, tokens, C, PACKED
    )  # fmt: skip
    left = tl.minimum(left, C)
    row = tl.arange(0, BC)
    stride = heads * C
    offset = (first * heads + head) * C
    below = row[:, None] > row[None, :]
    A = load_rows(A_ptr + offset, row.to(tl.int64), row, stride, left, C).to(tl.float32)
    X = inverse_unit_lower(tl.where(below, A, 0.0), BC, tl.float32)
    if BACKWARD:
        dX = load_rows(dX_ptr + offset, row.to(tl.int64), row, stride, left, C).to(tl.float32)
        dX = tl.where(below, dX, 0.0)
        dA = product(tl.trans(X), dX, tl.float32, FINE_A=True, FINE_B=True)
        dA = -product(dA, tl.trans(X), tl.float32, FINE_A=True, FINE_B=True)
        dA = tl.where(below, dA, 0.0)
        store_rows(dA_ptr + offset, dA, row.to(tl.int64), row, stride, left, C)
    else:
        store_rows(X_ptr + offset, X, row.to(tl.int64), row, stride, left, C)


def _launch(A: Tensor, dX: Tensor | None, cu_seqlens: Tensor | None, tile: int) -> Tensor:
    A = A.contiguous()
    batch, tokens, heads, C = A.shape
    made, entry = torch.empty_like(A), tiles.TABLE["solve_tril", "fused"][tile]
    chunks = cut(batch, tokens, cu_seqlens, C)
    dX = made if dX is None else dX.contiguous()
    backward = dX is not made
    _invert[(chunks.count * heads,)](
        A, made, dX, made, cu_seqlens, chunks.sequences, tokens, heads, C=C,
        BC=max(16, next_power_of_2(C)), BACKWARD=backward, PACKED=cu_seqlens is not None,
        num_warps=entry.num_warps,
    )  # fmt: skip
    return made


def _forward_of(*, A: Tensor, cu_seqlens: Tensor | None, tile: int) -> list[Tensor | None]:
    check_boundaries("cu_seqlens", cu_seqlens, A.shape[1])
    return [_launch(A, None, cu_seqlens, tile)]


def _backward_of(
    *, A: Tensor, cu_seqlens: Tensor | None, tile: int, d0: Tensor
) -> list[Tensor | None]:
    return [_launch(A, d0, cu_seqlens, tile), None]


_solve = differentiable("solve_tril_fused", _forward_of, _backward_of, like_the_first, outputs=1)


def compute(*, A: Tensor, cu_seqlens: Tensor | None, tile: int) -> Tensor:
    check_range("C (the last dim of A)", A.shape[3], 1, 64)
    return _solve(A, cu_seqlens, tile)


@fused(
    compute, output="X", about="C is 1 to 64, each another kernel.", raises=["C outside 1 to 64"]
)
def solve_tril(
    A: Float[Tensor, "B T H C"],
    *,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H C"]:
    """The inverse of a unit lower triangle for each chunk of C tokens, `reference.solve_tril`."""
