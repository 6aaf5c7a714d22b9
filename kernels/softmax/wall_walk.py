"""The walk of wall attention's queries over chunks of keys: outputs, and the terms of rows."""

import triton
import triton.language as tl

from kernels.primitives.chunks import locate_chunk
from kernels.primitives.pieces import (
    elements,
    load_pieces,
    load_slices,
    merged,
    product_of_pieces,
    split,
    transposed,
)
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows
from kernels.softmax.chunked import (
    as_columns,
    as_rows,
    base2_logits,
    chunks_before,
    dot_rows,
    gates_of_chunk,
    place_in_heads,
    softmax_step,
    store_row_terms,
    within_window,
)
from kernels.softmax.logits import start_softmax


@triton.jit
def rows_and_ones(
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
def passing(X, passed, key_dim, BK: tl.constexpr, PARTS: tl.constexpr):
    """Rows X, decayed through one more chunk: `passed` is the decay of each channel over it."""
    more = ()
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        more += (X[part] * tl.load(passed + keys, mask=keys < key_dim, other=0.0)[None, :],)
    return more


@triton.jit
def products_of(
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
def by_query(
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
    X, _ = rows_and_ones(q, piece_stride, stride_k, left, key_dim, C, BK, PARTS)
    for step in tl.range(1, chunks_before(before, window, C) + 1, disable_licm=True):
        back = tl.cast(step, tl.int64) * C
        Y = load_slices(k - back * stride_k, piece_stride, rows, stride_k, C, key_dim, BK, PARTS)
        products = products_of(X, Y, DTYPE, C, PARTS)
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
        X = passing(X, passed, key_dim, BK, PARTS)
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
