"""Rows of q and k, from which chunks compute states and outputs, with gates per channel applied.

A separate kernel applies gates per channel before the states: it computes `exp(P) ∘ q`,
`exp(R) ∘ k`, `exp(P_C)` and A once (in the notation of `kernels.linear.chunk`), where each slice of
the values would compute them again. The rows that go into states stay in float32: a state is
rounded already, and so is its reader.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.linear.tiles import blocks, tile_of
from kernels.primitives.chunks import Chunks, locate_chunk
from kernels.primitives.decay import (
    chunk_span,
    chunk_span_transposed,
    decay,
    decay_of_chunk,
    level_pairs,
    level_queries,
    level_span,
    level_span_transposed,
    load_gates,
    load_sides,
    split_diagonal,
    sum_gradients,
    symmetric,
)
from kernels.primitives.pieces import elements, empty_pieces, store_pieces
from kernels.primitives.product import TRITON_DTYPES, product
from kernels.primitives.rows import load_rows, store_rows
from kernels.tiles import Entry


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _within(
    q_ptr, k_ptr, g_ptr, e_ptr, q_out_ptr, k_out_ptr, e_out_ptr, passed_ptr, scores_ptr,
    overlaps_ptr, cu_seqlens_ptr,
    scale, sequences, tokens, heads, key_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, LEVELS: tl.constexpr,
    DELTA: tl.constexpr, EXCLUSIVE: tl.constexpr, PACKED: tl.constexpr,
    FINE: tl.constexpr = False,
):  # fmt: skip
    """Apply gates per channel within one chunk of a head: decay q from the start of the chunk and k
    to its end, and compute the scores A. q and A get the scale. If FINE, no operand of A is rounded
    to bfloat16, nor are the decayed rows.

    With a delta rule (see `kernels.delta.chunk`) the readers e decay like q, and their overlaps
    with keys are computed beside A, below the diagonal. Where readers are EXCLUSIVE, so is q, whose
    rows have no gates.
    """
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    head = tl.program_id(0) % heads
    chunk = tl.program_id(0) // heads
    first, left, _, _ = locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED)
    rows = tl.arange(0, C)
    stride = heads * key_dim
    offset = (first * heads + head) * key_dim
    q_ptr += offset
    k_ptr += offset
    g_ptr += offset
    q_out_ptr += offset
    k_out_ptr += offset
    if DELTA:
        e_ptr += offset
        e_out_ptr += offset
    cell = chunk.to(tl.int64) * heads + head
    piece_stride = elements(sequences, tokens, stride, PACKED)

    scores = tl.zeros([C, C], tl.float32)
    overlaps = tl.zeros([C, C], tl.float32)
    diagonal = tl.zeros([C], tl.float32)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        g = load_gates(g_ptr, rows, keys, stride, left, key_dim)
        q = load_rows(q_ptr, rows, keys, stride, left, key_dim)
        k = load_rows(k_ptr, rows, keys, stride, left, key_dim)
        diagonal += tl.sum(q.to(tl.float32) * k, 1)
        from_start = decay(chunk_span(0, C, EXCLUSIVE), g, DTYPE)
        q_decayed = q * from_start * scale
        if FINE:
            store_pieces(q_out_ptr, piece_stride, q_decayed, rows, keys, stride, left, key_dim)
        else:
            store_rows(q_out_ptr, q_decayed, rows, keys, stride, left, key_dim)
        if DELTA:
            e = load_rows(e_ptr, rows, keys, stride, left, key_dim)
            store_rows(e_out_ptr, e * from_start, rows, keys, stride, left, key_dim)
        to_end = decay(chunk_span(1, C), g, DTYPE)
        store_pieces(k_out_ptr, piece_stride, k * to_end, rows, keys, stride, left, key_dim)
        passed = decay_of_chunk(g, DTYPE)
        tl.store(passed_ptr + cell * key_dim + keys, passed, mask=keys < key_dim)
        # Gates are read once for all levels; with levels outside it took a sixth longer.
        for level in tl.range(LEVELS, disable_licm=True):
            readers = level_queries(level, C)
            pairs = level_pairs(level, C)
            decayed = decay(level_span(level, C, EXCLUSIVE), g, DTYPE)
            q = load_rows(q_ptr, rows, keys, stride, left, key_dim)
            if EXCLUSIVE:
                x = load_sides(e_ptr, k_ptr, readers, rows, keys, stride, left, key_dim)
            else:
                x = load_rows(k_ptr, rows, keys, stride, left, key_dim)
            X = x * decayed
            if DELTA:
                overlaps += tl.where(pairs, product(X, tl.trans(X), DTYPE), 0.0)
            of_level = product(q * decayed, tl.trans(X), DTYPE, FINE_A=FINE, FINE_B=FINE)
            scores += tl.where(pairs, of_level, 0.0)
    scores = tl.where(rows[:, None] == rows[None, :], diagonal[:, None], scores)
    scores = tl.where(rows[:, None] >= rows[None, :], scores, 0.0)
    store_rows(scores_ptr + cell * C * C, scores * scale, rows, rows, C, C, C)
    if DELTA:
        store_rows(overlaps_ptr + cell * C * C, overlaps, rows, rows, C, C, C)


@triton.jit
def through_channel_gates(
    q_ptr, k_ptr, g_ptr, e_ptr, de_decayed_ptr, doverlaps_ptr, dq, dk, dA, through,
    rows, keys, stride, left, key_dim, C: tl.constexpr, BK: tl.constexpr, LEVELS: tl.constexpr,
    DELTA: tl.constexpr, EXCLUSIVE: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """dq, dk, dg and de `[C, BK]` of rows that gates per channel decay.

    A gate gets from each exponent that it is in the gradient of that exponent: q ∘ dq or k ∘ dk of
    the part of dq, dk that came through it. At a level, one product gives both sides: the rows of
    the queries gather keys, those of the keys gather queries. The gates of a delta rule decay its
    readers e and their overlaps as well, whose gradients are given.

    Args:
        dq, dk: the gradients of the rows that are decayed from the start and to the end of the
            chunk.
        dA: that of the scores, `[C, C]`.
        through: `Σ_v S ∘ dS [BK]` of the state before the chunk and the gradient of that after it.

    Returns:
        dq, dk, dg, de; de is 0 unless readers are EXCLUSIVE: it is a part of dk.
    """
    g = load_gates(g_ptr, rows, keys, stride, left, key_dim)
    dg = tl.zeros([C, BK], tl.float32) + (through * decay_of_chunk(g, DTYPE))[None, :]
    de = tl.zeros([C, BK], tl.float32)
    # Two turns of one body, keys then queries: side by side they take too many registers.
    for turn in tl.range(2, disable_licm=True):
        reads = turn == 1
        decayed = decay(chunk_span(1 - turn, C, EXCLUSIVE), g, DTYPE)
        x = load_sides(q_ptr, k_ptr, reads, rows, keys, stride, left, key_dim)
        dx = tl.where(reads, dq, dk) * decayed
        dq = tl.where(reads, dx, dq)
        dk = tl.where(reads, dk, dx)
        terms = x * dx
        if DELTA:
            readers = tl.where(reads, left, 0)
            x = load_rows(e_ptr, rows, keys, stride, readers, key_dim)
            dx = load_rows(de_decayed_ptr, rows, keys, stride, readers, key_dim)
            dx *= decayed
            terms += x * dx
            if EXCLUSIVE:
                de += dx
            else:
                dk += dx
        dg += sum_gradients(chunk_span_transposed(1 - turn, C, EXCLUSIVE), terms, DTYPE)

    q = load_rows(q_ptr, rows, keys, stride, left, key_dim)
    k = load_rows(k_ptr, rows, keys, stride, left, key_dim)
    diagonal, dA = split_diagonal(rows, dA, DTYPE)
    dq += diagonal * k
    dk += diagonal * q
    if DELTA:
        doverlaps = symmetric(load_rows(doverlaps_ptr, rows, rows, C, C, C), DTYPE)
    for level in tl.range(LEVELS, disable_licm=True):
        readers = level_queries(level, C)
        decayed = decay(level_span(level, C, EXCLUSIVE), g, DTYPE)
        x = load_sides(q_ptr, k_ptr, readers, rows, keys, stride, left, key_dim)
        pairs = tl.where(level_pairs(level, C), dA, 0.0)
        dx = product(pairs, x * decayed, DTYPE) * decayed
        dq += tl.where(readers, dx, 0.0)
        dk += tl.where(readers, 0.0, dx)
        terms = x * dx
        if DELTA:
            if EXCLUSIVE:
                x = load_sides(e_ptr, k_ptr, readers, rows, keys, stride, left, key_dim)
            else:
                x = load_rows(k_ptr, rows, keys, stride, left, key_dim)
            pairs = tl.where(level_pairs(level, C), doverlaps, 0.0)
            dx = product(pairs, x * decayed, DTYPE) * decayed
            terms += x * dx
            if EXCLUSIVE:
                de += tl.where(readers, dx, 0.0)
                dk += tl.where(readers, 0.0, dx)
            else:
                dk += dx
        dg += sum_gradients(level_span_transposed(level, C, EXCLUSIVE), terms, DTYPE)
    return dq, dk, dg, de


@dataclass(frozen=True)
class Rows:
    """Rows of q and k, a token and head each, from which states and outputs are computed.

    Args:
        q, k: `[B, T, H, K]`, in `dtype`; with gates per channel `scale · exp(P) ∘ q` and
            `exp(R) ∘ k` in float32. Rows that only outputs read may be rounded as they round them.
        g: log decays of heads `[B, T, H]`, or None.
        scale: the factor that is still to be multiplied: 1 with gates per channel.
        chunks: how T is cut.
        dtype: of the inputs.
        passed: `exp(P_C) [chunks, H, K]` of gates per channel, or None.
        scores: `scale · A [chunks, H, C, C]` of gates per channel, or None.
    """

    q: Tensor
    k: Tensor
    g: Tensor | None
    scale: float
    chunks: Chunks
    dtype: torch.dtype
    passed: Tensor | None = None
    scores: Tensor | None = None

    def flags(self) -> dict[str, Any]:
        """The compile-time flags of the kernels that read it."""
        return {
            "DTYPE": TRITON_DTYPES[self.dtype],
            "USE_G": self.passed is not None,
            "USE_HEAD_G": self.g is not None,
            "PACKED": self.chunks.cu_seqlens is not None,
        }


def rows_of(
    q: Tensor,
    k: Tensor,
    g: Tensor | None,
    chunks: Chunks,
    *,
    scale: float,
    tile: Entry,
    reads_only: bool = False,
) -> Rows:
    """Make the rows of contiguous q, k and gates of any kind; see `decay_within`."""
    if g is not None and g.dim() == 4:
        return decay_within(q, k, g, chunks, scale=scale, tile=tile, reads_only=reads_only)[0]
    return Rows(q, k, g, scale, chunks, q.dtype)


def decay_within(
    q: Tensor,
    k: Tensor,
    g: Tensor,
    chunks: Chunks,
    *,
    scale: float,
    tile: Entry,
    reads_only: bool,
    e: Tensor | None = None,
    fine: bool = False,
    pieces: bool = False,
) -> tuple[Rows, Tensor | None, Tensor | None]:
    """The rows of q and k, decayed by gates per channel. For a delta rule with readers
    `e [B, T, H, K]` also `exp(P) ∘ e` and the overlaps `[chunks, H, C, C]` in float32, valid below
    the diagonal.

    Args:
        reads_only: q and e enter products alone, which round them, and no states.
        fine: A is an exponent, and its operands are not rounded. The decayed keys are in pieces,
            see `primitives.pieces`.
        pieces: then so are the decayed queries.
    """
    heads, key_dim, length = q.shape[2], q.shape[3], tile.tokens
    reads_dtype = workspace_dtype(q.dtype) if reads_only else torch.float32
    decayed_q = empty_pieces(q, *q.shape) if pieces else torch.empty_like(q, dtype=reads_dtype)
    decayed_k = empty_pieces(k, *k.shape) if fine else torch.empty_like(k, dtype=torch.float32)
    passed = q.new_empty(chunks.count, heads, key_dim, dtype=torch.float32)
    scores = q.new_empty(chunks.count, heads, length, length, dtype=torch.float32)
    decayed_e = overlaps = None
    if e is not None:
        decayed_e = torch.empty_like(e, dtype=reads_dtype)
        overlaps = torch.empty_like(scores)
    own = tile_of("within", tile, key_dim, key_dim)
    BK, _ = blocks(key_dim, key_dim, own, q.dtype)
    _within[(chunks.count * heads,)](
        q, k, g, e, decayed_q, decayed_k, decayed_e, passed, scores, overlaps, chunks.cu_seqlens,
        scale, chunks.sequences, q.shape[1], heads, key_dim,
        C=length, BK=BK, LEVELS=length.bit_length() - 1,
        DELTA=e is not None, EXCLUSIVE=e is not None and e is not k,
        PACKED=chunks.cu_seqlens is not None, FINE=fine,
        num_warps=own.num_warps, num_stages=own.num_stages,
    )  # fmt: skip
    decayed = Rows(decayed_q, decayed_k, None, 1.0, chunks, q.dtype, passed, scores)
    return decayed, decayed_e, overlaps


def workspace_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of operands that products round anyway: bfloat16 for bfloat16 inputs. Values
    computed from float16 inputs may leave its range, and stay in float32."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
