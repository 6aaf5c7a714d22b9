"""Wall attention in tiles: each channel of a key decays on its way to the query.

Tokens are cut into chunks of C. With P_i = Σ_{t <= i} g_t and R_j = Σ_{t > j} g_t over the tokens
of one chunk, `kernels.linear.chunk.decay_within` decays queries from the start and keys to the end
of their own, so that no exponent is above 0,

    q'_i = scale exp(P_i) ∘ q_i        k'_j = exp(R_j) ∘ k_j
    s_ij = (q'_i ∘ A) · k'_j,    A = Π exp(P_C) of the chunks between those of i and j

and has the products of all pairs of one chunk. A program walks from its own chunk to farther ones,
and A gains a factor at each step.

Backward, with dS = P ∘ (dO Vᵀ - δ), a gate at t of chunk m gets q'_i ∘ dq'_i of the queries from t
on in its chunk, k'_j ∘ dk'_j of the keys before t, what the pairs of its chunk pass over it, and of
the chunks on its two sides

    Σ_{b > m > a} X_ba,    X_ba = Σ_{i in b} (q'_i ∘ A) ∘ Σ_{j in a} dS_ij k'_j

which is a sum of its own and no difference of larger ones. So is that of the gates `gs` of heads,
with 1 in the place of q'_i ∘ k'_j.
"""

