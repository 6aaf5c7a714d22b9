"""Queries of PaTH attention come back from the farthest span with the gradient of X:

    dX ← dX Mᵀ + dS K'        dK' += dSᵀ X        dM += Xᵀ dX

where dX of dM is that behind the span. See `path_spans` for the matrices.
"""

import triton
import triton.language as tl

from kernels.primitives.chunks import locate_chunk, locate_sequence
from kernels.primitives.pieces import (
    elements,
    load_pieces,
    load_slices,
    product_of_pieces,
    rounded_product,
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
    gradient_from_sums,
    load_row_terms,
    place_in_heads,
)
from kernels.softmax.path_spans import load_block
from kernels.softmax.path_walk import locate_in_run, place_kept, products_with_keys


@triton.jit
def _return_span(
    dX, kept, m_rows, piece_stride_dx, piece_stride_m, stride, left, key_dim,
    DTYPE: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    SLICE: tl.constexpr,
):  # fmt: skip
    """dX Mᵀ, in PARTS slices of K: dX at the start of a span from dX behind it, which is kept."""
    rows = tl.arange(0, BQ)
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        store_pieces(kept, piece_stride_dx, dX[part], rows, keys, stride, left, key_dim)
    # Wait for the rows that other threads write.
    tl.debug_barrier()
    returned = ()
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        acc = tl.zeros((BQ, BK), tl.float32)
        for start in tl.range(0, key_dim, SLICE):
            along = start + tl.arange(0, SLICE)
            of_x = load_pieces(kept, piece_stride_dx, rows, along, stride, left, key_dim)
            M_tile = load_pieces(m_rows, piece_stride_m, keys, along, key_dim, key_dim, key_dim)
            acc = product_of_pieces(of_x, transposed(M_tile), DTYPE, acc)
        returned += (acc,)
    return returned


