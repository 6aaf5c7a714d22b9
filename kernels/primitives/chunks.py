"""Where a chunk of tokens is, in a dense batch and in a packed one."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tiles import cdiv


class Chunks(NamedTuple):
    """How the tokens of N sequences are cut into chunks.

    Args:
        count: chunks to launch, an upper bound when packed: the true number is on the device.
        sequences: N.
        cu_seqlens: `[N+1]` int64, or None for a dense batch.
        starts: first chunk of each sequence `[N+1]` int64, or None for a dense batch.
        table: (first row, rows left in its sequence, sequence, tokens before it in the sequence)
            of each chunk `[count, 4]` int64; zeros past the last chunk. None for a dense batch.
    """

    count: int
    sequences: int
    cu_seqlens: Tensor | None
    starts: Tensor | None
    table: Tensor | None


def cut(batch: int, tokens: int, cu_seqlens: Tensor | None, length: int) -> Chunks:
    """Cut `[batch, tokens]` rows, or the packed sequences of `cu_seqlens`, in chunks of `length`.

    Packed, the tables are computed where `cu_seqlens` lives, without waiting for it: a sequence has
    at most one chunk that is not full, which bounds their number.
    """
    if cu_seqlens is None:
        return Chunks(batch * cdiv(tokens, length), batch, None, None, None)
    sequences = cu_seqlens.shape[0] - 1
    count = tokens // length + sequences
    bounds = cu_seqlens.long()
    starts = torch.zeros_like(bounds)
    torch.cumsum((bounds.diff() + (length - 1)) // length, 0, out=starts[1:])
    chunk = torch.arange(count, device=bounds.device)
    sequence = torch.searchsorted(starts[1:], chunk, right=True)
    before = (chunk - starts[sequence]) * length
    first = bounds[sequence] + before
    left = bounds[(sequence + 1).clamp(max=sequences)] - first
    columns = torch.stack([first, left, sequence, before])
    table = torch.where(sequence < sequences, columns, 0).T.contiguous()
    return Chunks(count, sequences, bounds, starts, table)


@triton.jit
def locate_chunk(chunk, table_ptr, tokens, C: tl.constexpr, PACKED: tl.constexpr):
    """The first row of a chunk in the flattened `[B·T]` axis (int64), and how many rows are left
    in its sequence from there, 0 for a program without a chunk."""
    if PACKED:
        first = tl.load(table_ptr + 4 * chunk)
        left = tl.load(table_ptr + 4 * chunk + 1).to(tl.int32)
    else:
        per_sequence = tl.cdiv(tokens, C)
        within = chunk % per_sequence
        first = (chunk // per_sequence).to(tl.int64) * tokens + within * C
        left = tokens - within * C
    return first, left


@triton.jit
def sequence_of_chunk(chunk, table_ptr, tokens, C: tl.constexpr, PACKED: tl.constexpr):
    """The sequence of a chunk (int64), and how many of its tokens come before."""
    if PACKED:
        sequence = tl.load(table_ptr + 4 * chunk + 2)
        before = tl.load(table_ptr + 4 * chunk + 3).to(tl.int32)
    else:
        per_sequence = tl.cdiv(tokens, C)
        sequence = (chunk // per_sequence).to(tl.int64)
        before = chunk % per_sequence * C
    return sequence, before


@triton.jit
def locate_sequence(
    sequence, starts_ptr, cu_seqlens_ptr, tokens, C: tl.constexpr, PACKED: tl.constexpr
):
    """The first row (int64), the length, and the first chunk (int64) of a sequence."""
    if PACKED:
        first = tl.load(cu_seqlens_ptr + sequence).to(tl.int64)
        length = (tl.load(cu_seqlens_ptr + sequence + 1) - first).to(tl.int32)
        first_chunk = tl.load(starts_ptr + sequence)
    else:
        first = sequence.to(tl.int64) * tokens
        length = tokens
        first_chunk = sequence.to(tl.int64) * tl.cdiv(tokens, C)
    return first, length, first_chunk
