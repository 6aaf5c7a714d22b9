"""PaTH attention in tiles: keys are reflected on their way to the query.

Tokens are cut into chunks of C. With W, K, Q the rows of one chunk, and the representation of
Woodbury and Young of its reflections,

    T = (I + diag(β) tril₋₁(W Wᵀ))⁻¹ diag(β)      D = T tril₋₁(W Kᵀ)      Z = T W
    E = tril(Q Wᵀ)      Q' = Q - E Z      K' = K - Dᵀ W      H_C ... H_1 = I - Wᵀ Z

the products of pairs of one chunk are tril(Q Kᵀ) - E D, and those with keys of an earlier chunk are
X K'ᵀ. X is Q' in the chunk before, and behind each chunk

    X ← X - (X Wᵀ) Z

Forwards chunks are joined in spans. Once for each span, keys K' pass its later chunks, K'' = K' -
(K' Zᵀ) W, queries its earlier ones, and the rows of the identity all of them, which makes M [K, K].
A program then walks from its own span to farther ones: the products with one are X K''ᵀ, and behind
each X ← X M, which for K = 128 and spans of 256 takes a quarter of the products of X - (X Wᵀ) Z.

Backward a program walks over chunks to the farthest, keeps every X, and comes back with the
gradient of X,

    dX ← dX - (dX Zᵀ) W + dS K'        dK' += dSᵀ X        dZ -= (X Wᵀ)ᵀ dX        dW -= (dX Zᵀ)ᵀ X

A launch is for one chunk of queries of every sequence, as all of them add to the same gradients:
each is summed in a fixed order, and what is kept is linear in T.

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
from kernels.primitives.chunks import Chunks, cut, locate_chunk, locate_sequence
from kernels.primitives.groups import of_each_group
from kernels.primitives.layout import contiguous
from kernels.primitives.pieces import (
    elements,
    empty_pieces,
    load_pieces,
    product_of_pieces,
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
    gradient_of_gates,
    place_in_heads,
    soften,
    sum_between,
)
from kernels.softmax.gates import cumulative_gates
from kernels.softmax.pairs import pairs, shapes
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def _overlaps(
    x, y, stride_x, stride_y, left, key_dim, DTYPE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """x yᵀ `[C, C]` of the rows of two chunks that are `left`, from slices of K; operands are not
    rounded."""
    return dot_rows(x, y, stride_x, stride_y, left, left, key_dim, DTYPE, C, BK, FINE=True)


@triton.jit
def _exact(a, b, DTYPE: tl.constexpr):
    """`a @ b` of computed operands, neither rounded."""
    return product(a, b, DTYPE, FINE_A=True, FINE_B=True)


@triton.jit
def _past(
    X, x, y, stride, key_dim,
    DTYPE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """X - (X xᵀ) y of PARTS slices of K, with the rows x and y of a whole chunk."""
    rows = tl.arange(0, C)
    along = tl.zeros((X[0].shape[0], C), tl.float32)
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        tile = load_rows(x, rows, keys, stride, C, key_dim)
        along = product(-X[part], tl.trans(tile), DTYPE, FINE_A=True, FINE_B=True, acc=along)
    more = ()
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        tile = load_rows(y, rows, keys, stride, C, key_dim)
        more += (product(along, tile, DTYPE, FINE_A=True, FINE_B=True, acc=X[part]),)
    return more


@triton.jit
def _system(
    w, k, beta, stride, heads, left, key_dim,
    DTYPE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """tril₋₁(W Wᵀ), tril₋₁(W Kᵀ), the inverse of the system and β."""
    rows = tl.arange(0, C)
    earlier = rows[:, None] > rows[None, :]
    beta_rows = tl.load(beta + rows * heads, mask=rows < left, other=0.0).to(tl.float32)
    own = tl.where(earlier, _overlaps(w, w, stride, stride, left, key_dim, DTYPE, C, BK), 0.0)
    of_keys = tl.where(earlier, _overlaps(w, k, stride, stride, left, key_dim, DTYPE, C, BK), 0.0)
    return own, of_keys, inverse_unit_lower(beta_rows[:, None] * own, C, DTYPE), beta_rows


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _solve(
    k, w, beta, z, k_out, d, cu_seqlens, sequences, tokens, heads, key_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Z and K' [B, T, G, K] and D [chunks, G, C, C] of one chunk of a kv head."""
    chunk = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, _, _ = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    row = first * heads + head
    k += row * key_dim
    w += row * key_dim
    _, of_keys, inverse, beta_rows = _system(
        w, k, beta + row, stride, heads, left, key_dim, DTYPE, C, BK
    )
    T = inverse * beta_rows[None, :]
    D = _exact(T, of_keys, DTYPE)
    cell = chunk.to(tl.int64) * heads + head
    store_rows(d + cell * C * C, D, rows, rows, C, C, C)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        w_tile = load_rows(w, rows, keys, stride, left, key_dim).to(tl.float32)
        k_tile = load_rows(k, rows, keys, stride, left, key_dim).to(tl.float32)
        store_rows(z + row * key_dim, _exact(T, w_tile, DTYPE), rows, keys, stride, left, key_dim)
        k_tile -= _exact(tl.trans(D), w_tile, DTYPE)
        store_rows(k_out + row * key_dim, k_tile, rows, keys, stride, left, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def _transform(
    q, k, w, z, d, k_inner, q_out, scores, cu_seqlens, scale, sequences, tokens, heads, group,
    key_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr,
    BK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """X at the start of its span [B, T, H, K], and the scores of pairs of one span [B, T, H, SPAN],
    of one chunk of queries."""
    chunk = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, _, before = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    kv_heads = heads // group
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    q += (first * heads + head) * key_dim
    q_out += (first * heads + head) * key_dim
    shared = (first * kv_heads + head // group) * key_dim
    w += shared
    z += shared
    k_inner += shared
    seen = rows[:, None] >= rows[None, :]
    E = _overlaps(q, w, stride, stride_k, left, key_dim, DTYPE, C, BK)
    E = tl.where(seen, E, 0.0)
    own = _overlaps(q, k + shared, stride, stride_k, left, key_dim, DTYPE, C, BK)
    of_group = chunk.to(tl.int64) * kv_heads + head // group
    D = load_rows(d + of_group * C * C, rows, rows, C, C, C)
    own = tl.where(seen, own - _exact(E, D, DTYPE), 0.0)
    inside = before % SPAN
    scores += (first * heads + head) * SPAN + inside
    stride_s = tl.cast(heads, tl.int64) * SPAN
    store_rows(scores, own * scale, rows, rows, stride_s, left, C)
    X = ()
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        q_tile = load_rows(q, rows, keys, stride, left, key_dim).to(tl.float32)
        z_tile = load_rows(z, rows, keys, stride_k, left, key_dim)
        X += (scale * (q_tile - _exact(E, z_tile, DTYPE)),)
    if SPAN > C:
        for step in tl.range(1, inside // C + 1, disable_licm=True):
            back = step * C * stride_k
            products = tl.zeros((C, C), tl.float32)
            for part in tl.static_range(PARTS):
                keys = part * BK + tl.arange(0, BK)
                k_tile = load_rows(k_inner - back, rows, keys, stride_k, C, key_dim)
                products = product(
                    X[part], tl.trans(k_tile), DTYPE, FINE_A=True, FINE_B=True, acc=products
                )
            store_rows(scores - step * C, products, rows, rows, stride_s, left, C)
            X = _past(X, w - back, z - back, stride_k, key_dim, DTYPE, C, BK, PARTS)
    apart = 2 * elements(sequences, tokens, stride, PACKED)
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        store_pieces(q_out, apart, X[part], rows, keys, stride, left, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _gather(
    k, w, z, k_out, cu_seqlens, sequences, tokens, heads, key_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr,
    BK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """K'' [B, T, G, K], K' past the later chunks of its span, of one chunk of keys."""
    chunk = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, _, before = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    later = SPAN - before % SPAN
    # No query is behind the last span.
    if left <= later:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    row = (first * heads + head) * key_dim
    k += row
    w += row
    z += row
    X = ()
    for part in tl.static_range(PARTS):
        X += (load_rows(k, rows, part * BK + tl.arange(0, BK), stride, C, key_dim),)
    for step in tl.range(1, later // C, disable_licm=True):
        on = step * C * stride
        X = _past(X, z + on, w + on, stride, key_dim, DTYPE, C, BK, PARTS)
    apart = elements(sequences, tokens, stride, PACKED)
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        store_pieces(k_out + row, apart, X[part], rows, keys, stride, C, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "spans"])
def _cross(
    w, z, m_out, cu_seqlens, sequences, tokens, heads, spans, key_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr,
    BK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """C rows of M [spans, G, K, K] of one span: those of the identity past its chunks."""
    tiles = tl.cdiv(key_dim, C)
    rows = tl.program_id(0) % tiles * C + tl.arange(0, C)
    head = tl.program_id(0) // tiles % heads
    span = tl.program_id(0) // tiles // heads
    first, left, _, _ = locate_chunk(span, cu_seqlens, sequences, tokens, SPAN, PACKED)
    if left <= SPAN:
        return
    stride = heads * key_dim
    w += (first * heads + head) * key_dim
    z += (first * heads + head) * key_dim
    m_out += (span.to(tl.int64) * heads + head) * key_dim * key_dim
    X = ()
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        X += (tl.where(rows[:, None] == keys[None, :], 1.0, 0.0),)
    for step in tl.range(1, SPAN // C + 1, disable_licm=True):
        on = (SPAN - step * C) * stride
        X = _past(X, w + on, z + on, stride, key_dim, DTYPE, C, BK, PARTS)
    apart = tl.cast(spans, tl.int64) * stride * key_dim
    for part in tl.static_range(PARTS):
        keys = part * BK + tl.arange(0, BK)
        store_pieces(m_out, apart, X[part], rows, keys, key_dim, key_dim, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group", "spans", "tiles"])
def _attend(
    x, k, m, v, scores, o, gate, rest, shut_count, cu_seqlens,
    sequences, tokens, heads, group, spans, tiles,
    key_dim: tl.int32, value_dim: tl.int32,
    GATED: tl.constexpr, PACKED: tl.constexpr, DTYPE: tl.constexpr,
    BQ: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr,
    BK: tl.constexpr, PARTS: tl.constexpr, SLICE: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of BQ queries of a head. x [2, B, T, H, K] holds X behind the last span, and
    the one behind the next is written to its other half."""
    # The last tiles see the most keys: start them first.
    tile = tiles - 1 - tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, sequence, before = locate_chunk(tile, cu_seqlens, sequences, tokens, BQ, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, BQ)
    ahead = tl.arange(0, BN)
    values = tl.arange(0, PAD_V)
    kv_heads = heads // group
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    stride_v = kv_heads * value_dim
    inside = before % SPAN
    # Of the span that the queries are in.
    row = first - inside
    k += (row * kv_heads + head // group) * key_dim
    v += (row * kv_heads + head // group) * value_dim
    x += (first * heads + head) * key_dim
    scores += (first * heads + head) * SPAN
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
    query_gate = as_rows(gates_of_chunk(gate, rest, shut_count, place, left, BQ, GATED), GATED)
    place -= inside
    row_max = tl.full((BQ,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((BQ,), tl.float32)
    acc = tl.zeros((BQ, PAD_V), tl.float32)
    for start in tl.range(0, inside + BQ, BN):
        count = inside + left - start
        visible = start + ahead[None, :] <= inside + rows[:, None]
        s = tl.load(
            scores + rows[:, None] * (tl.cast(heads, tl.int64) * SPAN) + start + ahead[None, :],
            mask=visible & (rows < left)[:, None],
            other=0.0,
        )
        key_gate = gates_of_chunk(gate, rest, shut_count, place + start, count, BN, GATED)
        key_gate = as_columns(key_gate, GATED)
        p, shrink, row_max, weight_sum = soften(
            s, visible, query_gate, key_gate, row_max, weight_sum, GATED
        )
        v_tile = load_rows(v + start * stride_v, ahead, values, stride_v, count, value_dim)
        acc = product(p, v_tile, DTYPE, acc=acc * shrink[:, None])
    half = elements(sequences, tokens, stride, PACKED)
    apart_x = 2 * half
    apart_k = elements(sequences, tokens, stride_k, PACKED)
    apart_m = tl.cast(spans, tl.int64) * stride_k * key_dim
    earlier = before // SPAN
    _, _, first_span = locate_sequence(sequence, cu_seqlens, tokens, SPAN, PACKED)
    m += ((first_span + earlier) * kv_heads + head // group) * key_dim * key_dim
    for step in tl.range(1, earlier + 1, disable_licm=True):
        k -= SPAN * stride_k
        v -= SPAN * stride_v
        m -= stride_k * key_dim
        place -= SPAN
        # Wait for the rows that other threads write.
        tl.debug_barrier()
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
            key_gate = gates_of_chunk(gate, rest, shut_count, place + start, BN, BN, GATED)
            key_gate = as_columns(key_gate, GATED)
            p, shrink, row_max, weight_sum = soften(
                products, rows[:, None] >= 0, query_gate, key_gate, row_max, weight_sum, GATED
            )
            v_tile = load_rows(v + start * stride_v, ahead, values, stride_v, BN, value_dim)
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
    o += (first * heads + head) * value_dim
    store_rows(o, acc / weight_sum[:, None], rows, values, heads * value_dim, left, value_dim)


@triton.jit
def _copy(
    x, y, stride_x, stride_y, left, stop, key_dim, C: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Copy the rows before `stop` from x to y, slice by slice of K; 0 for those not `left`."""
    rows = tl.arange(0, C)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        tile = load_rows(x, rows, keys, stride_x, left, key_dim)
        store_rows(y, tile, rows, keys, stride_y, stop, key_dim)


@triton.jit(do_not_specialize=["chunk", "sequences", "tokens", "heads", "group", "widest"])
def _walk(
    q, k, w, z, v, do, scores, dscores, kept, terms, gate, rest, shut_count, cu_seqlens,
    chunk, sequences, tokens, heads, group, widest, key_dim: tl.int32, value_dim: tl.int32,
    GATED: tl.constexpr, PACKED: tl.constexpr, DTYPE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Of chunk `chunk` of queries of each sequence and head: dscores [chunks, H, C, C], the dS of
    its own pairs, every X that it comes by, `kept` [N, H, widest, C, K], and terms [3, B, H, T]:
    maximum, sum of weights and δ."""
    head = tl.program_id(0) % heads
    n = tl.program_id(0) // heads
    start, length, first_chunk = locate_sequence(n, cu_seqlens, tokens, C, PACKED)
    sequence = n.to(tl.int64)
    before = chunk * C
    first = start + before
    left = length - before
    cell = (first_chunk + chunk) * heads + head
    if left <= 0:
        return
    rows = tl.arange(0, C)
    kv_heads = heads // group
    stride_k = kv_heads * key_dim
    stride_v = kv_heads * value_dim
    stride_o = heads * value_dim
    shared = first * kv_heads + head // group
    k += shared * key_dim
    w += shared * key_dim
    z += shared * key_dim
    v += shared * value_dim
    do += (first * heads + head) * value_dim
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED)

    query_gate = as_rows(gates_of_chunk(gate, rest, shut_count, place, left, C, GATED), GATED)
    own_gate = as_columns(gates_of_chunk(gate, rest, shut_count, place, left, C, GATED), GATED)
    seen = rows[:, None] >= rows[None, :]
    own = load_rows(
        scores + (first * heads + head) * C, rows, rows, tl.cast(heads, tl.int64) * C, left, C
    )
    row_max = tl.full((C,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((C,), tl.float32)
    p, _, row_max, weight_sum = soften(own, seen, query_gate, own_gate, row_max, weight_sum, GATED)
    dp = dot_rows(do, v, stride_o, stride_v, left, left, value_dim, DTYPE, C, BV)
    of_d = tl.sum(p * dp, 1)
    index = before // C
    kept += (sequence * heads + head) * widest * C * key_dim
    slot = tl.maximum(index - 1, 0).to(tl.int64)
    q += (first * heads + head) * key_dim
    _copy(q, kept + slot * C * key_dim, heads * key_dim, key_dim, left, C, key_dim, C, BK)
    for step in tl.range(1, index + 1, disable_licm=True):
        # Wait for the rows that other threads write.
        tl.debug_barrier()
        back = tl.cast(step, tl.int64) * C
        X = kept + slot * C * key_dim
        products = _overlaps(X, k - back * stride_k, key_dim, stride_k, C, key_dim, DTYPE, C, BK)
        key_gate = gates_of_chunk(gate, rest, shut_count, place - back, C, C, GATED)
        key_gate = as_columns(key_gate, GATED)
        p, shrink, row_max, weight_sum = soften(
            products, rows[:, None] >= 0, query_gate, key_gate, row_max, weight_sum, GATED
        )
        v_rows = v - back * stride_v
        dp = dot_rows(do, v_rows, stride_o, stride_v, left, C, value_dim, DTYPE, C, BV)
        of_d = of_d * shrink + tl.sum(p * dp, 1)
        if step < index:
            along = _overlaps(X, w - back * stride_k, key_dim, stride_k, C, key_dim, DTYPE, C, BK)
            slot -= 1
            for start_k in range(0, key_dim, BK):
                keys = start_k + tl.arange(0, BK)
                z_tile = load_rows(z - back * stride_k, rows, keys, stride_k, C, key_dim)
                x = load_rows(X, rows, keys, key_dim, C, key_dim)
                x = product(-along, z_tile, DTYPE, FINE_A=True, FINE_B=True, acc=x)
                store_rows(kept + slot * C * key_dim, x, rows, keys, key_dim, C, key_dim)
    # Every query sees its own key.
    inverse = 1.0 / weight_sum
    of_d *= inverse
    count = sequences.to(tl.int64) * heads * tokens
    if PACKED:
        count = heads * tl.cast(tokens, tl.int64)
    to = terms + place + rows
    tl.store(to, row_max, mask=rows < left)
    tl.store(to + count, weight_sum, mask=rows < left)
    tl.store(to + 2 * count, of_d, mask=rows < left)
    dp = dot_rows(do, v, stride_o, stride_v, left, left, value_dim, DTYPE, C, BV)
    s = base2_logits(own, query_gate, own_gate, row_max[:, None], GATED)
    ds = tl.exp2(s) * inverse[:, None] * (dp - of_d[:, None])
    ds = tl.where(seen & (rows < left)[:, None], ds, 0.0)
    store_rows(dscores + cell * C * C, ds, rows, rows, C, C, C)


@triton.jit
def _add_rows(x, y, rows, columns, stride, num_rows, num_columns):
    """Add to rows in memory."""
    y += load_rows(x, rows, columns, stride, num_rows, num_columns)
    store_rows(x, y, rows, columns, stride, num_rows, num_columns)


@triton.jit(do_not_specialize=["chunk", "sequences", "tokens", "heads", "group", "widest"])
def _return(
    k, w, z, v, do, scores, kept, carried, terms, dq, dk, dw, dz, dv, row_sums, column_sums,
    between, gate, rest, shut_count, cu_seqlens, chunk, sequences, tokens, heads, group, widest,
    key_dim: tl.int32, value_dim: tl.int32,
    GATED: tl.constexpr, PACKED: tl.constexpr, DTYPE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """dQ' [B, T, H, K] of chunk `chunk` of each sequence. What its pairs give to their keys is
    added to dK', dW and dZ [B, T, H, K] and to dv [B, T, H, V], a share for each query head.

    With gates also row_sums and column_sums [B, H, T] of dS, of pairs of two chunks, and `between`
    [chunks, H, widest], the sum of each such pair of chunks.
    """
    head = tl.program_id(0) % heads
    n = tl.program_id(0) // heads
    start, length, first_chunk = locate_sequence(n, cu_seqlens, tokens, C, PACKED)
    before = chunk * C
    left = length - before
    if left <= 0:
        return
    first = start + before
    cell = (first_chunk + chunk) * heads + head
    rows = tl.arange(0, C)
    values = tl.arange(0, PAD_V)
    inside = rows < left
    kv_heads = heads // group
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    stride_v = kv_heads * value_dim
    stride_o = heads * value_dim
    shared = first * kv_heads + head // group
    k += shared * key_dim
    w += shared * key_dim
    z += shared * key_dim
    v += shared * value_dim
    do += (first * heads + head) * value_dim
    row = (first * heads + head) * key_dim
    dv += (first * heads + head) * value_dim
    place = place_in_heads(first, n.to(tl.int64), head, heads, tokens, PACKED)
    count = sequences.to(tl.int64) * heads * tokens
    if PACKED:
        count = heads * tl.cast(tokens, tl.int64)
    row_max = tl.load(terms + place + rows, mask=inside, other=0.0)
    weight_sum = tl.load(terms + count + place + rows, mask=inside, other=1.0)
    of_d = tl.load(terms + 2 * count + place + rows, mask=inside, other=0.0)
    inverse = tl.where(inside, 1.0 / weight_sum, 0.0)
    query_gate = as_rows(gates_of_chunk(gate, rest, shut_count, place, left, C, GATED), GATED)

    own_gate = as_columns(gates_of_chunk(gate, rest, shut_count, place, left, C, GATED), GATED)
    own = load_rows(
        scores + (first * heads + head) * C, rows, rows, tl.cast(heads, tl.int64) * C, left, C
    )
    p = tl.exp2(base2_logits(own, query_gate, own_gate, row_max[:, None], GATED)) * inverse[:, None]
    # The gates of rows that do not exist are 0, and others may be far below.
    p = tl.where((rows[:, None] >= rows[None, :]) & inside[:, None], p, 0.0)
    do_tile = load_rows(do, rows, values, stride_o, left, value_dim)
    _add_rows(dv, product(tl.trans(p), do_tile, DTYPE), rows, values, stride_o, left, value_dim)

    carried += (n.to(tl.int64) * heads + head) * 2 * C * key_dim
    _copy(k, carried, stride_k, key_dim, 0, C, key_dim, C, BK)
    row_sum = tl.zeros((C,), tl.float32)
    index = before // C
    for at in tl.range(0, index, disable_licm=True):
        # Wait for the rows that other threads write.
        tl.debug_barrier()
        dX = carried + at % 2 * C * key_dim
        back = tl.cast(index - at, tl.int64) * C
        here = (n.to(tl.int64) * heads + head) * widest + at
        X = kept + here * C * key_dim
        k_rows = k - back * stride_k
        w_rows = w - back * stride_k
        z_rows = z - back * stride_k
        products = _overlaps(X, k_rows, key_dim, stride_k, C, key_dim, DTYPE, C, BK)
        key_gate = gates_of_chunk(gate, rest, shut_count, place - back, C, C, GATED)
        s = base2_logits(products, query_gate, as_columns(key_gate, GATED), row_max[:, None], GATED)
        p = tl.where(inside[:, None], tl.exp2(s) * inverse[:, None], 0.0)
        dp = dot_rows(do, v - back * stride_v, stride_o, stride_v, left, C, value_dim, DTYPE, C, BV)
        ds = p * (dp - of_d[:, None])
        do_tile = load_rows(do, rows, values, stride_o, left, value_dim)
        of_v = product(tl.trans(p), do_tile, DTYPE)
        _add_rows(dv - back * stride_o, of_v, rows, values, stride_o, C, value_dim)
        along = _overlaps(X, w_rows, key_dim, stride_k, C, key_dim, DTYPE, C, BK)
        dalong = _overlaps(dX, z_rows, key_dim, stride_k, C, key_dim, DTYPE, C, BK)
        away = row - back * stride
        for start_k in range(0, key_dim, BK):
            keys = start_k + tl.arange(0, BK)
            x = load_rows(X, rows, keys, key_dim, C, key_dim)
            of_k = _exact(tl.trans(ds), x, DTYPE)
            of_w = _exact(tl.trans(-dalong), x, DTYPE)
            dx = load_rows(dX, rows, keys, key_dim, C, key_dim)
            of_z = _exact(tl.trans(-along), dx, DTYPE)
            _add_rows(dk + away, of_k, rows, keys, stride, C, key_dim)
            _add_rows(dz + away, of_z, rows, keys, stride, C, key_dim)
            _add_rows(dw + away, of_w, rows, keys, stride, C, key_dim)
            w_tile = load_rows(w_rows, rows, keys, stride_k, C, key_dim)
            dx = product(-dalong, w_tile, DTYPE, FINE_A=True, FINE_B=True, acc=dx)
            k_tile = load_rows(k_rows, rows, keys, stride_k, C, key_dim)
            dx = product(ds, k_tile, DTYPE, FINE_A=True, FINE_B=True, acc=dx)
            to = carried + (at + 1) % 2 * C * key_dim
            store_rows(to, dx, rows, keys, key_dim, C, key_dim)
        if GATED:
            of_row = tl.sum(ds, 1)
            row_sum += of_row
            tl.store(between + cell * widest + at, tl.sum(of_row, 0))
            of_column = column_sums + place - back + rows
            tl.store(of_column, tl.load(of_column) + tl.sum(ds, 0))
    tl.debug_barrier()
    last = carried + index % 2 * C * key_dim
    _copy(last, dq + row, key_dim, stride, left, left, key_dim, C, BK)
    if GATED:
        tl.store(row_sums + place + rows, row_sum, mask=inside)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def _transform_backward(
    q, k, w, z, d, dq_inner, dscores, through, row_sums, column_sums,
    dq, dk, dw, dz, dd, dg, cu_seqlens, scale, sequences, tokens, heads, group,
    key_dim: tl.int32,
    GATED: tl.constexpr, PACKED: tl.constexpr, DTYPE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dq, and dk [B, T, H, K] and dD [chunks, H, C, C] of `_transform`; its parts of dW and dZ are
    added to those. With gates also dg [B, T, H]."""
    chunk = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, sequence, _ = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    kv_heads = heads // group
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    row = (first * heads + head) * key_dim
    shared = (first * kv_heads + head // group) * key_dim
    q += row
    dq_inner += row
    cell = chunk.to(tl.int64) * heads + head
    ds = load_rows(dscores + cell * C * C, rows, rows, C, C, C)
    if GATED:
        place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
        of_gate = gradient_of_gates(ds, row_sums, column_sums, place, left, C)
        of_gate += tl.load(through + cell)
        tl.store(dg + first * heads + head + rows * heads, of_gate, mask=rows < left)

    ds *= scale
    seen = rows[:, None] >= rows[None, :]
    E = _overlaps(q, w + shared, stride, stride_k, left, key_dim, DTYPE, C, BK)
    E = tl.where(seen, E, 0.0)
    of_group = chunk.to(tl.int64) * kv_heads + head // group
    D = load_rows(d + of_group * C * C, rows, rows, C, C, C)
    store_rows(dd + cell * C * C, -_exact(tl.trans(E), ds, DTYPE), rows, rows, C, C, C)
    dE = _exact(ds, tl.trans(D), DTYPE)
    dE += scale * _overlaps(dq_inner, z + shared, stride, stride_k, left, key_dim, DTYPE, C, BK)
    dE = tl.where(seen, -dE, 0.0)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        q_tile = load_rows(q, rows, keys, stride, left, key_dim).to(tl.float32)
        k_tile = load_rows(k + shared, rows, keys, stride_k, left, key_dim).to(tl.float32)
        w_tile = load_rows(w + shared, rows, keys, stride_k, left, key_dim).to(tl.float32)
        inner = load_rows(dq_inner, rows, keys, stride, left, key_dim) * scale
        of_q = inner + _exact(ds, k_tile, DTYPE) + _exact(dE, w_tile, DTYPE)
        store_rows(dq + row, of_q, rows, keys, stride, left, key_dim)
        of_k = _exact(tl.trans(ds), q_tile, DTYPE)
        store_rows(dk + row, of_k, rows, keys, stride, left, key_dim)
        of_w = _exact(tl.trans(dE), q_tile, DTYPE)
        _add_rows(dw + row, of_w, rows, keys, stride, left, key_dim)
        of_z = -_exact(tl.trans(E), inner, DTYPE)
        _add_rows(dz + row, of_z, rows, keys, stride, left, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _solve_backward(
    k, w, beta, d, dz, dk_inner, dd, dk_more, dw_more, dk, dw, dbeta, cu_seqlens,
    sequences, tokens, heads, key_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dk and dw [B, T, G, K] and dbeta [B, T, G] from the gradients of Z, K' and D, and from those
    that k and w have already."""
    chunk = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, _, _ = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    row = first * heads + head
    start_row = row * key_dim
    k += start_row
    w += start_row
    dz += start_row
    dk_inner += start_row
    own, of_keys, inverse, beta_rows = _system(
        w, k, beta + row, stride, heads, left, key_dim, DTYPE, C, BK
    )
    T = inverse * beta_rows[None, :]
    cell = (chunk.to(tl.int64) * heads + head) * C * C
    D = load_rows(d + cell, rows, rows, C, C, C)
    dD = load_rows(dd + cell, rows, rows, C, C, C)
    dD -= _overlaps(w, dk_inner, stride, stride, left, key_dim, DTYPE, C, BK)
    dT = _overlaps(dz, w, stride, stride, left, key_dim, DTYPE, C, BK)
    dT += _exact(dD, tl.trans(of_keys), DTYPE)
    earlier = rows[:, None] > rows[None, :]
    d_of_keys = tl.where(earlier, _exact(tl.trans(T), dD, DTYPE), 0.0)
    dbeta_rows = tl.sum(dT * inverse, 0)
    turned = tl.trans(inverse)
    dsystem = -_exact(_exact(turned, dT * beta_rows[None, :], DTYPE), turned, DTYPE)
    dsystem = tl.where(earlier, dsystem, 0.0)
    dbeta_rows += tl.sum(dsystem * own, 1)
    tl.store(dbeta + row + rows * heads, dbeta_rows, mask=rows < left)
    d_own = beta_rows[:, None] * dsystem
    d_own += tl.trans(d_own)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        w_tile = load_rows(w, rows, keys, stride, left, key_dim).to(tl.float32)
        k_tile = load_rows(k, rows, keys, stride, left, key_dim).to(tl.float32)
        dz_tile = load_rows(dz, rows, keys, stride, left, key_dim)
        inner = load_rows(dk_inner, rows, keys, stride, left, key_dim)
        of_w = load_rows(dw_more + start_row, rows, keys, stride, left, key_dim)
        of_w += _exact(tl.trans(T), dz_tile, DTYPE) - _exact(D, inner, DTYPE)
        of_w += _exact(d_of_keys, k_tile, DTYPE) + _exact(d_own, w_tile, DTYPE)
        store_rows(dw + start_row, of_w, rows, keys, stride, left, key_dim)
        of_k = load_rows(dk_more + start_row, rows, keys, stride, left, key_dim) + inner
        of_k += _exact(tl.trans(d_of_keys), w_tile, DTYPE)
        store_rows(dk + start_row, of_k, rows, keys, stride, left, key_dim)


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
        x: scaled X at the start of the span, from `_transform`, as `_attend` takes it or float32.
        k: K' [B, T, G, K].
        z, d: Z [B, T, G, K] and D [chunks, G, C, C].
        scores: of pairs of one span [B, T, H, span].
    """

    x: Tensor
    k: Tensor
    z: Tensor
    d: Tensor
    scores: Tensor


def _within(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, chunks: Chunks, x: Tensor, scale: float,
    tile: tiles.Tile, span: int, constants: dict[str, Any],
) -> _Within:  # fmt: skip
    """What spans of `span` tokens have without others; X is written to the first part of x."""
    tokens, heads, key_dim = q.shape[1:]
    groups, length = k.shape[2], tile.tokens
    inner_k, z = q.new_empty(2, *k.shape, dtype=torch.float32)
    d = inner_k.new_empty(chunks.count, groups, length, length)
    scores = inner_k.new_empty(*q.shape[:3], span)
    shape = _slices(key_dim, tile, q.dtype)
    _solve[(chunks.count * groups,)](
        k, w, beta, z, inner_k, d, chunks.cu_seqlens, chunks.sequences, tokens, groups, key_dim,
        **constants, C=length, **shape,
    )  # fmt: skip
    _transform[(chunks.count * heads,)](
        q, k, w, z, d, inner_k, x, scores, chunks.cu_seqlens, scale,
        chunks.sequences, tokens, heads, heads // groups, key_dim,
        **constants, C=length, SPAN=span, PARTS=cdiv(key_dim, shape["BK"]), **shape,
    )  # fmt: skip
    return _Within(x, inner_k, z, d, scores)


def _constants(q: Tensor, cu_seqlens: Tensor | None) -> dict[str, Any]:
    return {"PACKED": cu_seqlens is not None, "DTYPE": TRITON_DTYPES[q.dtype]}


def _gates(g: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor | None, ...]:
    return (None, None, None) if g is None else cumulative_gates(g, cu_seqlens)


def _forward(
    *, q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    longest = check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    o = q.new_empty(*q.shape[:3], v.shape[3])
    if o.numel() == 0:
        return [o]
    entry = tiles.TABLE["path_attn", "parallel"][tile]
    span, length = entry.keys, entry.tokens
    q, k, v, w, beta = contiguous(q, k, v, w, beta)
    batch, tokens, heads, key_dim = q.shape
    groups = k.shape[2]
    chunks, constants = cut(batch, tokens, cu_seqlens, length), _constants(q, cu_seqlens)
    spans = cut(batch, tokens, cu_seqlens, span)
    attend = tile_of("attend", entry, key_dim, v.shape[3])
    where = chunks.sequences, tokens
    with torch.cuda.device_of(q):
        x = empty_pieces(q, 2, *q.shape)
        inner = _within(q, k, w, beta, chunks, x, scale, entry, span, constants)
        shape = {"SPAN": span, **constants, **_slices(key_dim, entry, q.dtype)}
        shape["PARTS"] = cdiv(key_dim, shape["BK"])
        more_k = empty_pieces(q, *k.shape)
        matrices = empty_pieces(q, spans.count, groups, key_dim, key_dim)
        if longest > span:
            _gather[(chunks.count * groups,)](
                inner.k, w, inner.z, more_k, cu_seqlens, *where, groups, key_dim,
                C=length, **shape,
            )  # fmt: skip
        if longest > 2 * span:
            _cross[(spans.count * groups * cdiv(key_dim, length),)](
                w, inner.z, matrices, cu_seqlens, *where, groups, spans.count, key_dim,
                C=length, **shape,
            )  # fmt: skip
        scores = inner.scores
        del inner
        queries = cut(batch, tokens, cu_seqlens, attend.tokens).count
        shape |= _slices(key_dim, attend, q.dtype)
        shape["PARTS"] = cdiv(key_dim, shape["BK"])
        pad_v = max(attend.narrowest(q.dtype.itemsize), next_power_of_2(v.shape[3]))
        _attend[(queries * heads,)](
            x, more_k, matrices, v, scores, o, *_gates(g, cu_seqlens), cu_seqlens,
            *where, heads, heads // groups, spans.count, queries, key_dim, v.shape[3],
            GATED=g is not None, BQ=attend.tokens, BN=attend.keys,
            SLICE=min(shape["BK"], 64), PAD_V=pad_v, **shape,
        )  # fmt: skip
    return [o]


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, d0: Tensor, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    longest = check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    q, k, v, w, beta, g, do = contiguous(q, k, v, w, beta, g, d0)
    batch, tokens, heads, key_dim = q.shape
    groups, value_dim = v.shape[2:]
    dq, dk, dw, dbeta = (torch.empty_like(x) for x in (q, k, w, beta))
    dg = None if g is None else torch.empty_like(g)
    if dq.numel() == 0:
        return [dq, *(torch.zeros_like(x) for x in (k, v, w, beta)), dg, None]
    entry = tiles.TABLE["path_attn", "parallel"][tile]
    small, back = entry.of("backward"), entry.of("return")
    gated, length = g is not None, small.tokens
    chunks, constants = cut(batch, tokens, cu_seqlens, length), _constants(q, cu_seqlens)
    with torch.cuda.device_of(q):
        inner_q = q.new_empty(q.shape, dtype=torch.float32)
        inner = _within(q, k, w, beta, chunks, inner_q[None], scale, small, length, constants)
        inner_k, z, d, scores = inner.k, inner.z, inner.d, inner.scores
        gates = _gates(g, cu_seqlens)
        widest = cdiv(longest, length)
        kept = inner_q.new_empty(chunks.sequences * heads, widest, length, key_dim)
        carried = kept.new_empty(chunks.sequences * heads, 2, length, key_dim)
        terms = inner_q.new_empty(3, batch, heads, tokens)
        dscores = scores.new_empty(chunks.count, heads, length, length)
        dinner = torch.empty_like(inner_q)
        # Shares of query heads in what a kv head gets.
        of_k, of_w, of_z = inner_q.new_zeros(3, *q.shape)
        of_v = inner_q.new_zeros(*q.shape[:3], value_dim)
        rows, columns = inner_q.new_zeros(2, batch, heads, tokens if gated else 0)
        between = inner_q.new_empty(chunks.count, heads, widest if gated else 0)
        through = inner_q.new_empty(chunks.count, heads)
        where = chunks.sequences, tokens, heads, heads // groups
        constants["C"] = length
        shapes_of = {
            each: {
                "GATED": gated,
                "BV": _width(value_dim, own, q.dtype),
                **constants,
                **_slices(key_dim, own, q.dtype),
            }
            for each, own in {"walk": small, "return": back}.items()
        }
        for chunk in range(widest):
            _walk[(chunks.sequences * heads,)](
                inner_q, inner_k, w, z, v, do, scores, dscores, kept, terms, *gates,
                cu_seqlens, chunk, *where, widest, key_dim, value_dim, **shapes_of["walk"],
            )  # fmt: skip
            _return[(chunks.sequences * heads,)](
                inner_k, w, z, v, do, scores, kept, carried, terms, dinner, of_k, of_w, of_z, of_v,
                rows, columns, between, *gates, cu_seqlens, chunk, *where, widest,
                key_dim, value_dim, PAD_V=max(16, next_power_of_2(value_dim)),
                **shapes_of["return"],
            )  # fmt: skip
        if gated:
            sum_between[(chunks.count * heads,)](
                between, through, cu_seqlens, chunks.sequences, tokens, heads, widest, 1,
                C=length, BLOCK=1, PACKED=cu_seqlens is not None,
            )  # fmt: skip
        more_k, dd = torch.empty_like(of_k), torch.empty_like(dscores)
        shape = {**constants, **_slices(key_dim, small, q.dtype)}
        _transform_backward[(chunks.count * heads,)](
            q, k, w, z, d, dinner, dscores, through, rows, columns,
            dq, more_k, of_w, of_z, dd, dg, cu_seqlens, scale, *where, key_dim,
            GATED=gated, **shape,
        )  # fmt: skip
        of_k, of_w, of_z, of_v, more_k = (
            of_each_group(x, groups).contiguous() for x in (of_k, of_w, of_z, of_v, more_k)
        )
        if groups != heads:
            dd = dd.unflatten(1, (groups, -1)).sum(2)
        _solve_backward[(chunks.count * groups,)](
            k, w, beta, d, of_z, of_k, dd, more_k, of_w, dk, dw, dbeta, cu_seqlens,
            chunks.sequences, tokens, groups, key_dim, **shape,
        )  # fmt: skip
    return [dq, dk, of_v.to(v.dtype), dw, dbeta, dg, None]


_path = differentiable("path_parallel", _forward, _backward, shapes, outputs=1)


def _of_contiguous(*, g: Tensor | None, **given: Any) -> Tensor:
    (g,) = contiguous(g)
    o: Tensor = _path(**given, g=g)
    return o


@pairs(
    _of_contiguous,
    about="A gate below -2^17 is taken for -inf. The backward pass has two launches for each chunk "
    "of 16 or 32 tokens of the longest sequence, and keeps a few copies of q in float32.",
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