from typing import Any, Literal, NamedTuple, Unpack

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries
from kernels.differentiable import differentiable
from kernels.linear.chunk import decay_within
from kernels.linear.tiles import blocks
from kernels.primitives.chunks import Chunks, cut, locate_chunk
from kernels.primitives.decay import (
    chunk_span,
    chunk_span_transposed,
    decay,
    level_pairs,
    level_queries,
    level_span,
    level_span_transposed,
    load_gates,
    load_sides,
    split_diagonal,
    sum_gradients,
)
from kernels.primitives.groups import keys_gradient_dtype, of_each_group, of_each_head
from kernels.primitives.layout import contiguous
from kernels.primitives.pieces import (
    elements,
    load_pieces,
    merged,
    product_of_pieces,
    rounded_product,
    split,
    transposed,
)
from kernels.primitives.product import TRITON_DTYPES, product
from kernels.primitives.rows import load_rows, store_rows
from kernels.recurrence import StatelessOptions
from kernels.softmax.attention import sink_gradient
from kernels.softmax.chunked import (
    as_columns,
    as_rows,
    base2_logits,
    chunks_before,
    dot_rows,
    gates_of_chunk,
    gradient_of_gates,
    load_row_terms,
    place_in_heads,
    softmax_step,
    store_row_terms,
    sum_between,
    within_window,
)
from kernels.softmax.gates import cumulative_gates
from kernels.softmax.logits import start_softmax
from kernels.softmax.pairs import pairs, shapes
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def _rows_and_ones(
    ptr, piece_stride, stride, count, key_dim,
    C: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Rows in pieces as slices of K in float32, and A of the own chunk."""
    rows = tl.arange(0, C)
    X = ()
    A = ()
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        X += (merged(load_pieces(ptr, piece_stride, rows, keys, stride, count, key_dim)),)
        A += (tl.full((1, BK), 1.0, tl.float32),)
    return X, A


@triton.jit
def _passing(X, passed, key_dim, BK: tl.constexpr, PARTS: tl.constexpr):
    """Rows X, decayed through one more chunk: `passed` is the decay of each channel over it."""
    more = ()
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        more += (X[part] * tl.load(passed + keys, mask=keys < key_dim, other=0.0)[None, :],)
    return more


@triton.jit
def _slices(
    ptr, piece_stride, stride, count, key_dim,
    C: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Slices of K of rows in pieces."""
    slices = ()
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        slices += (load_pieces(ptr, piece_stride, tl.arange(0, C), keys, stride, count, key_dim),)
    return slices


@triton.jit
def _products(
    X, Y, DTYPE: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr, SWAP: tl.constexpr = False
):  # fmt: skip
    """X Yᵀ `[C, C]` of slices in float32 and slices in pieces, or if SWAP, Y Xᵀ."""
    products = tl.zeros((C, C), tl.float32)
    for part in tl.static_range(PARTS):
        x = split(X[part], DTYPE)
        if SWAP:
            products = product_of_pieces(Y[part], transposed(x), DTYPE, products)
        else:
            products = product_of_pieces(x, transposed(Y[part]), DTYPE, products)
    return products


@triton.jit(do_not_specialize=["window", "sequences", "tokens", "heads", "group", "chunks"])
def _by_query(
    q, k, v, do, passed, scores, out, dscores, terms, sink,
    gate, rest, shut_count, cu_seqlens, window, sequences, tokens, heads, group, chunks,
    key_dim: tl.int32, value_dim: tl.int32,
    GRADIENT: tl.constexpr, SINK: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr,
    DTYPE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    BV: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of one chunk of queries of a head; or if GRADIENT

    terms [3, B, H, T]: maximum, sum of weights and δ, and of the pairs of one chunk the weights,
    over their scores, and dscores [chunks, H, C, C], their dS.
    """
    # The last chunks see the most keys: start them first.
    chunk = chunks - 1 - tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, sequence, before = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    WHOLE: tl.constexpr = BV == PAD_V
    rows = tl.arange(0, C)
    values = tl.arange(0, PAD_V)
    stride_k = heads * key_dim
    stride_o = heads * value_dim
    stride_v = heads // group * value_dim
    q += (first * heads + head) * key_dim
    k += (first * heads + head) * key_dim
    v += (first * (heads // group) + head // group) * value_dim
    do += (first * heads + head) * value_dim
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
    cell = chunk.to(tl.int64) * heads + head
    passed += cell * key_dim
    piece_stride = elements(sequences, tokens, stride_k, PACKED)

    query_gate = as_rows(gates_of_chunk(gate, rest, shut_count, place, left, C, GATED), GATED)
    own_gate = as_columns(gates_of_chunk(gate, rest, shut_count, place, left, C, GATED), GATED)
    visible = within_window(0, window, C)
    own = load_rows(scores + cell * C * C, rows, rows, C, C, C)

    row_max, weight_sum = start_softmax(sink, head, C, SINK)
    p, _, row_max, weight_sum = softmax_step(
        own, visible, query_gate, own_gate, row_max, weight_sum, GATED
    )
    row_delta = tl.zeros((C,), tl.float32)
    # The outputs; the backward pass has none.
    acc = tl.zeros((C, 1 if GRADIENT else PAD_V), tl.float32)
    if GRADIENT:
        dp = dot_rows(do, v, stride_o, stride_v, left, left, value_dim, DTYPE, C, BV, WHOLE=WHOLE)
        row_delta = tl.sum(p * dp, 1)
    else:
        acc = product(p, load_rows(v, rows, values, stride_v, left, value_dim), DTYPE)
    X, _ = _rows_and_ones(q, piece_stride, stride_k, left, key_dim, C, BK, PARTS)
    for step in tl.range(1, chunks_before(before, window, C) + 1, disable_licm=True):
        back = tl.cast(step, tl.int64) * C
        Y = _slices(k - back * stride_k, piece_stride, stride_k, C, key_dim, C, BK, PARTS)
        products = _products(X, Y, DTYPE, C, PARTS)
        key_gate = gates_of_chunk(gate, rest, shut_count, place - back, C, C, GATED)
        p, shrink, row_max, weight_sum = softmax_step(
            products,
            within_window(step * C, window, C),
            query_gate,
            as_columns(key_gate, GATED),
            row_max,
            weight_sum,
            GATED,
        )
        v_rows = v - back * stride_v
        if GRADIENT:
            dp = dot_rows(
                do, v_rows, stride_o, stride_v, left, C, value_dim, DTYPE, C, BV, WHOLE=WHOLE
            )
            row_delta = row_delta * shrink + tl.sum(p * dp, 1)
        else:
            v_tile = load_rows(v_rows, rows, values, stride_v, C, value_dim)
            acc = product(p, v_tile, DTYPE, acc=acc * shrink[:, None])
        passed -= stride_k
        X = _passing(X, passed, key_dim, BK, PARTS)
    # Every query sees its own key.
    inverse = 1.0 / weight_sum
    if GRADIENT:
        row_delta *= inverse
        count = elements(sequences, tokens, heads, PACKED)
        store_row_terms(terms + place + rows, count, row_max, weight_sum, row_delta, rows < left)
        dp = dot_rows(do, v, stride_o, stride_v, left, left, value_dim, DTYPE, C, BV, WHOLE=WHOLE)
        s = base2_logits(own, query_gate, own_gate, row_max[:, None], GATED)
        p = tl.where(visible & (rows < left)[:, None], tl.exp2(s) * inverse[:, None], 0.0)
        store_rows(scores + cell * C * C, p, rows, rows, C, C, C)
        store_rows(dscores + cell * C * C, p * (dp - row_delta[:, None]), rows, rows, C, C, C)
    else:
        out += (first * heads + head) * value_dim
        store_rows(out, acc * inverse[:, None], rows, values, stride_o, left, value_dim)


@triton.jit(
    do_not_specialize=["window", "sequences", "tokens", "heads", "group", "chunks", "widest"]
)
def _queries_backward(
    q, k, v, do, passed, terms, dq, row_sums, between,
    gate, rest, shut_count, cu_seqlens, window, sequences, tokens, heads, group, chunks, widest,
    key_dim: tl.int32, value_dim: tl.int32,
    GATED: tl.constexpr, PACKED: tl.constexpr,
    DTYPE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    BV: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """dq' [B, T, H, K] of pairs of two chunks, row_sums [B, H, T], the sums of their dS, and
    `between` [chunks, H, widest, K + GATED], X of the chunk with those before it."""
    chunk = chunks - 1 - tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, sequence, before = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    WHOLE: tl.constexpr = BV == PAD_V
    rows = tl.arange(0, C)
    stride_k = heads * key_dim
    stride_o = heads * value_dim
    stride_v = heads // group * value_dim
    q += (first * heads + head) * key_dim
    k += (first * heads + head) * key_dim
    v += (first * (heads // group) + head // group) * value_dim
    do += (first * heads + head) * value_dim
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
    cell = chunk.to(tl.int64) * heads + head
    passed += cell * key_dim
    piece_stride = elements(sequences, tokens, stride_k, PACKED)
    width = key_dim + GATED
    between += (cell * widest + before // C) * width
    inside = rows < left

    query_gate = as_rows(gates_of_chunk(gate, rest, shut_count, place, left, C, GATED), GATED)
    row_max, inverse, row_delta = load_row_terms(
        terms + place + rows, elements(sequences, tokens, heads, PACKED), inside
    )
    dq_acc = ()
    for _ in tl.static_range(PARTS):
        dq_acc += (tl.zeros((C, BK), tl.float32),)
    row_sum = tl.zeros((C,), tl.float32)
    X, A = _rows_and_ones(q, piece_stride, stride_k, left, key_dim, C, BK, PARTS)
    for step in tl.range(1, chunks_before(before, window, C) + 1, disable_licm=True):
        back = tl.cast(step, tl.int64) * C
        between -= width
        Y = _slices(k - back * stride_k, piece_stride, stride_k, C, key_dim, C, BK, PARTS)
        products = _products(X, Y, DTYPE, C, PARTS)
        key_gate = gates_of_chunk(gate, rest, shut_count, place - back, C, C, GATED)
        key_gate = as_columns(key_gate, GATED)
        s = base2_logits(products, query_gate, key_gate, row_max[:, None], GATED)
        dp = dot_rows(
            do, v - back * stride_v, stride_o, stride_v, left, C, value_dim, DTYPE, C, BV,
            WHOLE=WHOLE,
        )  # fmt: skip
        ds = tl.exp2(s) * inverse[:, None] * (dp - row_delta[:, None])
        ds = tl.where(within_window(step * C, window, C) & inside[:, None], ds, 0.0)
        more = ()
        for part in tl.static_range(PARTS):
            keys = part * BK + tl.arange(0, BK)
            dx = rounded_product(ds, Y[part], DTYPE)
            tl.store(between + keys, tl.sum(X[part] * dx, 0), mask=keys < key_dim)
            more += (dq_acc[part] + dx * A[part],)
        dq_acc = more
        if GATED:
            of_row = tl.sum(ds, 1)
            row_sum += of_row
            tl.store(between + key_dim, tl.sum(of_row, 0))
        passed -= stride_k
        X = _passing(X, passed, key_dim, BK, PARTS)
        A = _passing(A, passed, key_dim, BK, PARTS)
    dq += (first * heads + head) * key_dim
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        store_rows(dq, dq_acc[part], rows, keys, stride_k, left, key_dim)
    if GATED:
        tl.store(row_sums + place + rows, row_sum, mask=inside)


@triton.jit(do_not_specialize=["window", "sequences", "tokens", "heads", "group"])
def _by_key(
    q, k, v, do, passed, weights, dk, dv, column_sums, terms,
    gate, rest, shut_count, cu_seqlens, window, sequences, tokens, heads, group,
    key_dim: tl.int32, value_dim: tl.int32,
    GATED: tl.constexpr, PACKED: tl.constexpr,
    DTYPE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    BV: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """dk' [B, T, H, K] of pairs of two chunks, column_sums [B, H, T], the sums of their dS, and dv
    [B, T, H, V], of one chunk of keys for a query head.

    Keys decay on the way, and queries are read as they are.
    """
    chunk = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, sequence, _ = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    WHOLE: tl.constexpr = BV == PAD_V
    rows = tl.arange(0, C)
    values = tl.arange(0, PAD_V)
    stride_k = heads * key_dim
    stride_o = heads * value_dim
    stride_v = heads // group * value_dim
    q += (first * heads + head) * key_dim
    k += (first * heads + head) * key_dim
    v += (first * (heads // group) + head // group) * value_dim
    do += (first * heads + head) * value_dim
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
    cell = chunk.to(tl.int64) * heads + head
    passed += cell * key_dim
    piece_stride = elements(sequences, tokens, stride_k, PACKED)
    count = elements(sequences, tokens, heads, PACKED)

    key_gate = as_columns(gates_of_chunk(gate, rest, shut_count, place, left, C, GATED), GATED)
    p = load_rows(weights + cell * C * C, rows, rows, C, C, C)
    do_tile = load_rows(do, rows, values, stride_o, left, value_dim)
    dv_acc = product(tl.trans(p), do_tile, DTYPE)
    dk_acc = ()
    for _ in tl.static_range(PARTS):
        dk_acc += (tl.zeros((C, BK), tl.float32),)
    column_sum = tl.zeros((C,), tl.float32)
    X, A = _rows_and_ones(k, piece_stride, stride_k, left, key_dim, C, BK, PARTS)
    # The last query that sees the last of the keys.
    last = tl.minimum(left - 1, tl.minimum(left, C) - 1 + window - 1)
    for step in tl.range(1, last // C + 1, disable_licm=True):
        on = tl.cast(step, tl.int64) * C
        count_q = left - step * C
        inside = rows < count_q
        query_gate = gates_of_chunk(gate, rest, shut_count, place + on, count_q, C, GATED)
        row_max, inverse, row_delta = load_row_terms(terms + place + on + rows, count, inside)
        q_rows = q + on * stride_k
        do_rows = do + on * stride_o
        Y = _slices(q_rows, piece_stride, stride_k, count_q, key_dim, C, BK, PARTS)
        products = _products(X, Y, DTYPE, C, PARTS, SWAP=True)
        s = base2_logits(products, as_rows(query_gate, GATED), key_gate, row_max[:, None], GATED)
        visible = (rows[:, None] - rows[None, :] < window - step * C) & inside[:, None]
        p = tl.where(visible, tl.exp2(s) * inverse[:, None], 0.0)
        do_tile = load_rows(do_rows, rows, values, stride_o, count_q, value_dim)
        dv_acc = product(tl.trans(p), do_tile, DTYPE, acc=dv_acc)
        dp = dot_rows(
            do_rows, v, stride_o, stride_v, count_q, C, value_dim, DTYPE, C, BV, WHOLE=WHOLE
        )
        ds = tl.where(visible, p * (dp - row_delta[:, None]), 0.0)
        more = ()
        for part in tl.static_range(PARTS):
            keys = part * BK + tl.arange(0, BK)
            more += (dk_acc[part] + rounded_product(tl.trans(ds), Y[part], DTYPE) * A[part],)
        dk_acc = more
        column_sum += tl.sum(ds, 0)
        passed += stride_k
        X = _passing(X, passed, key_dim, BK, PARTS)
        A = _passing(A, passed, key_dim, BK, PARTS)
    dk += (first * heads + head) * key_dim
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        store_rows(dk, dk_acc[part], rows, keys, stride_k, left, key_dim)
    dv += (first * heads + head) * value_dim
    store_rows(dv, dv_acc, rows, values, stride_o, left, value_dim)
    if GATED:
        tl.store(column_sums + place + rows, column_sum, mask=rows < left)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _within_backward(
    q, k, g, dq_decayed, dk_decayed, through, dscores, row_sums, column_sums,
    dq_out, dk_out, dg_out, dgs_out, cu_seqlens, scale, sequences, tokens, heads,
    key_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, LEVELS: tl.constexpr,
    GATED: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dq, dk and dg [B, T, H, K], and dgs [B, T, H], from those of what `decay_within` computes."""
    DTYPE: tl.constexpr = q.dtype.element_ty
    parts = tl.cdiv(key_dim, BK)
    part = tl.program_id(0) % parts
    keys = part * BK + tl.arange(0, BK)
    head = tl.program_id(0) // parts % heads
    chunk = tl.program_id(0) // parts // heads
    first, left, sequence, _ = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    start = (first * heads + head) * key_dim
    q += start
    k += start
    cell = chunk.to(tl.int64) * heads + head
    ds = load_rows(dscores + cell * C * C, rows, rows, C, C, C)
    if GATED:
        place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
        dgs = gradient_of_gates(ds, row_sums, column_sums, place, left, C)
        dgs += tl.load(through + cell * (key_dim + 1) + key_dim)
        # All parts compute the same sum: one of them writes.
        mine = rows < tl.where(part == 0, left, 0)
        tl.store(dgs_out + first * heads + head + rows * heads, dgs, mask=mine)

    g_tile = load_gates(g + start, rows, keys, stride, left, key_dim)
    over = tl.load(through + cell * (key_dim + GATED) + keys, mask=keys < key_dim, other=0.0)
    dg = tl.zeros([C, BK], tl.float32) + over[None, :]
    dq = load_rows(dq_decayed + start, rows, keys, stride, left, key_dim) * scale
    dk = load_rows(dk_decayed + start, rows, keys, stride, left, key_dim)
    # Two turns of one body, keys then queries: side by side they take too many registers.
    for turn in tl.range(2, disable_licm=True):
        reads = turn == 1
        decayed = decay(chunk_span(1 - turn, C), g_tile, DTYPE)
        x = load_sides(q, k, reads, rows, keys, stride, left, key_dim)
        dx = tl.where(reads, dq, dk) * decayed
        dq = tl.where(reads, dx, dq)
        dk = tl.where(reads, dk, dx)
        dg += sum_gradients(chunk_span_transposed(1 - turn, C), x * dx, DTYPE)

    ds *= scale
    q_tile = load_rows(q, rows, keys, stride, left, key_dim)
    k_tile = load_rows(k, rows, keys, stride, left, key_dim)
    diagonal, ds = split_diagonal(rows, ds, DTYPE)
    dq += diagonal * k_tile
    dk += diagonal * q_tile
    for level in tl.range(LEVELS, disable_licm=True):
        readers = level_queries(level, C)
        decayed = decay(level_span(level, C), g_tile, DTYPE)
        x = load_sides(q, k, readers, rows, keys, stride, left, key_dim)
        pairs = tl.where(level_pairs(level, C), ds, 0.0)
        dx = product(pairs, x * decayed, DTYPE) * decayed
        dq += tl.where(readers, dx, 0.0)
        dk += tl.where(readers, 0.0, dx)
        dg += sum_gradients(level_span_transposed(level, C), x * dx, DTYPE)
    store_rows(dq_out + start, dq, rows, keys, stride, left, key_dim)
    store_rows(dk_out + start, dk, rows, keys, stride, left, key_dim)
    store_rows(dg_out + start, dg, rows, keys, stride, left, key_dim)


class _Call(NamedTuple):
    """Arguments and keywords that the kernels of a call share."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    passed: Tensor
    scores: Tensor
    gates: tuple[Tensor | None, Tensor | None, Tensor | None]
    chunks: Chunks
    entry: tiles.Entry
    window: int
    longest: int
    constants: dict[str, Any]

    def shape(self, kernel: str) -> dict[str, int]:
        """The slices of K and V of a kernel, and how it is launched."""
        tile, (key_dim, value_dim) = self.entry.of(kernel), self.dims
        least = tile.narrowest(self.v.dtype.itemsize)
        BK, BV = (
            max(least, min(next_power_of_2(dim), widest))
            for dim, widest in ((key_dim, tile.keys), (value_dim, tile.features))
        )
        return {
            "C": self.entry.tokens,
            "BK": BK,
            "PARTS": cdiv(key_dim, BK),
            "BV": BV,
            "PAD_V": max(least, next_power_of_2(value_dim)),
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Window, sequences, tokens, heads, and heads that share values."""
        tokens, heads = self.g.shape[1:3]
        return self.window, self.chunks.sequences, tokens, heads, heads // self.v.shape[2]

    @property
    def dims(self) -> tuple[int, int]:
        return self.g.shape[3], self.v.shape[3]


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, gs: Tensor | None, cu_seqlens: Tensor | None,
    scale: float, window: int | None, entry: tiles.Entry, pieces: bool,
) -> tuple[_Call, Tensor, Tensor]:  # fmt: skip
    """The call, and q and k as they came, each head with its own keys."""
    batch, tokens, heads, _ = q.shape
    longest = check_boundaries("cu_seqlens", cu_seqlens, tokens)
    q, k, v, g = contiguous(q, of_each_head(k, heads), v, g)
    chunks = cut(batch, tokens, cu_seqlens, entry.tokens)
    decayed, _, _ = decay_within(
        q, k, g, chunks, scale=scale, tile=entry, reads_only=False, fine=True, pieces=pieces
    )
    constants = {
        "GATED": gs is not None,
        "PACKED": cu_seqlens is not None,
        "DTYPE": TRITON_DTYPES[q.dtype],
    }
    call = _Call(
        decayed.q, decayed.k, v, g, decayed.passed, decayed.scores,
        (None, None, None) if gs is None else cumulative_gates(gs, cu_seqlens), chunks, entry,
        # Distances are below the limit, and a wider window could overflow.
        tokens + entry.tokens if window is None else min(window, tokens + entry.tokens),
        longest, constants,
    )  # fmt: skip
    return call, q, k


def _forward(
    *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, gs: Tensor | None, sink: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, window: int | None, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    o = q.new_empty(*q.shape[:3], v.shape[3])
    if o.numel() == 0:
        return [o]
    entry = tiles.TABLE["wall_attn", "parallel"][tile]
    call, _, _ = _prepare(q, k, v, g, gs, cu_seqlens, scale, window, entry, False)
    _by_query[(call.chunks.count * q.shape[2],)](
        call.q, call.k, call.v, o, call.passed, call.scores, o, o, o, sink,
        *call.gates, cu_seqlens, *call.sizes, call.chunks.count, *call.dims,
        GRADIENT=False, SINK=sink is not None, **call.constants, **call.shape("by_query"),
    )  # fmt: skip
    return [o]


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, gs: Tensor | None, sink: Tensor | None,
    cu_seqlens: Tensor | None, d0: Tensor, scale: float, window: int | None, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    batch, tokens, heads, key_dim = q.shape
    groups = k.shape[2]
    dq, dg = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, g))
    dgs = None if gs is None else gs.new_empty(gs.shape)
    if dq.numel() == 0:
        nothing = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (k, v))
        return [dq, *nothing, dg, dgs, None if sink is None else torch.zeros_like(sink), None]
    (do,) = contiguous(d0)
    entry = tiles.TABLE["wall_attn", "parallel"][tile]
    entry = entry.kernels.get("backward", entry)
    call, q, k = _prepare(q, k, v, g, gs, cu_seqlens, scale, window, entry, True)
    chunks, length = call.chunks, call.entry.tokens
    gated, count = gs is not None, chunks.count
    widest = cdiv(call.longest, length)
    terms = q.new_empty(3, batch, heads, tokens, dtype=torch.float32)
    rows, columns = terms.new_empty(2, batch, heads, tokens if gated else 0)
    dq_decayed, dk_decayed = terms.new_empty(2, *q.shape)
    dscores = torch.empty_like(call.scores)
    through = terms.new_empty(count, heads, key_dim + gated)
    # Behind a window nothing is written.
    between = (terms.new_empty if window is None else terms.new_zeros)(
        count, heads, widest, key_dim + gated
    )
    _by_query[(count * heads,)](
        call.q, call.k, call.v, do, call.passed, call.scores, do, dscores, terms, sink,
        *call.gates, cu_seqlens, *call.sizes, count, *call.dims,
        GRADIENT=True, SINK=sink is not None, **call.constants, **call.shape("by_query"),
    )  # fmt: skip
    _queries_backward[(count * heads,)](
        call.q, call.k, call.v, do, call.passed, terms, dq_decayed, rows, between,
        *call.gates, cu_seqlens, *call.sizes, count, widest, *call.dims, **call.constants,
        **call.shape("queries_backward"),
    )  # fmt: skip
    each_head = keys_gradient_dtype(v, heads)
    dk = k.new_empty(k.shape, dtype=each_head)
    dv = v.new_empty(*q.shape[:3], v.shape[3], dtype=each_head)
    _by_key[(count * heads,)](
        call.q, call.k, call.v, do, call.passed, call.scores, dk_decayed, dv, columns,
        terms, *call.gates, cu_seqlens, *call.sizes, *call.dims, **call.constants,
        **call.shape("by_key"),
    )  # fmt: skip
    where = cu_seqlens, chunks.sequences, tokens, heads
    packed = cu_seqlens is not None
    block = min(128, next_power_of_2(key_dim + gated))
    sum_between[(count * heads * cdiv(key_dim + gated, block),)](
        between, through, *where, widest, key_dim + gated,
        C=length, BLOCK=block, PACKED=packed,
    )  # fmt: skip
    own = call.entry.of("within")
    BK, _ = blocks(key_dim, key_dim, own, q.dtype)
    _within_backward[(count * heads * cdiv(key_dim, BK),)](
        q, k, call.g, dq_decayed, dk_decayed, through, dscores, rows, columns,
        dq, dk, dg, dgs, cu_seqlens, scale, *where[1:], key_dim,
        C=length, BK=BK, LEVELS=length.bit_length() - 1, GATED=gated, PACKED=packed,
        num_warps=own.num_warps, num_stages=1,
    )  # fmt: skip
    dk, dv = (of_each_group(x, groups).to(v.dtype) for x in (dk, dv))
    dsink = None if sink is None else sink_gradient(sink, terms[:2], terms[2])
    return [dq, dk, dv, dg, dgs, dsink, None]


_wall = differentiable("wall_parallel", _forward, _backward, shapes, outputs=1)


def _of_contiguous(*, gs: Tensor | None, sink: Tensor | None, **given: Any) -> Tensor:
    gs, sink = contiguous(gs, sink)
    o: Tensor = _wall(**given, gs=gs, sink=sink)
    return o


@pairs(
    _of_contiguous,
    about="A gate g below -128 is taken for -128, whose exponential is 0 in float32, and a gs "
    "below -2^17 for -inf. Keys, queries and their gradients are kept once more in float32, each "
    "head with its own keys; the backward pass allocates K numbers for each pair of chunks of 16 "
    "or 32 tokens of a head.",
)
def wall_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    g: Float[Tensor, "B T H K"],
    *,
    gs: Float[Tensor, "B T H"] | None = None,
    sink: Float[Tensor, "H"] | None = None,
    window: int | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Attention to keys that decay channel by channel, `reference.wall_attn`."""
