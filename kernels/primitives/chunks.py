"""The places of sequences and of their chunks of tokens, in a dense batch and in a packed one."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import count_sequences
from kernels.tiles import cdiv


class Chunks(NamedTuple):
    """How the tokens of N sequences are cut into chunks.

    Args:
        count: chunks to launch. Packed, some of them are empty.
        sequences: N.
        cu_seqlens: `[N+1]`, int64, or None for a dense batch.
    """

    count: int
    sequences: int
    cu_seqlens: Tensor | None


def cut(batch: int, tokens: int, cu_seqlens: Tensor | None, length: int) -> Chunks:
    """Cut `[batch, tokens]` rows, or the packed sequences of `cu_seqlens`, in chunks of `length`.

    Packed, the chunks of a sequence are numbered from `cu_seqlens[n] // length + n` on, which
    takes no sum over the sequences before it: as floor(a/C) + ceil(b/C) <= floor((a+b)/C) + 1,
    those of the next one start after its last.
    """
    if cu_seqlens is None:
        return Chunks(batch * cdiv(tokens, length), batch, None)
    sequences = count_sequences(batch, cu_seqlens)
    return Chunks(tokens // length + sequences, sequences, cu_seqlens)


@triton.jit
def locate_sequence(sequence, cu_seqlens_ptr, tokens, C, PACKED: tl.constexpr):
    """The first row of a sequence in the flattened `[B·T]` axis (int64), its length, and its first
    chunk (int64).
    """
    if PACKED:
        first = tl.load(cu_seqlens_ptr + sequence)
        length = (tl.load(cu_seqlens_ptr + sequence + 1) - first).to(tl.int32)
        first_chunk = first // C + sequence
    else:
        first = sequence.to(tl.int64) * tokens
        length = tokens
        first_chunk = sequence.to(tl.int64) * tl.cdiv(tokens, C)
    return first, length, first_chunk


@triton.jit
def locate_in_batch(sequence, cu_seqlens_ptr, tokens, PACKED: tl.constexpr):
    """The batch entry and the first token of a sequence, both int64, and its length.

    For tensors `[B, T, ...]` of any strides; `locate_sequence` is for contiguous ones.
    """
    if PACKED:
        batch = tl.full((), 0, tl.int64)
        start = tl.load(cu_seqlens_ptr + sequence)
        length = (tl.load(cu_seqlens_ptr + sequence + 1) - start).to(tl.int32)
    else:
        batch = sequence.to(tl.int64)
        start = tl.full((), 0, tl.int64)
        length = tokens
    return batch, start, length


@triton.jit
def locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED: tl.constexpr):
    """Where a chunk is: its first row in the flattened `[B·T]` axis (int64), how many rows are left
    in its sequence from there, its sequence (int64), and how many of its tokens come before.

    An empty chunk is at the end of its sequence, with 0 rows left.
    """
    if PACKED:
        # The last sequence of those whose first chunk is this one or comes before it.
        sequence = tl.zeros((), tl.int64)
        end = sequence + sequences
        while end - sequence > 1:
            middle = (sequence + end) // 2
            _, _, first_chunk = locate_sequence(middle, cu_seqlens_ptr, tokens, C, PACKED)
            after = first_chunk > chunk
            sequence = tl.where(after, sequence, middle)
            end = tl.where(after, middle, end)
        first, length, first_chunk = locate_sequence(sequence, cu_seqlens_ptr, tokens, C, PACKED)
        before = tl.minimum((chunk - first_chunk).to(tl.int32) * C, length)
        first += before
        left = length - before
    else:
        per_sequence = tl.cdiv(tokens, C)
        sequence = (chunk // per_sequence).to(tl.int64)
        before = chunk % per_sequence * C
        first = sequence * tokens + before
        left = tokens - before
    return first, left, sequence, before


@triton.jit
def locate_section(
    section, cu_seqlens_ptr, sequences, tokens, C, SECTION: tl.constexpr, PACKED: tl.constexpr
):  # fmt: skip
    """The first row (int64), the length, and the first chunk (int64) of a section of SECTION
    tokens, which are numbered like chunks; of a sequence where SECTION is 0."""
    if SECTION == 0:
        return locate_sequence(section, cu_seqlens_ptr, tokens, C, PACKED)
    first, left, sequence, before = locate_chunk(
        section, cu_seqlens_ptr, sequences, tokens, SECTION, PACKED
    )
    _, _, first_chunk = locate_sequence(sequence, cu_seqlens_ptr, tokens, C, PACKED)
    return first, tl.minimum(left, SECTION), first_chunk + before // C
