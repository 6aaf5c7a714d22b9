"""The spans of PaTH attention: keys are reflected by the tokens of one span.

Tokens are cut into spans. With W, K, Q the rows of one span, and the representation of Woodbury and
Young of its reflections,

    A = tril₋₁(W Wᵀ)    L = (I + diag(β) A)⁻¹    T = L diag(β)
    D = T tril₋₁(W Kᵀ)    Z = T W    K' = K - Dᵀ W    M = H_S ... H_1 = I - Wᵀ Z
    E = tril(Q Wᵀ)    X = scale (Q - E Z)

the products of pairs of one span are tril(Q Kᵀ) - E D, and those with keys of an earlier span are
X K'ᵀ: X in the span before, and behind each span X ← X M. Matrices [S, S] are lower triangular, and
computed in blocks of C rows.

"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tiles
from kernels.linear.tiles import tile_of
from kernels.primitives.chunks import cut, locate_chunk, locate_sequence
from kernels.primitives.pieces import elements, empty_pieces, store_pieces
from kernels.primitives.product import TRITON_DTYPES, product
from kernels.primitives.rows import load_rows, store_rows
from kernels.primitives.triangular import inverse_unit_lower
from kernels.softmax.chunked import dot_rows
from kernels.softmax.gates import cumulative_gates
from kernels.softmax.path_walk import RUN
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def exact(a, b, DTYPE: tl.constexpr, acc=None):
    """`a @ b`, neither rounded."""
    return product(a, b, DTYPE, FINE_A=True, FINE_B=True, acc=acc)


@triton.jit
def lower(row, column, left, C: tl.constexpr):
    """Whether elements of a block are in the lower triangle, and their rows exist."""
    rows = row + tl.arange(0, C)[:, None]
    return (rows >= column + tl.arange(0, C)[None, :]) & (rows < left)


@triton.jit
def load_block(matrix, row, column, stride, left, C: tl.constexpr):
    """A block `[C, C]` of a lower triangular matrix in memory."""
    rows = tl.arange(0, C)
    return load_rows(matrix + row * stride + column, rows, rows, stride, left - row, C)


@triton.jit
def store_block(matrix, x, row, column, stride, left, C: tl.constexpr):
    """Write what a block has of a lower triangle, see `lower`, and 0 elsewhere."""
    rows = tl.arange(0, C)
    x = tl.where(lower(row, column, left, C), x, 0.0)
    store_rows(matrix + row * stride + column, x, rows, rows, stride, left - row, C)


@triton.jit
def overlaps(
    x, y, row, column, stride_x, stride_y, left, key_dim, diagonal,
    DTYPE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A block of tril(x yᵀ), from `diagonal` rows below the diagonal on; operands are not
    rounded."""
    x += row * stride_x
    y += column * stride_y
    products = dot_rows(
        x, y, stride_x, stride_y, left - row, left - column, key_dim, DTYPE, C, BK, FINE=True
    )
    return tl.where(lower(row, column + diagonal, left, C), products, 0.0)


@triton.jit
def load_strengths(beta, row, heads, left, C: tl.constexpr):
    """β of C tokens from `row` on; 0 past the end."""
    rows = row + tl.arange(0, C)
    return tl.load(beta + rows * heads, mask=rows < left, other=0.0).to(tl.float32)


