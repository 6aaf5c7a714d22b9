"""The walk of PaTH's queries over the spans before their own; `path_spans` has the matrices."""

import triton
import triton.language as tl

from kernels.primitives.chunks import locate_chunk, locate_sequence
from kernels.primitives.pieces import (
    elements,
    load_pieces,
    load_slices,
    product_of_pieces,
    store_pieces,
    transposed,
)
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows
from kernels.softmax.chunked import (
    as_columns,
    as_rows,
    base2_logits,
    gates_of_chunk,
    place_in_heads,
    softmax_step,
    store_row_terms,
)

# Spans of queries of a launch of the backward pass. Two would take 4 % less time, and one more copy
# of X, of dX, of weights and of their gradients.
RUN = 1


@triton.jit
def locate_in_run(
    part, run, cu_seqlens, tokens, SPAN: tl.constexpr, RUN: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Where part `part` of ROWS queries of a run is, as `locate_chunk` says of a chunk. A run has
    equally many parts in every sequence."""
    parts: tl.constexpr = RUN * SPAN // ROWS
    sequence = (part // parts).to(tl.int64)
    start, length, _ = locate_sequence(sequence, cu_seqlens, tokens, SPAN, PACKED)
    before = run * RUN * SPAN + part % parts * ROWS
    return start + before, length - before, sequence, before


@triton.jit
def place_kept(step, later, half, stride, SPAN: tl.constexpr, RUN: tl.constexpr):
    """The offset from X of a query at the start of its span, number `later`, to X behind step - 1
    spans, which is kept in the place of the token `step` spans before the query."""
    moved = (step > 1).to(tl.int64)
    return moved * ((1 + later % RUN) * half - step * SPAN * stride)


@triton.jit
def products_with_keys(
    X, k_rows, ahead, piece_stride, stride, key_dim,
    DTYPE: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """X K'ᵀ `[BQ, BN]`: X in PARTS slices of K, and the rows `ahead` of K'."""
    products = tl.zeros((BQ, BN), tl.float32)
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        tile_k = load_pieces(k_rows, piece_stride, ahead, keys, stride, BN, key_dim)
        products = product_of_pieces(X[part], transposed(tile_k), DTYPE, products)
    return products


@triton.jit
def _add_keys(
    products, visible, v, do, query_gate, key_gate, row_max, weight_sum, row_delta, acc,
    stride_v, stride_o, left, count, value_dim,
    GRADIENT: tl.constexpr, GATED: tl.constexpr, DTYPE: tl.constexpr,
    BQ: tl.constexpr, BN: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """Take a step of the online softmax over a tile of keys. It adds to the outputs `acc`, or if
    GRADIENT to δ."""
    p, shrink, row_max, weight_sum = softmax_step(
        products, visible, query_gate, key_gate, row_max, weight_sum, GATED
    )
    values = tl.arange(0, PAD_V)
    v_tile = load_rows(v, tl.arange(0, BN), values, stride_v, count, value_dim)
    if GRADIENT:
        do_tile = load_rows(do, tl.arange(0, BQ), values, stride_o, left, value_dim)
        row_delta = row_delta * shrink + tl.sum(p * product(do_tile, tl.trans(v_tile), DTYPE), 1)
    else:
        acc = product(p, v_tile, DTYPE, acc=acc * shrink[:, None])
    return row_max, weight_sum, row_delta, acc


@triton.jit
def _load_scores(
    scores, start, inside, left, stride_s, BQ: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Scores of queries with BN keys of their own span, from `start` on; which keys each query
    sees; and the offsets of the scores."""
    rows, ahead = tl.arange(0, BQ), tl.arange(0, BN)
    visible = start + ahead[None, :] <= inside + rows[:, None]
    at = rows[:, None] * stride_s + start + ahead[None, :]
    s = tl.load(scores + at, mask=visible & (rows < left)[:, None], other=0.0)
    return s, visible, at


@triton.jit
def _store_own_pairs(
    scores, dscores, v, do, gate, rest, shut_count, query_gate, row_max, inverse, row_delta,
    place, inside, left, stride_s, stride_v, stride_o, value_dim,
    GATED: tl.constexpr, DTYPE: tl.constexpr,
    BQ: tl.constexpr, BN: tl.constexpr, C: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """Of pairs within one span, write the weights over the scores, and dS."""
    rows, values = tl.arange(0, BQ), tl.arange(0, PAD_V)
    exists = (rows < left)[:, None]
    # Up to the end of a block of C keys: the backward pass reads whole blocks.
    for start in tl.range(0, tl.cdiv(inside + BQ, C) * C, BN):
        count = inside + left - start
        s, visible, at = _load_scores(scores, start, inside, left, stride_s, BQ, BN)
        own_place = place - inside + start
        key_gate = gates_of_chunk(gate, rest, shut_count, own_place, count, BN, GATED)
        key_gate = as_columns(key_gate, GATED)
        p = tl.exp2(base2_logits(s, query_gate, key_gate, row_max[:, None], GATED))
        v_rows = v + start * stride_v
        v_tile = load_rows(v_rows, tl.arange(0, BN), values, stride_v, count, value_dim)
        do_tile = load_rows(do, rows, values, stride_o, left, value_dim)
        dp = product(do_tile, tl.trans(v_tile), DTYPE)
        # Rows past the end have gates of 0, far above the keys', so their weights may be infinite.
        p = tl.where(visible & exists, p * inverse[:, None], 0.0)
        tl.store(scores + at, p, mask=exists)
        tl.store(dscores + at, p * (dp - row_delta[:, None]), mask=exists)


@triton.jit
def _pass_span(
    x_from, x_to, m, piece_stride_x, piece_stride_m, stride, left, key_dim,
    DTYPE: tl.constexpr, BQ: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """Write X M, X behind a span, in narrow tiles: the outputs are in registers, too."""
    rows = tl.arange(0, BQ)
    for first in tl.range(0, key_dim, SLICE):
        columns = first + tl.arange(0, SLICE)
        passed = tl.zeros((BQ, SLICE), tl.float32)
        for start in tl.range(0, key_dim, SLICE):
            along = start + tl.arange(0, SLICE)
            X_tile = load_pieces(x_from, piece_stride_x, rows, along, stride, left, key_dim)
            M_tile = load_pieces(m, piece_stride_m, along, columns, key_dim, key_dim, key_dim)
            passed = product_of_pieces(X_tile, M_tile, DTYPE, passed)
        store_pieces(x_to, piece_stride_x, passed, rows, columns, stride, left, key_dim)


@triton.jit(do_not_specialize=["run", "sequences", "tokens", "heads", "group", "spans", "tiles"])
def attend(
    x, k, m, v, do, scores, o, dscores, terms, gate, rest, shut_count, cu_seqlens,
    run, sequences, tokens, heads, group, spans, tiles,
    key_dim: tl.int32, value_dim: tl.int32,
    GRADIENT: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr, DTYPE: tl.constexpr,
    BQ: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr, RUN: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, PARTS: tl.constexpr, SLICE: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of BQ queries of a head.

    x [2, B, T, H, K] holds X at the start of the span of the queries in its first half. The program
    walks back span by span, and writes X behind each span to the half that it does not read.

    If GRADIENT, the program does not write o but, for the queries of a run, the terms [3, B, H, T]:
    maximum, sum of weights and δ; and of pairs within one span the weights, over their scores, and
    dscores [B, T, H, S], their dS. It keeps X behind every span, in x [1 + RUN, B, T, H, K].
    """
    head = tl.program_id(0) % heads
    place_of_program = tl.program_id(0) // heads
    if GRADIENT:
        first, left, sequence, before = locate_in_run(
            place_of_program, run, cu_seqlens, tokens, SPAN, RUN, BQ, PACKED
        )
    else:
        # The last tiles see the most keys: start them first.
        tile = tiles - 1 - place_of_program
        first, left, sequence, before = locate_chunk(
            tile, cu_seqlens, sequences, tokens, BQ, PACKED
        )
    if left <= 0:
        return
    rows = tl.arange(0, BQ)
    ahead = tl.arange(0, BN)
    values = tl.arange(0, PAD_V)
    kv_heads = heads // group
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    stride_v = kv_heads * value_dim
    stride_o = heads * value_dim
    stride_s = tl.cast(heads, tl.int64) * SPAN
    inside = before % SPAN
    # The first row of the span of the queries.
    row = first - inside
    k += (row * kv_heads + head // group) * key_dim
    v += (row * kv_heads + head // group) * value_dim
    x += (first * heads + head) * key_dim
    o += (first * heads + head) * value_dim
    do += (first * heads + head) * value_dim
    scores += (first * heads + head) * SPAN
    dscores += (first * heads + head) * SPAN
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
    query_gate = as_rows(gates_of_chunk(gate, rest, shut_count, place, left, BQ, GATED), GATED)
    row_max = tl.full((BQ,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((BQ,), tl.float32)
    row_delta = tl.zeros((BQ,), tl.float32)
    # The outputs; with GRADIENT there are none.
    acc = tl.zeros((BQ, 1 if GRADIENT else PAD_V), tl.float32)
    for start in tl.range(0, inside + BQ, BN):
        count = inside + left - start
        s, visible, _ = _load_scores(scores, start, inside, left, stride_s, BQ, BN)
        key_gate = gates_of_chunk(gate, rest, shut_count, place - inside + start, count, BN, GATED)
        key_gate = as_columns(key_gate, GATED)
        row_max, weight_sum, row_delta, acc = _add_keys(
            s, visible, v + start * stride_v, do, query_gate, key_gate,
            row_max, weight_sum, row_delta, acc, stride_v, stride_o, left, count, value_dim,
            GRADIENT, GATED, DTYPE, BQ, BN, PAD_V,
        )  # fmt: skip
    half = elements(sequences, tokens, stride, PACKED)
    piece_stride_x = 2 * half
    piece_stride_k = elements(sequences, tokens, stride_k, PACKED)
    piece_stride_m = tl.cast(spans, tl.int64) * stride_k * key_dim
    if GRADIENT:
        piece_stride_x = (1 + RUN) * half
    earlier = before // SPAN
    _, _, first_span = locate_sequence(sequence, cu_seqlens, tokens, SPAN, PACKED)
    m += ((first_span + earlier) * kv_heads + head // group) * key_dim * key_dim
    own_v = v
    key_place = place - inside
    for step in tl.range(1, earlier + 1, disable_licm=True):
        k -= SPAN * stride_k
        v -= SPAN * stride_v
        m -= stride_k * key_dim
        key_place -= SPAN
        # Wait for the rows that other threads write.
        tl.debug_barrier()
        if GRADIENT:
            x_from = x + place_kept(tl.cast(step, tl.int64), earlier, half, stride, SPAN, RUN)
            x_to = x + place_kept(tl.cast(step, tl.int64) + 1, earlier, half, stride, SPAN, RUN)
        else:
            x_from = x + (step - 1) % 2 * half
            x_to = x + step % 2 * half
        X = load_slices(x_from, piece_stride_x, rows, stride, left, key_dim, BK, PARTS)
        for start in tl.range(0, SPAN, BN):
            k_rows = k + start * stride_k
            products = products_with_keys(
                X, k_rows, ahead, piece_stride_k, stride_k, key_dim, DTYPE, BQ, BN, BK, PARTS
            )
            key_gate = gates_of_chunk(gate, rest, shut_count, key_place + start, BN, BN, GATED)
            key_gate = as_columns(key_gate, GATED)
            row_max, weight_sum, row_delta, acc = _add_keys(
                products, rows[:, None] >= 0, v + start * stride_v, do, query_gate, key_gate,
                row_max, weight_sum, row_delta, acc, stride_v, stride_o, left, BN, value_dim,
                GRADIENT, GATED, DTYPE, BQ, BN, PAD_V,
            )  # fmt: skip
        if step < earlier:
            _pass_span(
                x_from, x_to, m, piece_stride_x, piece_stride_m, stride, left, key_dim,
                DTYPE, BQ, SLICE,
            )  # fmt: skip
    # Every query sees its own key.
    inverse = 1.0 / weight_sum
    if not GRADIENT:
        store_rows(o, acc * inverse[:, None], rows, values, stride_o, left, value_dim)
    else:
        row_delta *= inverse
        store_row_terms(
            terms + place + rows, elements(sequences, tokens, heads, PACKED),
            row_max, weight_sum, row_delta, rows < left,
        )  # fmt: skip
        _store_own_pairs(
            scores, dscores, own_v, do, gate, rest, shut_count, query_gate,
            row_max, inverse, row_delta, place, inside, left, stride_s, stride_v, stride_o,
            value_dim, GATED, DTYPE, BQ, BN, C, PAD_V,
        )  # fmt: skip