@triton.jit(do_not_specialize=["run", "sequences", "tokens", "heads", "group", "spans"])
def walk_back(
    x, dx, k, m, v, do, terms, weights, dscores, dq, row_sums, column_sums, sums,
    gate, rest, shut_count, cu_seqlens, run, sequences, tokens, heads, group, spans,
    key_dim: tl.int32, value_dim: tl.int32,
    GATED: tl.constexpr, PACKED: tl.constexpr, DTYPE: tl.constexpr,
    BQ: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr, RUN: tl.constexpr,
    BK: tl.constexpr, PARTS: tl.constexpr, SLICE: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """dX at the start of the span, dq [B, T, H, K], of BQ queries of a run; dX behind a span is
    kept in dx [RUN, B, T, H, K]. Weights and dS [RUN, B, T, H, S] of a span of keys are kept in its
    places, too.

    With gates also sums of dS with keys of earlier spans: row_sums [B, H, T], column_sums
    [RUN S / BQ, B, H, T] of the keys, and sums [RUN, B, H, T] of the spans before one.
    """
    head = tl.program_id(0) % heads
    first, left, sequence, before = locate_in_run(
        tl.program_id(0) // heads, run, cu_seqlens, tokens, SPAN, RUN, BQ, PACKED
    )
    if left <= 0:
        return
    rows = tl.arange(0, BQ)
    ahead = tl.arange(0, BN)
    values = tl.arange(0, PAD_V)
    exists = rows < left
    kv_heads = heads // group
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    stride_v = kv_heads * value_dim
    stride_o = heads * value_dim
    inside = before % SPAN
    row = first - inside
    k += (row * kv_heads + head // group) * key_dim
    v += (row * kv_heads + head // group) * value_dim
    x += (first * heads + head) * key_dim
    dq += (first * heads + head) * key_dim
    do += (first * heads + head) * value_dim
    half = elements(sequences, tokens, stride, PACKED)
    piece_stride_x = (1 + RUN) * half
    piece_stride_dx = RUN * half
    piece_stride_k = elements(sequences, tokens, stride_k, PACKED)
    piece_stride_m = tl.cast(spans, tl.int64) * stride_k * key_dim
    earlier = before // SPAN
    dx += (first * heads + head) * key_dim + earlier % RUN * half
    _, _, first_span = locate_sequence(sequence, cu_seqlens, tokens, SPAN, PACKED)
    m += ((first_span + earlier) * kv_heads + head // group) * key_dim * key_dim
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
    count = elements(sequences, tokens, heads, PACKED)
    sums += earlier % RUN * count
    column_sums += before // BQ % (RUN * SPAN // BQ) * count
    stride_s = tl.cast(heads, tl.int64) * SPAN
    pairs = earlier % RUN * count * SPAN + (first * heads + head) * SPAN
    weights += pairs
    dscores += pairs
    row_max, inverse, row_delta = load_row_terms(terms + place + rows, count, exists)
    query_gate = as_rows(gates_of_chunk(gate, rest, shut_count, place, left, BQ, GATED), GATED)
    do_tile = load_rows(do, rows, values, stride_o, left, value_dim)
    row_sum = tl.zeros((BQ,), tl.float32)
    dX = ()
    for _ in tl.static_range(PARTS):
        dX += (tl.zeros((BQ, BK), tl.float32),)
    for at in tl.range(0, earlier, disable_licm=True):
        step = tl.cast(earlier - at, tl.int64)
        back = step * SPAN
        if GATED:
            tl.store(sums + place - back + rows, row_sum, mask=exists)
        if at > 0:
            # Behind the span before, which is farther away.
            dX = _return_span(
                dX, dx - (back + SPAN) * stride, m - step * stride_k * key_dim,
                piece_stride_dx, piece_stride_m, stride, left, key_dim, DTYPE, BQ, BK, PARTS, SLICE,
            )  # fmt: skip
        x_from = x + place_kept(step, earlier, half, stride, SPAN, RUN)
        X = load_slices(x_from, piece_stride_x, rows, stride, left, key_dim, BK, PARTS)
        for start in tl.range(0, SPAN, BN):
            k_rows = k + (start - back) * stride_k
            products = products_with_keys(
                X, k_rows, ahead, piece_stride_k, stride_k, key_dim, DTYPE, BQ, BN, BK, PARTS
            )
            key_place = place - inside - back + start
            key_gate = gates_of_chunk(gate, rest, shut_count, key_place, BN, BN, GATED)
            key_gate = as_columns(key_gate, GATED)
            s = base2_logits(products, query_gate, key_gate, row_max[:, None], GATED)
            v_rows = v + (start - back) * stride_v
            v_tile = load_rows(v_rows, ahead, values, stride_v, BN, value_dim)
            dp = product(do_tile, tl.trans(v_tile), DTYPE)
            # The gates of rows that do not exist are 0, and others may be far below.
            p = tl.where(exists[:, None], tl.exp2(s) * inverse[:, None], 0.0)
            ds = p * (dp - row_delta[:, None])
            here = start - back * stride_s
            store_rows(weights + here, p, rows, ahead, stride_s, left, BN)
            store_rows(dscores + here, ds, rows, ahead, stride_s, left, BN)
            if GATED:
                row_sum += tl.sum(ds, 1)
                tl.store(column_sums + key_place + ahead, tl.sum(ds, 0))
            more = ()
            for part in tl.static_range(PARTS):
                keys = part * BK + tl.arange(0, BK)
                tile_k = load_pieces(k_rows, piece_stride_k, ahead, keys, stride_k, BN, key_dim)
                more += (rounded_product(ds, tile_k, DTYPE, dX[part]),)
            dX = more
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        store_rows(dq, dX[part], rows, keys, stride, left, key_dim)
    if GATED:
        tl.store(row_sums + place + rows, row_sum, mask=exists)


@triton.jit
def _add_rows(x, y, rows, columns, stride, num_rows, num_columns):
    """Add to rows in memory."""
    y += load_rows(x, rows, columns, stride, num_rows, num_columns)
    store_rows(x, y, rows, columns, stride, num_rows, num_columns)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def own_values(
    do, weights, dv, cu_seqlens, sequences, tokens, heads, group,
    value_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """Add what the queries of a span give to C of its own values to dv [B, T, G, V]."""
    kv_heads = heads // group
    chunk = tl.program_id(0) // kv_heads
    kv_head = tl.program_id(0) % kv_heads
    first, left, _, before = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    values = tl.arange(0, PAD_V)
    inside = tl.multiple_of(before % span, C)
    stride_o = heads * value_dim
    stride_s = tl.cast(heads, tl.int64) * SPAN
    acc = tl.zeros((C, PAD_V), tl.float32)
    for head in tl.range(kv_head * group, (kv_head + 1) * group, disable_licm=True):
        row = first * heads + head
        for on in tl.range(0, tl.minimum(span - inside, left), C, disable_licm=True):
            p = load_block(weights + row * SPAN, on, inside, stride_s, left, C)
            do_rows = do + row * value_dim + on * stride_o
            do_tile = load_rows(do_rows, rows, values, stride_o, left - on, value_dim)
            acc = product(tl.trans(p), do_tile, DTYPE, acc=acc)
    stride_v = kv_heads * value_dim
    dv += (first * kv_heads + kv_head) * value_dim
    _add_rows(dv, acc, rows, values, stride_v, left, value_dim)


@triton.jit(do_not_specialize=["run", "sequences", "tokens", "heads", "group"])
def by_key(
    x, weights, dscores, do, dk, dv, cu_seqlens,
    run, sequences, tokens, heads, group, key_dim: tl.int32, value_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr,
    BN: tl.constexpr, BQ: tl.constexpr, SPAN: tl.constexpr, RUN: tl.constexpr,
    BK: tl.constexpr, PARTS: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """Add what the queries of a run give to BN keys of an earlier span to dK' [B, T, G, K] and
    dv [B, T, G, V]."""
    kv_heads = heads // group
    kv_head = tl.program_id(0) % kv_heads
    tile = tl.program_id(0) // kv_heads
    # No query is behind the last span.
    tiles = ((run + 1) * RUN - 1) * (SPAN // BN)
    sequence = (tile // tiles).to(tl.int64)
    begin, length, _ = locate_sequence(sequence, cu_seqlens, tokens, SPAN, PACKED)
    before = tile % tiles * BN
    own = before // SPAN
    if length <= (own + 1) * SPAN:
        return
    rows = tl.arange(0, BN)
    ahead = tl.arange(0, BQ)
    values = tl.arange(0, PAD_V)
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    stride_v = kv_heads * value_dim
    stride_o = heads * value_dim
    stride_s = tl.cast(heads, tl.int64) * SPAN
    half = elements(sequences, tokens, stride, PACKED)
    copy = elements(sequences, tokens, heads, PACKED) * SPAN
    dk_acc = ()
    for _ in tl.static_range(PARTS):
        dk_acc += (tl.zeros((BN, BK), tl.float32),)
    dv_acc = tl.zeros((BN, PAD_V), tl.float32)
    last = tl.minimum((run + 1) * RUN, tl.cdiv(length, SPAN))
    for head in tl.range(kv_head * group, (kv_head + 1) * group, disable_licm=True):
        for later in tl.range(tl.maximum(own + 1, run * RUN), last, disable_licm=True):
            step = tl.cast(later - own, tl.int64)
            row = (begin + later * SPAN) * heads + head
            x_rows = x + row * key_dim + place_kept(step, later, half, stride, SPAN, RUN)
            do_rows = do + row * value_dim
            kept = (
                later % RUN * copy
                + (row - step * SPAN * heads) * SPAN
                + tl.multiple_of(before % SPAN, BN)
            )
            count = length - later * SPAN
            for on in tl.range(0, tl.minimum(SPAN, count), BQ):
                left = count - on
                at = kept + on * stride_s
                p = load_rows(weights + at, ahead, rows, stride_s, left, BN)
                do_tile = load_rows(
                    do_rows + on * stride_o, ahead, values, stride_o, left, value_dim
                )
                dv_acc = product(tl.trans(p), do_tile, DTYPE, acc=dv_acc)
                ds = load_rows(dscores + at, ahead, rows, stride_s, left, BN)
                more = ()
                for part in tl.static_range(PARTS):
                    keys = part * BK + tl.arange(0, BK)
                    X = load_pieces(
                        x_rows + on * stride, (1 + RUN) * half, ahead, keys, stride, left, key_dim
                    )
                    more += (rounded_product(tl.trans(ds), X, DTYPE, dk_acc[part]),)
                dk_acc = more
    first = begin + before
    dk += (first * kv_heads + kv_head) * key_dim
    dv += (first * kv_heads + kv_head) * value_dim
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        _add_rows(dk, dk_acc[part], rows, keys, stride_k, BN, key_dim)
    _add_rows(dv, dv_acc, rows, values, stride_v, BN, value_dim)


@triton.jit(do_not_specialize=["run", "sequences", "tokens", "heads", "group"])
def cross_backward(
    x, dx, dm, sums, through, cu_seqlens, run, sequences, tokens, heads, group,
    key_dim: tl.int32,
    GATED: tl.constexpr, PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    RUN: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    PAD_V: tl.constexpr,
):  # fmt: skip
    """Add what the queries of a run give to C rows of dM [spans, G, K, K] of a span before them,
    and to the sums of dS of pairs that pass over it, through [spans, H]."""
    down = tl.cdiv(key_dim, C)
    kv_heads = heads // group
    kv_head = tl.program_id(0) % kv_heads
    start = tl.program_id(0) // kv_heads % down * C
    # Nothing passes over the first span and over the last.
    parts = (run + 1) * RUN - 2
    own = tl.program_id(0) // kv_heads // down % parts + 1
    sequence = (tl.program_id(0) // kv_heads // down // parts).to(tl.int64)
    begin, length, first_span = locate_sequence(sequence, cu_seqlens, tokens, SPAN, PACKED)
    last = tl.minimum((run + 1) * RUN, tl.cdiv(length, SPAN))
    if own + 1 >= last:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    half = elements(sequences, tokens, stride, PACKED)
    count = elements(sequences, tokens, heads, PACKED)
    cell = (first_span + own) * heads
    acc = ()
    for _ in tl.static_range(PARTS):
        acc += (tl.zeros((C, BK), tl.float32),)
    for head in tl.range(kv_head * group, (kv_head + 1) * group, disable_licm=True):
        place = place_in_heads(begin, sequence, head, heads, tokens, PACKED)
        total = tl.zeros((C,), tl.float32)
        for later in tl.range(tl.maximum(own + 1, run * RUN), last, disable_licm=True):
            step = tl.cast(later - own, tl.int64)
            for on in tl.range(0, tl.minimum(SPAN, length - later * SPAN), C, disable_licm=True):
                left = length - later * SPAN - on
                query = ((begin + later * SPAN + on) * heads + head) * key_dim
                x_rows = x + query + place_kept(step, later, half, stride, SPAN, RUN)
                dx_rows = dx + query - (step + 1) * SPAN * stride + later % RUN * half
                X = load_pieces(x_rows, (1 + RUN) * half, rows, start + rows, stride, left, key_dim)
                more = ()
                for part in tl.static_range(PARTS):
                    keys = part * BK + tl.arange(0, BK)
                    dX = load_pieces(dx_rows, RUN * half, rows, keys, stride, left, key_dim)
                    more += (product_of_pieces(transposed(X), dX, DTYPE, acc[part]),)
                acc = more
                if GATED:
                    at = sums + later % RUN * count + place + own * SPAN + on + rows
                    total += tl.load(at, mask=rows < left, other=0.0)
        if GATED:
            to = through + cell + head
            # All parts compute the same sum: one of them writes.
            mine = start == 0
            tl.store(to, tl.load(to, mask=mine, other=0.0) + tl.sum(total, 0), mask=mine)
    dm += ((first_span + own) * kv_heads + kv_head) * key_dim * key_dim
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        _add_rows(dm, acc[part], start + rows, keys, key_dim, key_dim, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def gates_backward(
    dscores, row_sums, column_sums, through, dg, cu_seqlens, sequences, tokens, heads,
    span: tl.int32, PACKED: tl.constexpr, SPAN: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """dg [B, T, H] of one block."""
    chunk = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, sequence, before = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED) + rows
    inside = tl.multiple_of(before % span, C)
    exists = rows < left
    left += inside
    dscores += ((first - inside) * heads + head) * SPAN
    stride_s = tl.cast(heads, tl.int64) * SPAN
    _, _, first_span = locate_sequence(sequence, cu_seqlens, tokens, SPAN, PACKED)
    across = tl.load(through + (first_span + before // SPAN) * heads + head)
    # Other blocks of the span add to what other spans give.
    of_rows = tl.load(row_sums + place, mask=exists, other=0.0)
    for j in tl.range(0, inside, C, disable_licm=True):
        of_rows += tl.sum(load_block(dscores, inside, j, stride_s, left, C), 1)
        across += tl.sum(tl.load(column_sums + place - inside + j), 0)
    of_columns = tl.load(column_sums + place, mask=exists, other=0.0)
    for i in tl.range(inside + C, tl.minimum(left, span), C, disable_licm=True):
        of_columns += tl.sum(load_block(dscores, i, inside, stride_s, left, C), 0)
        at = place - inside + i
        across += tl.sum(tl.load(row_sums + at, mask=i + rows < left, other=0.0), 0)
        for j in tl.range(0, inside, C, disable_licm=True):
            across += tl.sum(tl.sum(load_block(dscores, i, j, stride_s, left, C), 1), 0)
    ds = load_block(dscores, inside, inside, stride_s, left, C)
    of_gate = across + gradient_from_sums(ds, of_rows, of_columns, C)
    tl.store(dg + first * heads + head + rows * heads, of_gate, mask=exists)
