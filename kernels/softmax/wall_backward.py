"""Gradients of wall attention: of pairs of two chunks, by query and by key, and of one chunk."""

import triton
import triton.language as tl

from kernels.primitives.chunks import locate_chunk
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
from kernels.primitives.pieces import elements, load_slices, rounded_product
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows
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
    within_window,
)
from kernels.softmax.wall_walk import passing, products_of, rows_and_ones


@triton.jit(
    do_not_specialize=["window", "sequences", "tokens", "heads", "group", "chunks", "widest"]
)
def queries_backward(
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
    X, A = rows_and_ones(q, piece_stride, stride_k, left, key_dim, C, BK, PARTS)
    for step in tl.range(1, chunks_before(before, window, C) + 1, disable_licm=True):
        back = tl.cast(step, tl.int64) * C
        between -= width
        Y = load_slices(k - back * stride_k, piece_stride, rows, stride_k, C, key_dim, BK, PARTS)
        products = products_of(X, Y, DTYPE, C, PARTS)
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
        X = passing(X, passed, key_dim, BK, PARTS)
        A = passing(A, passed, key_dim, BK, PARTS)
    dq += (first * heads + head) * key_dim
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        store_rows(dq, dq_acc[part], rows, keys, stride_k, left, key_dim)
    if GATED:
        tl.store(row_sums + place + rows, row_sum, mask=inside)


@triton.jit(do_not_specialize=["window", "sequences", "tokens", "heads", "group"])
def by_key(
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
    X, A = rows_and_ones(k, piece_stride, stride_k, left, key_dim, C, BK, PARTS)
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
        Y = load_slices(q_rows, piece_stride, rows, stride_k, count_q, key_dim, BK, PARTS)
        products = products_of(X, Y, DTYPE, C, PARTS, SWAP=True)
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
        X = passing(X, passed, key_dim, BK, PARTS)
        A = passing(A, passed, key_dim, BK, PARTS)
    dk += (first * heads + head) * key_dim
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        store_rows(dk, dk_acc[part], rows, keys, stride_k, left, key_dim)
    dv += (first * heads + head) * value_dim
    store_rows(dv, dv_acc, rows, values, stride_o, left, value_dim)
    if GATED:
        tl.store(column_sums + place + rows, column_sum, mask=rows < left)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def within_backward(
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
