"""Attention with head dims above 256, as of latent attention in its absorbed form.

A program multiplies rows slice by slice, as whole ones would take all registers, and holds one
slice of a result: of o and dv a part of V, of dq and dk a part of K. The parts compute the same
weights, each for itself.
"""

from typing import Any

import triton
import triton.language as tl

from kernels import tiles
from kernels.primitives.chunks import locate_in_batch
from kernels.softmax.logits import (
    LN2,
    keys_of,
    load_slope,
    load_terms,
    load_tile,
    logits,
    online_softmax,
    queries_of,
    sees,
    start_softmax,
    store_tile,
    tanh_slope,
)
from kernels.softmax.structure import restrict, some
from kernels.tiles import cdiv


@triton.jit
def _products(
    a, b, stride_a, stride_b, first_a, rows_a, stop_a, first_b, rows_b, stop_b, dim,
    SLICE: tl.constexpr,
):  # fmt: skip
    """Products of rows of a and of b, `[rows of a, rows of b]`, from slices of their columns."""
    acc = tl.zeros((rows_a.shape[0], rows_b.shape[0]), tl.float32)
    for start in range(0, dim, SLICE):
        exists = start + tl.arange(0, SLICE) < dim
        a_tile = load_tile(a + start, stride_a, first_a, rows_a, stop_a, exists, False, True)
        b_tile = load_tile(b + start, stride_b, first_b, rows_b, stop_b, exists, False, True)
        acc = tl.dot(a_tile, tl.trans(b_tile), acc, input_precision="ieee")
    return acc


