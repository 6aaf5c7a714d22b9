"""PaTH attention in tiles: keys are reflected on their way to the query.

Tokens are cut into spans. With W, K, Q the rows of one span, and the representation of Woodbury and
Young of its reflections,

    A = tril₋₁(W Wᵀ)    L = (I + diag(β) A)⁻¹    T = L diag(β)
    D = T tril₋₁(W Kᵀ)    Z = T W    K' = K - Dᵀ W    M = H_S ... H_1 = I - Wᵀ Z
    E = tril(Q Wᵀ)    X = scale (Q - E Z)

the products of pairs of one span are tril(Q Kᵀ) - E D, and those with keys of an earlier span are
X K'ᵀ: X in the span before, and behind each span X ← X M. Matrices [S, S] are lower triangular, and
computed in blocks of C rows.

Backward, queries walk as they do forwards, and come back from the farthest span with the gradient

    dX ← dX Mᵀ + dS K'        dK' += dSᵀ X        dM += Xᵀ dX

where dX of dM is that behind the span. A launch is for the queries of RUN spans of every sequence,
as all of them add to the same gradients: each is summed in a fixed order, and what is kept is
linear in T, as X and dX behind a span are kept in the places of that span's tokens.

Source: Yang et al., PaTH Attention, arXiv 2505.16381, section 3.2.
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
from kernels.linear.tiles import tile_of
from kernels.primitives.chunks import cut, locate_chunk, locate_sequence
from kernels.primitives.layout import contiguous
from kernels.primitives.pieces import (
    elements,
    empty_pieces,
    load_pieces,
    product_of_pieces,
    rounded_product,
    store_pieces,
    transposed,
)
from kernels.primitives.product import TRITON_DTYPES, product
from kernels.primitives.rows import load_rows, store_rows
from kernels.primitives.triangular import inverse_unit_lower
from kernels.recurrence import StatelessOptions
from kernels.softmax.chunked import (
    as_columns,
    as_rows,
    base2_logits,
    dot_rows,
    gates_of_chunk,
    gradient_from_sums,
    place_in_heads,
    soften,
)
from kernels.softmax.gates import cumulative_gates
from kernels.softmax.pairs import pairs, shapes
from kernels.tiles import cdiv, next_power_of_2

# Spans of queries of a launch of the backward pass. Two would take 4 % less time, and one more copy
# of X, of dX, of weights and of their gradients.
_RUN = 1


@triton.jit
def _exact(a, b, DTYPE: tl.constexpr, acc=None):
    """`a @ b`, neither rounded."""
    return product(a, b, DTYPE, FINE_A=True, FINE_B=True, acc=acc)


@triton.jit
def _lower(row, column, left, C: tl.constexpr):
    """Whether elements of a block are in the lower triangle, and their rows exist."""
    rows = row + tl.arange(0, C)[:, None]
    return (rows >= column + tl.arange(0, C)[None, :]) & (rows < left)


@triton.jit
def _block(matrix, row, column, stride, left, C: tl.constexpr):
    """A block `[C, C]` of a lower triangular matrix in memory."""
    rows = tl.arange(0, C)
    return load_rows(matrix + row * stride + column, rows, rows, stride, left - row, C)


@triton.jit
def _store_block(matrix, x, row, column, stride, left, C: tl.constexpr):
    rows = tl.arange(0, C)
    x = tl.where(_lower(row, column, left, C), x, 0.0)
    store_rows(matrix + row * stride + column, x, rows, rows, stride, left - row, C)


@triton.jit
def _overlaps(
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
    return tl.where(_lower(row, column + diagonal, left, C), products, 0.0)


@triton.jit
def _strengths(beta, row, heads, left, C: tl.constexpr):
    rows = row + tl.arange(0, C)
    return tl.load(beta + rows * heads, mask=rows < left, other=0.0).to(tl.float32)


@triton.jit
def _solution(
    inverse, beta, row, column, heads, left, SPAN: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """A block of T."""
    strengths = _strengths(beta, column, heads, left, C)
    return _block(inverse, row, column, SPAN, left, C) * strengths[None, :]


@triton.jit
def _locate_block(
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
    inside = tl.multiple_of(before % span, C)
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
        strengths = _strengths(beta, i, heads, left, C)[:, None]
        own = _overlaps(w, w, i, i, stride, stride, left, key_dim, 1, DTYPE, C, BK)
        of_block = inverse_unit_lower(strengths * own, C, DTYPE)
        _store_block(inverse, of_block, i, i, SPAN, left, C)
        for j in tl.range(0, i, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(j, i, C, disable_licm=True):
                between = _overlaps(w, w, i, e, stride, stride, left, key_dim, 1, DTYPE, C, BK)
                acc = _exact(between, _block(inverse, e, j, SPAN, left, C), DTYPE, acc)
            acc = -_exact(of_block, strengths * acc, DTYPE)
            _store_block(inverse, acc, i, j, SPAN, left, C)
        # Wait for the blocks that other threads write.
        tl.debug_barrier()
    for i in tl.range(0, count, C, disable_licm=True):
        for j in tl.range(0, i + C, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(j, i + C, C, disable_licm=True):
                T = _solution(inverse, beta, i, e, heads, left, SPAN, C)
                of_keys = _overlaps(w, k, e, j, stride, stride, left, key_dim, 1, DTYPE, C, BK)
                acc = _exact(T, of_keys, DTYPE, acc)
            _store_block(d, acc, i, j, SPAN, left, C)
        for start in range(0, key_dim, BK):
            keys = start + tl.arange(0, BK)
            acc = tl.zeros((C, BK), tl.float32)
            for e in tl.range(0, i + C, C, disable_licm=True):
                T = _solution(inverse, beta, i, e, heads, left, SPAN, C)
                w_tile = load_rows(w + e * stride, rows, keys, stride, left - e, key_dim)
                acc = _exact(T, w_tile, DTYPE, acc)
            store_rows(z + i * stride, acc, rows, keys, stride, left - i, key_dim)
    tl.debug_barrier()
    apart = elements(sequences, tokens, stride, PACKED)
    for j in tl.range(0, count, C, disable_licm=True):
        for start in range(0, key_dim, BK):
            keys = start + tl.arange(0, BK)
            acc = load_rows(k + j * stride, rows, keys, stride, left - j, key_dim).to(tl.float32)
            for i in tl.range(j, count, C, disable_licm=True):
                D = _block(d, i, j, SPAN, left, C)
                w_tile = load_rows(w + i * stride, rows, keys, stride, left - i, key_dim)
                acc = _exact(-tl.trans(D), w_tile, DTYPE, acc)
            store_pieces(k_out + j * stride, apart, acc, rows, keys, stride, left - j, key_dim)


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
    apart = tl.cast(spans, tl.int64) * stride * key_dim
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        acc = tl.where(down[:, None] == keys[None, :], 1.0, 0.0)
        for i in tl.range(0, SPAN, C):
            w_tile = load_rows(w + i * stride, rows, down, stride, C, key_dim)
            z_tile = load_rows(z + i * stride, rows, keys, stride, C, key_dim)
            acc = _exact(tl.trans(w_tile), -z_tile, DTYPE, acc)
        store_pieces(m, apart, acc, down, keys, key_dim, key_dim, key_dim)


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
    first, left, _, index, inside = _locate_block(
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
        acc = _overlaps(q, k, inside, j, stride, stride_k, left, key_dim, 0, DTYPE, C, BK)
        for e in tl.range(j, inside + C, C):
            E = _overlaps(q, w, inside, e, stride, stride_k, left, key_dim, 0, DTYPE, C, BK)
            acc = _exact(-E, _block(d, e, j, SPAN, left, C), DTYPE, acc)
        _store_block(scores, acc * scale, inside, j, stride_s, left, C)
    apart = COPIES * elements(sequences, tokens, stride, PACKED)
    q += inside * stride
    x += inside * stride
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        acc = load_rows(q, rows, keys, stride, left - inside, key_dim).to(tl.float32)
        for e in tl.range(0, inside + C, C):
            E = _overlaps(
                q - inside * stride, w, inside, e, stride, stride_k, left, key_dim, 0, DTYPE, C, BK
            )
            z_tile = load_rows(z + e * stride_k, rows, keys, stride_k, left - e, key_dim)
            acc = _exact(-E, z_tile, DTYPE, acc)
        store_pieces(x, apart, scale * acc, rows, keys, stride, left - inside, key_dim)


@triton.jit
def _locate_in_run(
    part, run, cu_seqlens, tokens, SPAN: tl.constexpr, RUN: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """What `locate_chunk` returns of ROWS queries of a run, which has as many parts in every
    sequence."""
    parts: tl.constexpr = RUN * SPAN // ROWS
    sequence = (part // parts).to(tl.int64)
    start, length, _ = locate_sequence(sequence, cu_seqlens, tokens, SPAN, PACKED)
    before = run * RUN * SPAN + part % parts * ROWS
    return start + before, length - before, sequence, before


@triton.jit
def _kept(step, later, half, stride, SPAN: tl.constexpr, RUN: tl.constexpr):
    """From X of a query of span `later` at the start of its own span to X `step` spans before it,
    which is kept in the place of a token of that span."""
    moved = (step > 1).to(tl.int64)
    return moved * ((1 + later % RUN) * half - step * SPAN * stride)


@triton.jit(do_not_specialize=["run", "sequences", "tokens", "heads", "group", "spans", "tiles"])
def _attend(
    x, k, m, v, do, scores, o, dscores, terms, gate, rest, shut_count, cu_seqlens,
    run, sequences, tokens, heads, group, spans, tiles,
    key_dim: tl.int32, value_dim: tl.int32,
    GRADIENT: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr, DTYPE: tl.constexpr,
    BQ: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr, RUN: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, PARTS: tl.constexpr, SLICE: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of BQ queries of a head. x [2, B, T, H, K] holds X at the start of the span,
    and X behind a span is written to its other half and back.

    If GRADIENT, of the queries of a run: the weights of pairs of one span, over their scores, and
    their dS, dscores [B, T, H, S], and terms [3, B, H, T]: maximum, sum of weights and δ. X behind
    a span is kept in x [1 + RUN, B, T, H, K].
    """
    head = tl.program_id(0) % heads
    place_of_program = tl.program_id(0) // heads
    if GRADIENT:
        first, left, sequence, before = _locate_in_run(
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
    # Of the span that the queries are in.
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
    of_d = tl.zeros((BQ,), tl.float32)
    # The outputs, of which the backward pass has none.
    acc = tl.zeros((BQ, 1 if GRADIENT else PAD_V), tl.float32)
    for start in tl.range(0, inside + BQ, BN):
        count = inside + left - start
        visible = start + ahead[None, :] <= inside + rows[:, None]
        s = tl.load(
            scores + rows[:, None] * stride_s + start + ahead[None, :],
            mask=visible & (rows < left)[:, None],
            other=0.0,
        )
        key_gate = gates_of_chunk(gate, rest, shut_count, place - inside + start, count, BN, GATED)
        key_gate = as_columns(key_gate, GATED)
        p, shrink, row_max, weight_sum = soften(
            s, visible, query_gate, key_gate, row_max, weight_sum, GATED
        )
        v_tile = load_rows(v + start * stride_v, ahead, values, stride_v, count, value_dim)
        if GRADIENT:
            do_tile = load_rows(do, rows, values, stride_o, left, value_dim)
            of_d = of_d * shrink + tl.sum(p * product(do_tile, tl.trans(v_tile), DTYPE), 1)
        else:
            acc = product(p, v_tile, DTYPE, acc=acc * shrink[:, None])
    half = elements(sequences, tokens, stride, PACKED)
    apart_x = 2 * half
    apart_k = elements(sequences, tokens, stride_k, PACKED)
    apart_m = tl.cast(spans, tl.int64) * stride_k * key_dim
    if GRADIENT:
        apart_x = (1 + RUN) * half
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
            x_from = x + _kept(tl.cast(step, tl.int64), earlier, half, stride, SPAN, RUN)
            x_to = x + _kept(tl.cast(step, tl.int64) + 1, earlier, half, stride, SPAN, RUN)
        else:
            x_from = x + (step - 1) % 2 * half
            x_to = x + step % 2 * half
        X = ()
        for part in tl.static_range(PARTS):
            keys = part * BK + tl.arange(0, BK)
            X += (load_pieces(x_from, apart_x, rows, keys, stride, left, key_dim),)
        for start in tl.range(0, SPAN, BN):
            products = tl.zeros((BQ, BN), tl.float32)
            for part in tl.static_range(PARTS):
                keys = part * BK + tl.arange(0, BK)
                k_rows = k + start * stride_k
                tile_k = load_pieces(k_rows, apart_k, ahead, keys, stride_k, BN, key_dim)
                products = product_of_pieces(X[part], transposed(tile_k), DTYPE, products)
            key_gate = gates_of_chunk(gate, rest, shut_count, key_place + start, BN, BN, GATED)
            key_gate = as_columns(key_gate, GATED)
            p, shrink, row_max, weight_sum = soften(
                products, rows[:, None] >= 0, query_gate, key_gate, row_max, weight_sum, GATED
            )
            v_tile = load_rows(v + start * stride_v, ahead, values, stride_v, BN, value_dim)
            if GRADIENT:
                do_tile = load_rows(do, rows, values, stride_o, left, value_dim)
                of_d = of_d * shrink + tl.sum(p * product(do_tile, tl.trans(v_tile), DTYPE), 1)
            else:
                acc = product(p, v_tile, DTYPE, acc=acc * shrink[:, None])
        if step < earlier:
            # Narrow tiles, beside the outputs in registers.
            for left_of in tl.range(0, key_dim, SLICE):
                columns = left_of + tl.arange(0, SLICE)
                passed = tl.zeros((BQ, SLICE), tl.float32)
                for start in tl.range(0, key_dim, SLICE):
                    along = start + tl.arange(0, SLICE)
                    X_tile = load_pieces(x_from, apart_x, rows, along, stride, left, key_dim)
                    M_tile = load_pieces(m, apart_m, along, columns, key_dim, key_dim, key_dim)
                    passed = product_of_pieces(X_tile, M_tile, DTYPE, passed)
                store_pieces(x_to, apart_x, passed, rows, columns, stride, left, key_dim)
    # Every query sees its own key.
    inverse = 1.0 / weight_sum
    if not GRADIENT:
        store_rows(o, acc * inverse[:, None], rows, values, stride_o, left, value_dim)
    else:
        of_d *= inverse
        to = terms + place + rows
        apart = elements(sequences, tokens, heads, PACKED)
        tl.store(to, row_max, mask=rows < left)
        tl.store(to + apart, weight_sum, mask=rows < left)
        tl.store(to + 2 * apart, of_d, mask=rows < left)
        # Whole blocks.
        for start in tl.range(0, tl.cdiv(inside + BQ, C) * C, BN):
            count = inside + left - start
            visible = start + ahead[None, :] <= inside + rows[:, None]
            visible &= (rows < left)[:, None]
            at = rows[:, None] * stride_s + start + ahead[None, :]
            s = tl.load(scores + at, mask=visible, other=0.0)
            own_place = place - inside + start
            key_gate = gates_of_chunk(gate, rest, shut_count, own_place, count, BN, GATED)
            key_gate = as_columns(key_gate, GATED)
            p = tl.exp2(base2_logits(s, query_gate, key_gate, row_max[:, None], GATED))
            v_tile = load_rows(own_v + start * stride_v, ahead, values, stride_v, count, value_dim)
            do_tile = load_rows(do, rows, values, stride_o, left, value_dim)
            dp = product(do_tile, tl.trans(v_tile), DTYPE)
            # The gates of rows that do not exist are 0, and others may be far below.
            p = tl.where(visible, p * inverse[:, None], 0.0)
            tl.store(scores + at, p, mask=(rows < left)[:, None])
            tl.store(dscores + at, p * (dp - of_d[:, None]), mask=(rows < left)[:, None])


@triton.jit
def _load_terms(terms, count, place, inside):
    """Maximum, inverse sum of weights, and δ of queries, of which those `inside` exist."""
    row_max = tl.load(terms + place, mask=inside, other=0.0)
    weight_sum = tl.load(terms + count + place, mask=inside, other=1.0)
    of_d = tl.load(terms + 2 * count + place, mask=inside, other=0.0)
    return row_max, 1.0 / weight_sum, of_d


@triton.jit(do_not_specialize=["run", "sequences", "tokens", "heads", "group", "spans"])
def _return(
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
    first, left, sequence, before = _locate_in_run(
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
    apart_x = (1 + RUN) * half
    apart_dx = RUN * half
    apart_k = elements(sequences, tokens, stride_k, PACKED)
    apart_m = tl.cast(spans, tl.int64) * stride_k * key_dim
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
    row_max, inverse, of_d = _load_terms(terms, count, place + rows, exists)
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
            passed = dx - (back + SPAN) * stride
            for part in tl.static_range(PARTS):
                keys = part * BK + tl.arange(0, BK)
                store_pieces(passed, apart_dx, dX[part], rows, keys, stride, left, key_dim)
            # Wait for the rows that other threads write.
            tl.debug_barrier()
            m_rows = m - step * stride_k * key_dim
            dX = ()
            for part in tl.static_range(PARTS):
                keys = part * BK + tl.arange(0, BK)
                acc = tl.zeros((BQ, BK), tl.float32)
                for start in tl.range(0, key_dim, SLICE):
                    along = start + tl.arange(0, SLICE)
                    of_x = load_pieces(passed, apart_dx, rows, along, stride, left, key_dim)
                    M_tile = load_pieces(m_rows, apart_m, keys, along, key_dim, key_dim, key_dim)
                    acc = product_of_pieces(of_x, transposed(M_tile), DTYPE, acc)
                dX += (acc,)
        x_from = x + _kept(step, earlier, half, stride, SPAN, RUN)
        X = ()
        for part in tl.static_range(PARTS):
            keys = part * BK + tl.arange(0, BK)
            X += (load_pieces(x_from, apart_x, rows, keys, stride, left, key_dim),)
        for start in tl.range(0, SPAN, BN):
            products = tl.zeros((BQ, BN), tl.float32)
            k_rows = k + (start - back) * stride_k
            for part in tl.static_range(PARTS):
                keys = part * BK + tl.arange(0, BK)
                tile_k = load_pieces(k_rows, apart_k, ahead, keys, stride_k, BN, key_dim)
                products = product_of_pieces(X[part], transposed(tile_k), DTYPE, products)
            key_place = place - inside - back + start
            key_gate = gates_of_chunk(gate, rest, shut_count, key_place, BN, BN, GATED)
            key_gate = as_columns(key_gate, GATED)
            s = base2_logits(products, query_gate, key_gate, row_max[:, None], GATED)
            v_rows = v + (start - back) * stride_v
            v_tile = load_rows(v_rows, ahead, values, stride_v, BN, value_dim)
            dp = product(do_tile, tl.trans(v_tile), DTYPE)
            # The gates of rows that do not exist are 0, and others may be far below.
            p = tl.where(exists[:, None], tl.exp2(s) * inverse[:, None], 0.0)
            ds = p * (dp - of_d[:, None])
            here = start - back * stride_s
            store_rows(weights + here, p, rows, ahead, stride_s, left, BN)
            store_rows(dscores + here, ds, rows, ahead, stride_s, left, BN)
            if GATED:
                row_sum += tl.sum(ds, 1)
                tl.store(column_sums + key_place + ahead, tl.sum(ds, 0))
            more = ()
            for part in tl.static_range(PARTS):
                keys = part * BK + tl.arange(0, BK)
                tile_k = load_pieces(k_rows, apart_k, ahead, keys, stride_k, BN, key_dim)
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
def _own_values(
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
            p = _block(weights + row * SPAN, on, inside, stride_s, left, C)
            do_rows = do + row * value_dim + on * stride_o
            do_tile = load_rows(do_rows, rows, values, stride_o, left - on, value_dim)
            acc = product(tl.trans(p), do_tile, DTYPE, acc=acc)
    stride_v = kv_heads * value_dim
    dv += (first * kv_heads + kv_head) * value_dim
    _add_rows(dv, acc, rows, values, stride_v, left, value_dim)


@triton.jit(do_not_specialize=["run", "sequences", "tokens", "heads", "group"])
def _by_key(
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
            x_rows = x + row * key_dim + _kept(step, later, half, stride, SPAN, RUN)
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
def _cross_backward(
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
                x_rows = x + query + _kept(step, later, half, stride, SPAN, RUN)
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
            # One of the parts writes it.
            mine = start == 0
            tl.store(to, tl.load(to, mask=mine, other=0.0) + tl.sum(total, 0), mask=mine)
    dm += ((first_span + own) * kv_heads + kv_head) * key_dim * key_dim
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        _add_rows(dm, acc[part], start + rows, keys, key_dim, key_dim, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _gates_backward(
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
        of_rows += tl.sum(_block(dscores, inside, j, stride_s, left, C), 1)
        across += tl.sum(tl.load(column_sums + place - inside + j), 0)
    of_columns = tl.load(column_sums + place, mask=exists, other=0.0)
    for i in tl.range(inside + C, tl.minimum(left, span), C, disable_licm=True):
        of_columns += tl.sum(_block(dscores, i, inside, stride_s, left, C), 0)
        at = place - inside + i
        across += tl.sum(tl.load(row_sums + at, mask=i + rows < left, other=0.0), 0)
        for j in tl.range(0, inside, C, disable_licm=True):
            across += tl.sum(tl.sum(_block(dscores, i, j, stride_s, left, C), 1), 0)
    ds = _block(dscores, inside, inside, stride_s, left, C)
    of_gate = across + gradient_from_sums(ds, of_rows, of_columns, C)
    tl.store(dg + first * heads + head + rows * heads, of_gate, mask=exists)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def _by_row(
    q, k, w, z, d, dx, dscores, e_out, de_out, dq, cu_seqlens, scale,
    sequences, tokens, heads, group, key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K], and E and dE [B, T, H, S], of one block of queries."""
    head = tl.program_id(0) % heads
    first, left, _, index, inside = _locate_block(
        tl.program_id(0) // heads, cu_seqlens, sequences, tokens, span, C, SPAN, PACKED
    )
    if left <= inside:
        return
    rows = tl.arange(0, C)
    kv_heads = heads // group
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    row = (first * heads + head) * key_dim
    shared = (first * kv_heads + head // group) * key_dim
    q += row
    dx += row
    dq += row
    k += shared
    w += shared
    z += shared
    d += (index * kv_heads + head // group) * SPAN * SPAN
    pairs = (first * heads + head) * SPAN
    dscores += pairs
    e_out += pairs
    de_out += pairs
    stride_s = tl.cast(heads, tl.int64) * SPAN
    for e in tl.range(0, inside + C, C, disable_licm=True):
        E = _overlaps(q, w, inside, e, stride, stride_k, left, key_dim, 0, DTYPE, C, BK)
        _store_block(e_out, E, inside, e, stride_s, left, C)
        dE = _overlaps(dx, z, inside, e, stride, stride_k, left, key_dim, 0, DTYPE, C, BK)
        for j in tl.range(0, e + C, C, disable_licm=True):
            ds = _block(dscores, inside, j, stride_s, left, C)
            dE = _exact(ds, tl.trans(_block(d, e, j, SPAN, left, C)), DTYPE, dE)
        _store_block(de_out, -scale * dE, inside, e, stride_s, left, C)
    # Wait for the blocks that other threads write.
    tl.debug_barrier()
    for start in tl.range(0, key_dim, BK, disable_licm=True):
        keys = start + tl.arange(0, BK)
        acc = load_rows(dx + inside * stride, rows, keys, stride, left - inside, key_dim)
        for e in tl.range(0, inside + C, C, disable_licm=True):
            k_tile = load_rows(k + e * stride_k, rows, keys, stride_k, left - e, key_dim)
            acc = _exact(_block(dscores, inside, e, stride_s, left, C), k_tile, DTYPE, acc)
        acc *= scale
        for e in tl.range(0, inside + C, C, disable_licm=True):
            w_tile = load_rows(w + e * stride_k, rows, keys, stride_k, left - e, key_dim)
            acc = _exact(_block(de_out, inside, e, stride_s, left, C), w_tile, DTYPE, acc)
        store_rows(dq + inside * stride, acc, rows, keys, stride, left - inside, key_dim)


@triton.jit
def _turned_product(
    matrix, x, first, column, left, kv_head, heads, group, keys, key_dim, span,
    DTYPE: tl.constexpr, SPAN: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Σ matrixᵀ x `[C, BK]` of the heads of a group: C columns of each matrix [B, T, H, S], and a
    slice of x [B, T, H, K]."""
    rows = tl.arange(0, C)
    stride = heads * key_dim
    stride_s = tl.cast(heads, tl.int64) * SPAN
    acc = tl.zeros((C, BK), tl.float32)
    for head in tl.range(kv_head * group, (kv_head + 1) * group, disable_licm=True):
        row = first * heads + head
        for i in tl.range(column, tl.minimum(left, span), C, disable_licm=True):
            x_tile = load_rows(
                x + row * key_dim + i * stride, rows, keys, stride, left - i, key_dim
            )
            block = _block(matrix + row * SPAN, i, column, stride_s, left, C)
            acc = _exact(tl.trans(block), x_tile, DTYPE, acc)
    return acc


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def _by_column(
    q, w, z, dx, dscores, e_in, de, dm, dk, dw, dz, cu_seqlens, scale,
    sequences, tokens, heads, group, key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Of one block of keys, dZ [B, T, G, K], and what k and w get from scores, from E and from
    M."""
    kv_heads = heads // group
    kv_head = tl.program_id(0) % kv_heads
    first, left, before, index, inside = _locate_block(
        tl.program_id(0) // kv_heads, cu_seqlens, sequences, tokens, span, C, SPAN, PACKED
    )
    if left <= inside:
        return
    rows = tl.arange(0, C)
    stride_k = kv_heads * key_dim
    shared = (first * kv_heads + kv_head) * key_dim
    w += shared
    z += shared
    dk += shared
    dw += shared
    dz += shared
    dm += (index * kv_heads + kv_head) * key_dim * key_dim
    crossed = (before > 0) & (left > SPAN)
    here = inside * stride_k
    for start in tl.range(0, key_dim, BK, disable_licm=True):
        keys = start + tl.arange(0, BK)
        acc = _turned_product(
            dscores, q, first, inside, left, kv_head, heads, group, keys, key_dim, span,
            DTYPE, SPAN, C, BK,
        )  # fmt: skip
        store_rows(dk + here, scale * acc, rows, keys, stride_k, left - inside, key_dim)
        acc = _turned_product(
            de, q, first, inside, left, kv_head, heads, group, keys, key_dim, span,
            DTYPE, SPAN, C, BK,
        )  # fmt: skip
        if crossed:
            for at in tl.range(0, key_dim, BK, disable_licm=True):
                along = at + tl.arange(0, BK)
                z_tile = load_rows(z + here, rows, along, stride_k, left - inside, key_dim)
                dm_tile = load_rows(dm, keys, along, key_dim, key_dim, key_dim)
                acc = _exact(-z_tile, tl.trans(dm_tile), DTYPE, acc)
        store_rows(dw + here, acc, rows, keys, stride_k, left - inside, key_dim)
        acc = -scale * _turned_product(
            e_in, dx, first, inside, left, kv_head, heads, group, keys, key_dim, span,
            DTYPE, SPAN, C, BK,
        )  # fmt: skip
        if crossed:
            for at in tl.range(0, key_dim, BK, disable_licm=True):
                along = at + tl.arange(0, BK)
                w_tile = load_rows(w + here, rows, along, stride_k, left - inside, key_dim)
                dm_tile = load_rows(dm, along, keys, key_dim, key_dim, key_dim)
                acc = _exact(w_tile, -dm_tile, DTYPE, acc)
        store_rows(dz + here, acc, rows, keys, stride_k, left - inside, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def _by_pair(
    w, dscores, e_in, dk_out, dd, cu_seqlens, scale, sequences, tokens, heads, group,
    key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C rows of dD [spans, G, S, S], from scores and K'."""
    kv_heads = heads // group
    kv_head = tl.program_id(0) % kv_heads
    first, left, _, index, inside = _locate_block(
        tl.program_id(0) // kv_heads, cu_seqlens, sequences, tokens, span, C, SPAN, PACKED
    )
    if left <= inside:
        return
    stride_k = kv_heads * key_dim
    w += (first * kv_heads + kv_head) * key_dim
    dk_out += (first * kv_heads + kv_head) * key_dim
    dd += (index * kv_heads + kv_head) * SPAN * SPAN
    stride_s = tl.cast(heads, tl.int64) * SPAN
    count = tl.minimum(left, span)
    for j in tl.range(0, inside + C, C, disable_licm=True):
        acc = -_overlaps(w, dk_out, inside, j, stride_k, stride_k, left, key_dim, 0, DTYPE, C, BK)
        for head in tl.range(kv_head * group, (kv_head + 1) * group, disable_licm=True):
            pairs = (first * heads + head) * SPAN
            for i in tl.range(inside, count, C, disable_licm=True):
                E = _block(e_in + pairs, i, inside, stride_s, left, C)
                ds = _block(dscores + pairs, i, j, stride_s, left, C) * scale
                acc = _exact(-tl.trans(E), ds, DTYPE, acc)
        _store_block(dd, acc, inside, j, SPAN, left, C)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _solve_backward(
    k, w, beta, inverse, dz, dd, da, db, dbeta, cu_seqlens, sequences, tokens, heads,
    key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dbeta [B, T, G], and the gradients of A and of tril₋₁(W Kᵀ) [spans, G, S, S], from those of
    Z and D."""
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
    dz += row * key_dim
    beta += row
    dbeta += row
    cell = (index.to(tl.int64) * heads + head) * SPAN * SPAN
    inverse += cell
    dd += cell
    da += cell
    db += cell
    count = tl.minimum(left, span)
    # dT, in the place of dA
    for i in tl.range(0, count, C, disable_licm=True):
        for j in tl.range(0, i + C, C, disable_licm=True):
            dT = _overlaps(dz, w, i, j, stride, stride, left, key_dim, 0, DTYPE, C, BK)
            for e in tl.range(0, j + C, C, disable_licm=True):
                of_keys = _overlaps(w, k, j, e, stride, stride, left, key_dim, 1, DTYPE, C, BK)
                dT = _exact(_block(dd, i, e, SPAN, left, C), tl.trans(of_keys), DTYPE, dT)
            _store_block(da, dT, i, j, SPAN, left, C)
    tl.debug_barrier()
    # Lᵀ dT, in the place of the other
    for i in tl.range(0, count, C, disable_licm=True):
        for j in tl.range(0, i + C, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(i, count, C, disable_licm=True):
                of_block = tl.trans(_block(inverse, e, i, SPAN, left, C))
                acc = _exact(of_block, _block(da, e, j, SPAN, left, C), DTYPE, acc)
            _store_block(db, acc, i, j, SPAN, left, C)
    # The strengths of columns of T
    for j in tl.range(0, count, C, disable_licm=True):
        of_strengths = tl.zeros((C,), tl.float32)
        for i in tl.range(j, count, C, disable_licm=True):
            dT = _block(da, i, j, SPAN, left, C)
            of_strengths += tl.sum(dT * _block(inverse, i, j, SPAN, left, C), 0)
        tl.store(dbeta + (j + rows) * heads, of_strengths, mask=j + rows < left)
    tl.debug_barrier()
    # dA, and the strengths of rows of the system
    for i in tl.range(0, count, C, disable_licm=True):
        of_strengths = tl.zeros((C,), tl.float32)
        strengths = _strengths(beta, i, heads, left, C)
        for j in tl.range(0, i + C, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(0, j + C, C, disable_licm=True):
                T = _solution(inverse, beta, j, e, heads, left, SPAN, C)
                acc = _exact(-_block(db, i, e, SPAN, left, C), tl.trans(T), DTYPE, acc)
            acc = tl.where(_lower(i, j + 1, left, C), acc, 0.0)
            own = _overlaps(w, w, i, j, stride, stride, left, key_dim, 1, DTYPE, C, BK)
            of_strengths += tl.sum(acc * own, 1)
            _store_block(da, strengths[:, None] * acc, i, j, SPAN, left, C)
        at = dbeta + (i + rows) * heads
        of_strengths += tl.load(at, mask=i + rows < left, other=0.0)
        tl.store(at, of_strengths, mask=i + rows < left)
    tl.debug_barrier()
    for i in tl.range(0, count, C, disable_licm=True):
        for j in tl.range(0, i + C, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(i, count, C, disable_licm=True):
                T = _solution(inverse, beta, e, i, heads, left, SPAN, C)
                acc = _exact(tl.trans(T), _block(dd, e, j, SPAN, left, C), DTYPE, acc)
            acc = tl.where(_lower(i, j + 1, left, C), acc, 0.0)
            _store_block(db, acc, i, j, SPAN, left, C)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _add_system(
    k, w, beta, inverse, d, dz, dk_inner, da, db, dk_more, dw_more, dk, dw, cu_seqlens,
    sequences, tokens, heads,
    key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dk and dw [B, T, G, K] of one block: what they have already, and what they get from Z, K', A
    and tril₋₁(W Kᵀ)."""
    head = tl.program_id(0) % heads
    first, left, _, index, inside = _locate_block(
        tl.program_id(0) // heads, cu_seqlens, sequences, tokens, span, C, SPAN, PACKED
    )
    if left <= inside:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    here = ((first + inside) * heads + head) * key_dim
    row = first * heads + head
    k += row * key_dim
    w += row * key_dim
    dz += row * key_dim
    dk_inner += row * key_dim
    beta += row
    cell = (index * heads + head) * SPAN * SPAN
    inverse += cell
    d += cell
    da += cell
    db += cell
    for start in tl.range(0, key_dim, BK, disable_licm=True):
        keys = start + tl.arange(0, BK)
        acc = tl.zeros((C, BK), tl.float32)
        for e in tl.range(inside, tl.minimum(left, span), C, disable_licm=True):
            dz_tile = load_rows(dz + e * stride, rows, keys, stride, left - e, key_dim)
            of_block = tl.trans(_block(inverse, e, inside, SPAN, left, C))
            acc = _exact(of_block, dz_tile, DTYPE, acc)
        acc *= _strengths(beta, inside, heads, left, C)[:, None]
        acc += load_rows(dw_more + here, rows, keys, stride, left - inside, key_dim)
        for e in tl.range(0, inside + C, C, disable_licm=True):
            inner = load_rows(dk_inner + e * stride, rows, keys, stride, left - e, key_dim)
            acc = _exact(-_block(d, inside, e, SPAN, left, C), inner, DTYPE, acc)
        for e in tl.range(0, inside + C, C, disable_licm=True):
            k_tile = load_rows(k + e * stride, rows, keys, stride, left - e, key_dim)
            acc = _exact(_block(db, inside, e, SPAN, left, C), k_tile, DTYPE, acc)
        for e in tl.range(0, inside + C, C, disable_licm=True):
            w_tile = load_rows(w + e * stride, rows, keys, stride, left - e, key_dim)
            acc = _exact(_block(da, inside, e, SPAN, left, C), w_tile, DTYPE, acc)
        for e in tl.range(inside, tl.minimum(left, span), C, disable_licm=True):
            w_tile = load_rows(w + e * stride, rows, keys, stride, left - e, key_dim)
            acc = _exact(tl.trans(_block(da, e, inside, SPAN, left, C)), w_tile, DTYPE, acc)
        store_rows(dw + here, acc, rows, keys, stride, left - inside, key_dim)
        acc = load_rows(dk_more + here, rows, keys, stride, left - inside, key_dim)
        acc += load_rows(dk_inner + inside * stride, rows, keys, stride, left - inside, key_dim)
        for e in tl.range(inside, tl.minimum(left, span), C, disable_licm=True):
            w_tile = load_rows(w + e * stride, rows, keys, stride, left - e, key_dim)
            acc = _exact(tl.trans(_block(db, e, inside, SPAN, left, C)), w_tile, DTYPE, acc)
        store_rows(dk + here, acc, rows, keys, stride, left - inside, key_dim)


def _width(dim: int, tile: tiles.Tile, dtype: torch.dtype) -> int:
    """Columns of a slice of K or V."""
    return max(tile.narrowest(dtype.itemsize), min(next_power_of_2(dim), tile.features))


def _slices(dim: int, tile: tiles.Tile, dtype: torch.dtype) -> dict[str, int]:
    """Slices of K in a kernel, and how it is launched."""
    BK = _width(dim, tile, dtype)
    return {"BK": BK, "num_warps": tile.num_warps, "num_stages": tile.num_stages}


class _Within(NamedTuple):
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


class _Call:
    """What the kernels of a call share.

    Args:
        longest: tokens of the longest sequence.
        x: for X at the start of its span, its first part.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, cu_seqlens: Tensor | None,
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
            "RUN": _RUN,
            "PARTS": cdiv(self.key_dim, shape["BK"]),
            "PAD_V": max(tile.narrowest(self.q.dtype.itemsize), next_power_of_2(self.value_dim)),
        }

    def within(self, k: Tensor, w: Tensor, beta: Tensor, x: Tensor, scale: float) -> _Within:
        """Launch what needs the tokens of one span alone; write X at its start to the first part of
        x."""
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
        return _Within(inner_k, z, inverse, d, m, scores)


def _forward(
    *, q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    longest = check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    o = q.new_empty(*q.shape[:3], v.shape[3])
    if o.numel() == 0:
        return [o]
    q, k, v, w, beta = contiguous(q, k, v, w, beta)
    heads = q.shape[2]
    with torch.cuda.device_of(q):
        entry = tiles.TABLE["path_attn", "parallel"][tile]
        call = _Call(q, k, v, g, cu_seqlens, longest, entry)
        x = empty_pieces(q, 2, *q.shape)
        within = call.within(k, w, beta, x, scale)
        attend = call.tile("attend")
        shape = call.walk("attend")
        count = cut(*q.shape[:2], cu_seqlens, attend.tokens).count
        _attend[(count * heads,)](
            x, within.k, within.m, v, o, within.scores, o, o, o, *call.gates, cu_seqlens,
            0, *call.of_queries, call.spans.count, count, call.key_dim, call.value_dim,
            GRADIENT=False, BQ=attend.tokens, BN=attend.keys, C=call.block.tokens,
            SLICE=min(shape["BK"], 64), **shape,
        )  # fmt: skip
    return [o]


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, d0: Tensor, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    longest = check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    q, k, v, w, beta, g, do = contiguous(q, k, v, w, beta, g, d0)
    batch, tokens, heads, key_dim = q.shape
    dq, dk, dw = (torch.empty_like(x) for x in (q, k, w))
    dg = None if g is None else torch.empty_like(g)
    if dq.numel() == 0:
        return [dq, *(torch.zeros_like(x) for x in (k, v, w, beta)), dg, None]
    with torch.cuda.device_of(q):
        entry = tiles.TABLE["path_attn", "parallel"][tile]
        call = _Call(q, k, v, g, cu_seqlens, longest, entry)
        groups, span, spans = call.groups, call.span, call.spans.count
        x = empty_pieces(q, 1 + _RUN, *q.shape)
        within = call.within(k, w, beta, x, scale)
        dx = empty_pieces(q, _RUN, *q.shape)
        new = within.scores.new_empty
        dscores, terms = torch.empty_like(within.scores), new(3, batch, heads, tokens)
        dinner_q = new(q.shape)
        dinner_k, of_v = (torch.zeros_like(y, dtype=torch.float32) for y in (k, v))
        dm = torch.zeros(spans, groups, key_dim, key_dim, dtype=torch.float32, device=q.device)
        gated = call.gated
        sums = new(_RUN, batch, heads, tokens if gated else 0)
        rows, column_sums = dm.new_zeros(2, batch, heads, tokens if gated else 0)
        through = dm.new_zeros(spans, heads if gated else 0)
        kept = q.dtype if q.dtype == torch.bfloat16 else torch.float32
        weights, between = q.new_empty(2, _RUN, *dscores.shape, dtype=kept)
        sizes = call.of_queries
        dims = key_dim, call.value_dim
        names = ("walk", "return", "by_key", "cross")
        out, back, by_key, cross = (call.tile(name) for name in names)
        walk, turn, gather, over = (call.walk(name) for name in names)
        del gather["GATED"]
        columns = dm.new_zeros(_RUN * span // back.tokens, *column_sums.shape)
        for run in range(cdiv(longest, _RUN * span)):
            queries = call.chunks.sequences * _RUN * span * heads
            _attend[(queries // out.tokens,)](
                x, within.k, within.m, v, do, within.scores, do, dscores, terms, *call.gates,
                cu_seqlens, run, *sizes, spans, 0, *dims, GRADIENT=True,
                BQ=out.tokens, BN=out.keys, C=call.block.tokens,
                SLICE=min(walk["BK"], 64), **walk,
            )  # fmt: skip
            _return[(queries // back.tokens,)](
                x, dx, within.k, within.m, v, do, terms, weights, between, dinner_q, rows, columns,
                sums, *call.gates, cu_seqlens, run, *sizes, spans, *dims,
                BQ=back.tokens, BN=back.keys, SLICE=min(turn["BK"], 64), **turn,
            )  # fmt: skip
            behind = call.chunks.sequences * ((run + 1) * _RUN - 1) * groups
            if behind > 0:
                _by_key[(behind * span // by_key.tokens,)](
                    x, weights, between, do, dinner_k, of_v, cu_seqlens, run, *sizes, *dims,
                    BN=by_key.tokens, BQ=by_key.keys, **gather,
                )  # fmt: skip
            if gated:
                column_sums += columns.sum(0)
                columns.zero_()
            passed = behind - call.chunks.sequences * groups
            if passed > 0:
                _cross_backward[(passed * cdiv(key_dim, cross.tokens),)](
                    x, dx, dm, sums, through, cu_seqlens, run, *sizes, key_dim,
                    C=cross.tokens, **over,
                )  # fmt: skip
        _own_values[(call.chunks.count * groups,)](
            do, within.scores, of_v, cu_seqlens, *sizes, call.value_dim, span, C=call.block.tokens,
            PAD_V=walk["PAD_V"], num_warps=8, num_stages=1,
            **call.constants,
        )  # fmt: skip
        if gated:
            _gates_backward[(call.chunks.count * heads,)](
                dscores, rows, column_sums, through, dg, cu_seqlens, *sizes[:3], span,
                PACKED=cu_seqlens is not None, SPAN=span, C=call.block.tokens,
            )  # fmt: skip
        del x, dx, weights, between
        # With fewer, they keep registers in memory.
        more_warps = {**call.blocks, "num_warps": 8}
        k_more, w_more, dz = (torch.empty_like(dinner_k) for _ in range(3))
        e, de, dd = torch.empty_like(dscores), within.scores, torch.empty_like(within.d)
        _by_row[(call.chunks.count * heads,)](
            q, k, w, within.z, within.d, dinner_q, dscores, e, de, dq, cu_seqlens, scale,
            *sizes, key_dim, span, **call.blocks,
        )  # fmt: skip
        _by_column[(call.chunks.count * groups,)](
            q, w, within.z, dinner_q, dscores, e, de, dm, k_more, w_more, dz,
            cu_seqlens, scale, *sizes, key_dim, span,
            **more_warps,
        )  # fmt: skip
        _by_pair[(call.chunks.count * groups,)](
            w, dscores, e, dinner_k, dd, cu_seqlens, scale, *sizes, key_dim, span, **call.blocks,
        )  # fmt: skip
        del e
        da, db = (torch.empty_like(dd) for _ in range(2))
        dbeta = torch.empty_like(beta, dtype=torch.float32)
        _solve_backward[(spans * groups,)](
            k, w, beta, within.inverse, dz, dd, da, db, dbeta, cu_seqlens, *call.of_keys, key_dim,
            span, **call.blocks,
        )  # fmt: skip
        _add_system[(call.chunks.count * groups,)](
            k, w, beta, within.inverse, within.d, dz, dinner_k, da, db, k_more, w_more, dk, dw,
            cu_seqlens, *call.of_keys, key_dim, span, **more_warps,
        )  # fmt: skip
    return [dq, dk, of_v.to(v.dtype), dw, dbeta.to(beta.dtype), dg, None]


_path = differentiable("path_parallel", _forward, _backward, shapes, outputs=1)


def _of_contiguous(*, g: Tensor | None, **given: Any) -> Tensor:
    (g,) = contiguous(g)
    o: Tensor = _path(**given, g=g)
    return o


@pairs(
    _of_contiguous,
    about="A gate below -2^17 is taken for -inf. The backward pass has up to four launches for "
    "each span of 32 or 256 tokens of the longest sequence; what it keeps is linear in T.",
)
def path_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    w: Float[Tensor, "B T G K"],
    beta: Float[Tensor, "B T G"],
    g: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Attention to keys that are reflected on their way to the query, `reference.path_attn`."""
