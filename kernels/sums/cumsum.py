"""Running sums over tokens, of a sequence or of its chunks.

A program has some channels of a chunk, or of a sequence, and walks its tokens. The gradient of x is
the sum of that of y the other way.
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
from kernels.differentiable import differentiable, like_the_first
from kernels.fused import fused
from kernels.primitives.chunks import cut, locate_chunk, locate_sequence
from kernels.primitives.rows import load_rows, store_rows
from kernels.tiles import cdiv, next_power_of_2


@triton.jit(do_not_specialize=["sequences", "tokens"])
def _walk(
    x_ptr, y_ptr, cu_seqlens_ptr, sequences, tokens, dim: tl.int32,
    C: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, REVERSE: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Write the running sums of each chunk of C tokens, or if C is 0 of each sequence."""
    parts = tl.cdiv(dim, BD)
    part = tl.program_id(0) // parts
    if C == 0:
        first, count, _ = locate_sequence(part.to(tl.int64), cu_seqlens_ptr, tokens, 1, PACKED)
    else:
        first, left, _, _ = locate_chunk(part, cu_seqlens_ptr, sequences, tokens, C, PACKED)
        count = tl.minimum(left, C)
    cols = (tl.program_id(0) % parts) * BD + tl.arange(0, BD)
    carry = tl.zeros((BD,), tl.float32)
    for start in range(0, count, BT):
        t = start + tl.arange(0, BT)
        # Rows past the end, and before the start, are not there.
        row = tl.where(t < count, count - 1 - t, count) if REVERSE else t
        x_rows = x_ptr + first * dim
        x = load_rows(x_rows, row.to(tl.int64), cols, dim, count, dim).to(tl.float32)
        y = carry[None, :] + tl.cumsum(x, 0)
        store_rows(y_ptr + first * dim, y, row.to(tl.int64), cols, dim, count, dim)
        carry += tl.sum(x, 0)


def _sums(x: Tensor, cu_seqlens: Tensor | None, chunk: int, reverse: bool, tile: int) -> Tensor:
    x = x.contiguous()
    batch, tokens, dim = x.shape
    entry, y = tiles.TABLE["cumsum", "fused"][tile], torch.empty_like(x)
    features = min(entry.features, next_power_of_2(dim))
    chunks = cut(batch, tokens, cu_seqlens, chunk or 1)
    count = chunks.count if chunk else chunks.sequences
    _walk[(count * cdiv(dim, features),)](
        x, y, cu_seqlens, chunks.sequences, tokens, dim, C=chunk, BT=entry.tokens, BD=features,
        REVERSE=reverse, PACKED=cu_seqlens is not None, num_warps=entry.num_warps,
    )  # fmt: skip
    return y


def _forward_of(
    *, x: Tensor, cu_seqlens: Tensor | None, chunk: int, reverse: bool, tile: int
) -> list[Tensor | None]:
    check_boundaries("cu_seqlens", cu_seqlens, x.shape[1])
    return [_sums(x, cu_seqlens, chunk, reverse, tile)]


def _backward_of(
    *, x: Tensor, cu_seqlens: Tensor | None, chunk: int, reverse: bool, tile: int, d0: Tensor
) -> list[Tensor | None]:
    return [_sums(d0, cu_seqlens, chunk, not reverse, tile), None]


_cumsum = differentiable("cumsum_fused", _forward_of, _backward_of, like_the_first, outputs=1)


def compute(*, chunk_size: int | None, **given: Any) -> Tensor:
    chunk = 0 if chunk_size is None else check_chunk_size(chunk_size)
    return _cumsum(chunk=chunk, **given)


@fused(compute, about="A sum is rounded once.", raises=["a chunk_size below 1"])
def cumsum(
    x: Float[Tensor, "B T D"],
    *,
    chunk_size: int | None = None,
    reverse: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T D"]:
    """Running sums over tokens, `reference.cumsum`. Each chunk size is another kernel."""