@triton.jit
def load_solution(
    inverse, beta, row, column, heads, left, SPAN: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """A block of T."""
    strengths = load_strengths(beta, column, heads, left, C)
    return load_block(inverse, row, column, SPAN, left, C) * strengths[None, :]


@triton.jit
def locate_block(
    block, cu_seqlens, sequences, tokens, span, C: tl.constexpr, SPAN: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Where a block of C rows is: the first row of its span (int64), how many rows are left in its
    sequence from there, how many rows come before the span, the number of the span (int64), and how
    many rows of the span come before the block, which is empty if no more are left.

    Args:
        span: SPAN, as a number at run time.
    """
    first, left, sequence, before = locate_chunk(block, cu_seqlens, sequences, tokens, C, PACKED)
    # An empty block may be at any row.
    inside = tl.multiple_of(tl.where(left > 0, before % span, 0), C)
    _, _, first_span = locate_sequence(sequence, cu_seqlens, tokens, SPAN, PACKED)
    index = first_span + before // SPAN
    return first - inside, left + inside, before - inside, index, inside


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _solve(
    k, w, beta, inverse, d, z, k_out, cu_seqlens, sequences, tokens, heads,
    key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """L and D [spans, G, S, S], Z and K' [B, T, G, K] of one span of a kv head."""
    index = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, _, _ = locate_chunk(index, cu_seqlens, sequences, tokens, SPAN, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    row = first * heads + head
    k += row * key_dim
    w += row * key_dim
    z += row * key_dim
    k_out += row * key_dim
    beta += row
    cell = (index.to(tl.int64) * heads + head) * SPAN * SPAN
    inverse += cell
    d += cell
    count = tl.minimum(left, span)
    for i in tl.range(0, count, C, disable_licm=True):
        strengths = load_strengths(beta, i, heads, left, C)[:, None]
        own = overlaps(w, w, i, i, stride, stride, left, key_dim, 1, DTYPE, C, BK)
        of_block = inverse_unit_lower(strengths * own, C, DTYPE)
        store_block(inverse, of_block, i, i, SPAN, left, C)
        for j in tl.range(0, i, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(j, i, C, disable_licm=True):
                between = overlaps(w, w, i, e, stride, stride, left, key_dim, 1, DTYPE, C, BK)
                acc = exact(between, load_block(inverse, e, j, SPAN, left, C), DTYPE, acc)
            acc = -exact(of_block, strengths * acc, DTYPE)
            store_block(inverse, acc, i, j, SPAN, left, C)
        # Wait for the blocks that other threads write.
        tl.debug_barrier()
    for i in tl.range(0, count, C, disable_licm=True):
        for j in tl.range(0, i + C, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(j, i + C, C, disable_licm=True):
                T = load_solution(inverse, beta, i, e, heads, left, SPAN, C)
                of_keys = overlaps(w, k, e, j, stride, stride, left, key_dim, 1, DTYPE, C, BK)
                acc = exact(T, of_keys, DTYPE, acc)
            store_block(d, acc, i, j, SPAN, left, C)
        for start in range(0, key_dim, BK):
            keys = start + tl.arange(0, BK)
            acc = tl.zeros((C, BK), tl.float32)
            for e in tl.range(0, i + C, C, disable_licm=True):
                T = load_solution(inverse, beta, i, e, heads, left, SPAN, C)
                w_tile = load_rows(w + e * stride, rows, keys, stride, left - e, key_dim)
                acc = exact(T, w_tile, DTYPE, acc)
            store_rows(z + i * stride, acc, rows, keys, stride, left - i, key_dim)
    tl.debug_barrier()
    piece_stride = elements(sequences, tokens, stride, PACKED)
    for j in tl.range(0, count, C, disable_licm=True):
        for start in range(0, key_dim, BK):
            keys = start + tl.arange(0, BK)
            acc = load_rows(k + j * stride, rows, keys, stride, left - j, key_dim).to(tl.float32)
            for i in tl.range(j, count, C, disable_licm=True):
                D = load_block(d, i, j, SPAN, left, C)
                w_tile = load_rows(w + i * stride, rows, keys, stride, left - i, key_dim)
                acc = exact(-tl.trans(D), w_tile, DTYPE, acc)
            store_pieces(
                k_out + j * stride, piece_stride, acc, rows, keys, stride, left - j, key_dim
            )


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "spans"])
def _cross(
    w, z, m, cu_seqlens, sequences, tokens, heads, spans, key_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C rows of M [spans, G, K, K] of one span."""
    tiles = tl.cdiv(key_dim, C)
    down = tl.program_id(0) % tiles * C + tl.arange(0, C)
    head = tl.program_id(0) // tiles % heads
    span = tl.program_id(0) // tiles // heads
    first, left, _, _ = locate_chunk(span, cu_seqlens, sequences, tokens, SPAN, PACKED)
    # No query is behind the last span.
    if left <= SPAN:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    w += (first * heads + head) * key_dim
    z += (first * heads + head) * key_dim
    m += (span.to(tl.int64) * heads + head) * key_dim * key_dim
    piece_stride = tl.cast(spans, tl.int64) * stride * key_dim
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        acc = tl.where(down[:, None] == keys[None, :], 1.0, 0.0)
        for i in tl.range(0, SPAN, C):
            w_tile = load_rows(w + i * stride, rows, down, stride, C, key_dim)
            z_tile = load_rows(z + i * stride, rows, keys, stride, C, key_dim)
            acc = exact(tl.trans(w_tile), -z_tile, DTYPE, acc)
        store_pieces(m, piece_stride, acc, down, keys, key_dim, key_dim, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def _transform(
    q, k, w, z, d, x, scores, cu_seqlens, scale, sequences, tokens, heads, group,
    key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """X, the first of x [COPIES, B, T, H, K], and the scores of pairs of one span [B, T, H, S], of
    one block of queries."""
    head = tl.program_id(0) % heads
    first, left, _, index, inside = locate_block(
        tl.program_id(0) // heads, cu_seqlens, sequences, tokens, span, C, SPAN, PACKED
    )
    if left <= inside:
        return
    rows = tl.arange(0, C)
    kv_heads = heads // group
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    q += (first * heads + head) * key_dim
    x += (first * heads + head) * key_dim
    shared = (first * kv_heads + head // group) * key_dim
    k += shared
    w += shared
    z += shared
    d += (index * kv_heads + head // group) * SPAN * SPAN
    scores += (first * heads + head) * SPAN
    stride_s = tl.cast(heads, tl.int64) * SPAN
    for j in tl.range(0, inside + C, C):
        acc = overlaps(q, k, inside, j, stride, stride_k, left, key_dim, 0, DTYPE, C, BK)
        for e in tl.range(j, inside + C, C):
            E = overlaps(q, w, inside, e, stride, stride_k, left, key_dim, 0, DTYPE, C, BK)
            acc = exact(-E, load_block(d, e, j, SPAN, left, C), DTYPE, acc)
        store_block(scores, acc * scale, inside, j, stride_s, left, C)
    piece_stride = COPIES * elements(sequences, tokens, stride, PACKED)
    q += inside * stride
    x += inside * stride
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        acc = load_rows(q, rows, keys, stride, left - inside, key_dim).to(tl.float32)
        for e in tl.range(0, inside + C, C):
            E = overlaps(
                q - inside * stride, w, inside, e, stride, stride_k, left, key_dim, 0, DTYPE, C, BK
            )
            z_tile = load_rows(z + e * stride_k, rows, keys, stride_k, left - e, key_dim)
            acc = exact(-E, z_tile, DTYPE, acc)
        store_pieces(x, piece_stride, scale * acc, rows, keys, stride, left - inside, key_dim)


def _width(dim: int, tile: tiles.Tile, dtype: torch.dtype) -> int:
    """Columns of a slice of K or V."""
    return max(tile.narrowest(dtype.itemsize), min(next_power_of_2(dim), tile.features))


def _slices(dim: int, tile: tiles.Tile, dtype: torch.dtype) -> dict[str, int]:
    """Slices of K in a kernel, and how it is launched."""
    BK = _width(dim, tile, dtype)
    return {"BK": BK, "num_warps": tile.num_warps, "num_stages": tile.num_stages}


class Within(NamedTuple):
    """The results of single spans.

    Args:
        k: K' [B, T, G, K] in pieces.
        z: Z [B, T, G, K].
        inverse, d: L and D [spans, G, S, S].
        m: M [spans, G, K, K] in pieces.
        scores: of pairs of one span [B, T, H, S].
    """

    k: Tensor
    z: Tensor
    inverse: Tensor
    d: Tensor
    m: Tensor
    scores: Tensor


class Call:
    """The sizes, gates and constants that the kernels of a call share.

    Args:
        longest: tokens of the longest sequence.
    """

    def __init__(
        self, q: Tensor, v: Tensor, g: Tensor | None, cu_seqlens: Tensor | None,
        longest: int, entry: tiles.Entry,
    ) -> None:  # fmt: skip
        batch, tokens, heads, self.key_dim = q.shape
        self.groups, self.value_dim = v.shape[2:]
        self.q, self.entry, self.span = q, entry, entry.keys
        self.longest, self.cu_seqlens, self.gated = longest, cu_seqlens, g is not None
        whole = tiles.aligned(self.key_dim, self.value_dim)
        self.block = entry if whole else entry.of("unaligned_block")
        self.chunks, self.spans = (
            cut(batch, tokens, cu_seqlens, length) for length in (self.block.tokens, self.span)
        )
        self.of_queries = self.chunks.sequences, tokens, heads, heads // self.groups
        self.of_keys = self.chunks.sequences, tokens, self.groups
        self.constants = {
            "PACKED": cu_seqlens is not None,
            "DTYPE": TRITON_DTYPES[q.dtype],
            "SPAN": self.span,
        }
        self.blocks = {
            "C": self.block.tokens,
            **self.constants,
            **_slices(self.key_dim, self.block, q.dtype),
        }
        self.gates = (None, None, None) if g is None else cumulative_gates(g, cu_seqlens)

    def tile(self, kernel: str) -> tiles.Tile:
        if self.gated and f"gated_{kernel}" in self.entry.kernels:
            kernel = f"gated_{kernel}"
        return tile_of(kernel, self.entry, self.key_dim, self.value_dim)

    def walk(self, kernel: str) -> dict[str, Any]:
        """Constants of a kernel that walks over spans."""
        tile = self.tile(kernel)
        shape = _slices(self.key_dim, tile, self.q.dtype)
        return {
            **self.constants,
            **shape,
            "GATED": self.gated,
            "RUN": RUN,
            "PARTS": cdiv(self.key_dim, shape["BK"]),
            "PAD_V": max(tile.narrowest(self.q.dtype.itemsize), next_power_of_2(self.value_dim)),
        }

    def within(self, k: Tensor, w: Tensor, beta: Tensor, x: Tensor, scale: float) -> Within:
        """Launch what needs the tokens of one span alone.

        Args:
            x: room for X; its first part gets X at the start of the query's span.
        """
        z = k.new_empty(k.shape, dtype=torch.float32)
        inverse, d = z.new_empty(2, self.spans.count, self.groups, self.span, self.span)
        inner_k = empty_pieces(k, *k.shape)
        _solve[(self.spans.count * self.groups,)](
            k, w, beta, inverse, d, z, inner_k, self.cu_seqlens, *self.of_keys, self.key_dim,
            self.span, **self.blocks,
        )  # fmt: skip
        m = empty_pieces(k, self.spans.count, self.groups, self.key_dim, self.key_dim)
        if self.longest > 2 * self.span:
            tiles_of_m = cdiv(self.key_dim, self.block.tokens)
            _cross[(self.spans.count * self.groups * tiles_of_m,)](
                w, z, m, self.cu_seqlens, *self.of_keys, self.spans.count, self.key_dim,
                **self.blocks,
            )  # fmt: skip
        scores = z.new_empty(*self.q.shape[:3], self.span)
        _transform[(self.chunks.count * self.q.shape[2],)](
            self.q, k, w, z, d, x, scores, self.cu_seqlens, scale, *self.of_queries, self.key_dim,
            self.span, COPIES=x.shape[1], **self.blocks,
        )  # fmt: skip
        return Within(inner_k, z, inverse, d, m, scores)
