"""Means over the chunks of each sequence.

A program has some channels of a chunk, and walks its tokens.
"""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kernels import tiles
from kernels.arguments import (
    check_boundaries,
    check_chunk_size,
)
from kernels.differentiable import Given, differentiable
from kernels.fused import fused
from kernels.primitives.chunks import cut, locate_chunk
from kernels.primitives.rows import load_row, load_rows, store_rows
from kernels.tiles import cdiv, next_power_of_2


@triton.jit(do_not_specialize=["sequences", "tokens"])
def _pool(
    x_ptr, y_ptr, cu_seqlens_ptr, firsts_ptr, sequences, tokens, dim: tl.int32,
    C: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BACKWARD: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Write the mean of each chunk of x to y; if BACKWARD, the gradient x from that of y."""
    parts = tl.cdiv(dim, BD)
    chunk = tl.program_id(0) // parts
    first, left, sequence, before = locate_chunk(
        chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED
    )
    if left <= 0:
        return
    count = tl.minimum(left, C)
    if PACKED:
        row = tl.load(firsts_ptr + sequence) + before // C
    else:
        row = chunk.to(tl.int64)
    cols = (tl.program_id(0) % parts) * BD + tl.arange(0, BD)
    x_ptr += first * dim
    if BACKWARD:
        mean = load_row(y_ptr, row, dim, cols, cols < dim) / count
        each = tl.broadcast_to(mean[None, :], (BT, BD))
        for start in range(0, count, BT):
            t = (start + tl.arange(0, BT)).to(tl.int64)
            store_rows(x_ptr, each, t, cols, dim, count, dim)
    else:
        total = tl.zeros((BD,), tl.float32)
        for start in range(0, count, BT):
            t = (start + tl.arange(0, BT)).to(tl.int64)
            total += tl.sum(load_rows(x_ptr, t, cols, dim, count, dim).to(tl.float32), 0)
        tl.store(y_ptr + row * dim + cols, total / count, mask=cols < dim)


def _counts(cu_seqlens: Tensor, chunk: int) -> Tensor:
    """Chunks of each sequence, int64."""
    return (cu_seqlens.diff() + chunk - 1) // chunk


def _launch(
    x: Tensor, y: Tensor, cu_seqlens: Tensor | None, chunk: int, tile: int, *, backward: bool
) -> None:
    batch, tokens, heads, width = x.shape
    entry = tiles.TABLE["mean_pooling", "fused"][tile]
    dim = heads * width
    features = min(entry.features, next_power_of_2(max(dim, 1)))
    chunks = cut(batch, tokens, cu_seqlens, chunk)
    firsts = None
    if cu_seqlens is not None:
        counts = _counts(cu_seqlens, chunk)
        firsts = counts.cumsum(0) - counts
    _pool[(chunks.count * cdiv(dim, features),)](
        x, y, cu_seqlens, firsts, chunks.sequences, tokens, dim, C=chunk, BT=entry.tokens,
        BD=features, BACKWARD=backward, PACKED=cu_seqlens is not None, num_warps=entry.num_warps,
    )  # fmt: skip


def _forward_of(
    *, x: Tensor, cu_seqlens: Tensor | None, chunk: int, tile: int
) -> list[Tensor | None]:
    check_boundaries("cu_seqlens", cu_seqlens, x.shape[1])
    batch, tokens, *row = x.shape
    count = cdiv(tokens, chunk)
    if cu_seqlens is not None:
        count = int(_counts(cu_seqlens, chunk).sum())
    y = x.new_empty(batch, count, *row)
    _launch(x.contiguous(), y, cu_seqlens, chunk, tile, backward=False)
    return [y]


def _backward_of(
    *, x: Tensor, cu_seqlens: Tensor | None, chunk: int, tile: int, d0: Tensor
) -> list[Tensor | None]:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(dx, d0.contiguous(), cu_seqlens, chunk, tile, backward=True)
    return [dx, None]


def _shapes(given: Given) -> list[tuple[tuple[int, ...], torch.dtype]]:
    x = given["x"]
    count = cdiv(x.shape[1], given["chunk"])
    if given["cu_seqlens"] is not None:
        # It depends on the values of the boundaries.
        count = torch.library.get_ctx().new_dynamic_size()
    return [((x.shape[0], count, *x.shape[2:]), x.dtype)]


_mean_pooling = differentiable("mean_pooling_fused", _forward_of, _backward_of, _shapes, outputs=1)


def compute(*, chunk_size: int, **given: Any) -> Tensor:
    return _mean_pooling(chunk=check_chunk_size(chunk_size), **given)


@fused(compute, about="A mean is rounded once.", raises=["a chunk_size below 1"])
def mean_pooling(
    x: Float[Tensor, "B T H D"],
    chunk_size: int,
    *,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B M H D"]:
    """The mean of each chunk, `reference.mean_pooling`. Each chunk size is another kernel."""