@triton.jit(
    do_not_specialize=["num_queries", "num_keys", "window", "tiles", "parts", "heads", "group"]
)  # fmt: skip
def wide_forward(
    q, k, v, o, lse, row_maxima, weight_sums, sink, slopes, cu_seqlens_q, cu_seqlens_k,
    factor, cap, window, num_queries, num_keys, tiles, parts, heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, pairs, steps,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SINK: tl.constexpr,
    ALIBI: tl.constexpr, PACKED: tl.constexpr, BIASED: tl.constexpr,
    MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr, SKIP: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SLICE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """PART columns of o [B, T, H, V] of QUERIES queries of one head, and lse, maximum and sum
    [B, H, T]."""
    tile = tl.program_id(0) % tiles
    if CAUSAL:
        # The last queries see the most keys: start them first.
        tile = tiles - 1 - tile
    part = tl.program_id(0) // tiles % parts
    head = (tl.program_id(0) // tiles // parts % heads).to(tl.int64)
    n = tl.program_id(0) // tiles // parts // heads
    batch, start_q, length_q = locate_in_batch(n, cu_seqlens_q, num_queries, PACKED)
    batch, start_k, length_k = locate_in_batch(n, cu_seqlens_k, num_keys, PACKED)
    shift = length_k - length_q
    q += batch * stride_qb + start_q * stride_qt + head * stride_qh
    k += batch * stride_kb + start_k * stride_kt + head // group * stride_kh
    v += batch * stride_vb + start_k * stride_vt + head // group * stride_vh
    in_part = part * PART + tl.arange(0, PART) < value_dim

    first = tile * QUERIES
    last = tl.minimum(first + QUERIES, length_q) - 1
    rows = first + tl.arange(0, QUERIES)
    query = rows[:, None]
    slope = load_slope(slopes, head, ALIBI)
    row_max, weight_sum = start_softmax(sink, head, QUERIES, SINK)
    acc = tl.zeros((QUERIES, PART), tl.float32)
    bounds = keys_of(first, last, shift, length_k, window, CAUSAL, WINDOW, KEYS, False)
    high = bounds[3]
    for start in tl.range(bounds[0], high, KEYS, disable_licm=True):
        columns = start + tl.arange(0, KEYS)
        key = columns[None, :]
        visible = sees(key < high, query, key, window, shift, CAUSAL, WINDOW)
        visible, added = restrict(
            visible & (query < length_q), query, key, query < length_q, key < high,
            pairs, steps, batch, head, start_q, start_k, num_queries, num_keys,
            BIASED, MASKED, TABLED, RULES,
        )  # fmt: skip
        if not SKIP or some(visible):
            products = _products(
                q, k, stride_qt, stride_kt, first, rows, length_q, start, columns, high, key_dim,
                SLICE,
            )  # fmt: skip
            p, shrink, row_max, weight_sum = online_softmax(
                products, visible, query, key, shift, factor, cap, slope, 0, 0, added,
                row_max, weight_sum, True, CAPPED, ALIBI, False, BIASED,
            )  # fmt: skip
            v_tile = load_tile(
                v + part * PART, stride_vt, start, columns, high, in_part, False, True
            )
            acc *= shrink[:, None]
            acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

    out = acc / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
    o += ((batch * num_queries + start_q) * heads + head) * value_dim + part * PART
    store_tile(o, heads * value_dim, rows, length_q, out, in_part)
    # All parts compute the same sums: one of them writes.
    mine = rows < tl.where(part == 0, length_q, 0)
    to = (batch * heads + head) * num_queries + start_q + rows
    tl.store(lse + to, (row_max + tl.log2(weight_sum)) * LN2, mask=mine)
    tl.store(row_maxima + to, row_max, mask=mine)
    tl.store(weight_sums + to, weight_sum, mask=mine)


@triton.jit
def _gradient(
    q, k, v, do, terms, slope, pairs, steps, batch, head,
    stride_qt, stride_kt, stride_vt, stride_ot, first, rows, length_q, start, columns, high,
    start_q, start_k, num_queries, num_keys, shift, window, factor, cap, key_dim, value_dim,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, ALIBI: tl.constexpr,
    BIASED: tl.constexpr, MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr,
    SLICE: tl.constexpr,
):  # fmt: skip
    """The weights of a tile, queries by keys, and the gradient of their products."""
    query = rows[:, None]
    key = columns[None, :]
    visible = sees(key < high, query, key, window, shift, CAUSAL, WINDOW)
    visible, added = restrict(
        visible & (query < length_q), query, key, query < length_q, key < high,
        pairs, steps, batch, head, start_q, start_k, num_queries, num_keys,
        BIASED, MASKED, TABLED, RULES,
    )  # fmt: skip
    base, weight, row_delta = load_terms(terms, first, rows, length_q, True)
    products = _products(
        q, k, stride_qt, stride_kt, first, rows, length_q, start, columns, high, key_dim, SLICE
    )
    s = logits(
        products, query, key, shift, factor, cap, slope, 0, 0, base[:, None], CAPPED, ALIBI, False,
        added, BIASED,
    )  # fmt: skip
    p = tl.where(visible, tl.exp2(s) * weight[:, None], 0.0)
    dp = _products(
        do, v, stride_ot, stride_vt, first, rows, length_q, start, columns, high, value_dim, SLICE
    )
    ds = tl.where(visible, p * (dp - row_delta[:, None]), 0.0)
    if CAPPED:
        ds *= tanh_slope(products * factor)
    return p, ds


@triton.jit(
    do_not_specialize=["num_queries", "num_keys", "window", "tiles", "parts", "heads", "group"]
)  # fmt: skip
def wide_backward_q(
    q, k, v, do, terms, dq, slopes, cu_seqlens_q, cu_seqlens_k,
    scale, factor, cap, window, num_queries, num_keys, tiles, parts, heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh, pairs, steps,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    ALIBI: tl.constexpr, PACKED: tl.constexpr, BIASED: tl.constexpr,
    MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr, SKIP: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SLICE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """PART columns of dq [B, T, H, K] of QUERIES queries of one head."""
    tile = tl.program_id(0) % tiles
    if CAUSAL:
        tile = tiles - 1 - tile
    part = tl.program_id(0) // tiles % parts
    head = (tl.program_id(0) // tiles // parts % heads).to(tl.int64)
    n = tl.program_id(0) // tiles // parts // heads
    batch, start_q, length_q = locate_in_batch(n, cu_seqlens_q, num_queries, PACKED)
    batch, start_k, length_k = locate_in_batch(n, cu_seqlens_k, num_keys, PACKED)
    shift = length_k - length_q
    q += batch * stride_qb + start_q * stride_qt + head * stride_qh
    k += batch * stride_kb + start_k * stride_kt + head // group * stride_kh
    v += batch * stride_vb + start_k * stride_vt + head // group * stride_vh
    do += batch * stride_ob + start_q * stride_ot + head * stride_oh
    terms += ((batch * heads + head) * num_queries + start_q) * 4
    in_part = part * PART + tl.arange(0, PART) < key_dim

    first = tile * QUERIES
    last = tl.minimum(first + QUERIES, length_q) - 1
    rows = first + tl.arange(0, QUERIES)
    slope = load_slope(slopes, head, ALIBI)
    acc = tl.zeros((QUERIES, PART), tl.float32)
    bounds = keys_of(first, last, shift, length_k, window, CAUSAL, WINDOW, KEYS, False)
    high = bounds[3]
    for start in tl.range(bounds[0], high, KEYS, disable_licm=True):
        columns = start + tl.arange(0, KEYS)
        _, ds = _gradient(
            q, k, v, do, terms, slope, pairs, steps, batch, head,
            stride_qt, stride_kt, stride_vt, stride_ot, first, rows, length_q, start, columns,
            high, start_q, start_k, num_queries, num_keys, shift, window, factor, cap,
            key_dim, value_dim, CAUSAL, WINDOW, CAPPED, ALIBI, BIASED, MASKED, TABLED, RULES,
            SLICE,
        )  # fmt: skip
        k_tile = load_tile(k + part * PART, stride_kt, start, columns, high, in_part, False, True)
        acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")
    dq += ((batch * num_queries + start_q) * heads + head) * key_dim + part * PART
    store_tile(dq, heads * key_dim, rows, length_q, acc * scale, in_part)


@triton.jit(
    do_not_specialize=["num_queries", "num_keys", "window", "tiles", "parts", "kv_heads"],
    # A group of 1 is compiled apart, without the loop over it.
    do_not_specialize_on_alignment=["group"],
)
def wide_backward_kv(
    q, k, v, do, terms, out, slopes, cu_seqlens_q, cu_seqlens_k,
    scale, factor, cap, window, num_queries, num_keys, tiles, parts, kv_heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh, pairs, steps,
    DV: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    ALIBI: tl.constexpr, PACKED: tl.constexpr, BIASED: tl.constexpr,
    MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr, SKIP: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SLICE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """PART columns of dk [B, T, G, K], or if DV of dv [B, T, G, V], of KEYS keys of one kv head."""
    tile = tl.program_id(0) % tiles
    part = tl.program_id(0) // tiles % parts
    kv_head = (tl.program_id(0) // tiles // parts % kv_heads).to(tl.int64)
    n = tl.program_id(0) // tiles // parts // kv_heads
    batch, start_q, length_q = locate_in_batch(n, cu_seqlens_q, num_queries, PACKED)
    batch, start_k, length_k = locate_in_batch(n, cu_seqlens_k, num_keys, PACKED)
    shift = length_k - length_q
    k += batch * stride_kb + start_k * stride_kt + kv_head * stride_kh
    v += batch * stride_vb + start_k * stride_vt + kv_head * stride_vh
    width = value_dim if DV else key_dim
    in_part = part * PART + tl.arange(0, PART) < width

    first = tile * KEYS
    last = tl.minimum(first + KEYS, length_k) - 1
    columns = first + tl.arange(0, KEYS)
    acc = tl.zeros((KEYS, PART), tl.float32)
    bounds = queries_of(first, last, shift, length_q, window, CAUSAL, WINDOW, QUERIES, False)
    high = bounds[3]
    for member in tl.range(group, disable_licm=True):
        head = kv_head * group + member
        q_head = q + batch * stride_qb + start_q * stride_qt + head * stride_qh
        do_head = do + batch * stride_ob + start_q * stride_ot + head * stride_oh
        of_head = terms + ((batch * kv_heads * group + head) * num_queries + start_q) * 4
        slope = load_slope(slopes, head, ALIBI)
        for start in tl.range(bounds[0], high, QUERIES, disable_licm=True):
            rows = start + tl.arange(0, QUERIES)
            p, ds = _gradient(
                q_head, k, v, do_head, of_head, slope, pairs, steps, batch, head,
                stride_qt, stride_kt, stride_vt, stride_ot, start, rows, high, first, columns,
                length_k, start_q, start_k, num_queries, num_keys, shift, window, factor, cap,
                key_dim, value_dim, CAUSAL, WINDOW, CAPPED, ALIBI, BIASED, MASKED, TABLED, RULES,
                SLICE,
            )  # fmt: skip
            if DV:
                held = load_tile(
                    do_head + part * PART, stride_ot, start, rows, high, in_part, False, True
                )
                acc = tl.dot(tl.trans(p).to(held.dtype), held, acc, input_precision="ieee")
            else:
                held = load_tile(
                    q_head + part * PART, stride_qt, start, rows, high, in_part, False, True
                )
                acc = tl.dot(tl.trans(ds).to(held.dtype), held, acc, input_precision="ieee")
    if not DV:
        acc *= scale
    out += ((batch * num_keys + start_k) * kv_heads + kv_head) * width + part * PART
    store_tile(out, kv_heads * width, columns, length_k, acc, in_part)


def shape(entry: tiles.Entry, dim: int) -> tuple[int, dict[str, Any]]:
    """The parts in which programs hold a result so wide, and how they are launched."""
    return cdiv(dim, entry.features), {
        "QUERIES": entry.tokens,
        "KEYS": entry.keys,
        "SLICE": 64,
        "PART": entry.features,
        "num_warps": entry.num_warps,
        "num_stages": entry.num_stages,
    }
