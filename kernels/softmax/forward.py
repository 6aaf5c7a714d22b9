"""The forward kernel of attention: one tile of queries, over the keys that it sees.

Online softmax (Milakov and Gimelshein, arXiv 1805.02867) in tiles (Dao et al., arXiv 2205.14135).
"""

import triton
import triton.language as tl

from kernels.primitives.chunks import locate_in_batch
from kernels.softmax.logits import (
    LN2,
    keys_of,
    load_cumulative_gates,
    load_slope,
    load_tile,
    online_softmax,
    sees,
    start_softmax,
    store_tile,
)
from kernels.softmax.structure import restrict, some


@triton.jit(do_not_specialize=["num_queries", "num_keys", "window", "tiles", "heads", "group"])
def attention_forward(
    q, k, v, o, lse, row_maxima, weight_sums, sink, slopes, gate, rest, shut_count,
    cu_seqlens_q, cu_seqlens_k, factor, cap, window, num_queries, num_keys, tiles, heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, pairs, steps,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SINK: tl.constexpr,
    ALIBI: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr,
    BIASED: tl.constexpr, MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr,
    SKIP: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
    FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V], and lse, maximum and sum [B, H, T], of QUERIES queries of one head."""
    PAIRED: tl.constexpr = BIASED or MASKED or TABLED or RULES > 0
    tile = tl.program_id(0) % tiles
    if CAUSAL:
        # The last queries see the most keys: start them first.
        tile = tiles - 1 - tile
    head = tl.program_id(0) // tiles % heads
    n = tl.program_id(0) // tiles // heads
    batch, start_q, length_q = locate_in_batch(n, cu_seqlens_q, num_queries, PACKED)
    batch, start_k, length_k = locate_in_batch(n, cu_seqlens_k, num_keys, PACKED)
    shift = length_k - length_q
    wide_head = head.to(tl.int64)
    kv_head = (head // group).to(tl.int64)
    q += batch * stride_qb + start_q * stride_qt + wide_head * stride_qh
    k += batch * stride_kb + start_k * stride_kt + kv_head * stride_kh
    v += batch * stride_vb + start_k * stride_vt + kv_head * stride_vh

    first = tile * QUERIES
    last = tl.minimum(first + QUERIES, length_q) - 1
    rows = first + tl.arange(0, QUERIES)
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    query = rows[:, None]
    q_tile = load_tile(q, stride_qt, first, rows, length_q, in_k, FULL_K, True)

    slope = load_slope(slopes, head, ALIBI)
    gates = (batch * heads + wide_head) * num_keys + start_k
    placed = (query + shift >= 0) & (query < length_q)
    query_gate = load_cumulative_gates(gate, rest, shut_count, gates + query + shift, placed, GATED)

    row_max, weight_sum = start_softmax(sink, head, QUERIES, SINK)
    acc = tl.zeros((QUERIES, PAD_V), tl.float32)

    bounds = keys_of(first, last, shift, length_k, window, CAUSAL, WINDOW, KEYS, False)
    high = bounds[3]
    for phase in tl.static_range(3):
        for start in range(bounds[phase], bounds[phase + 1], KEYS):
            columns = start + tl.arange(0, KEYS)
            key = columns[None, :]
            visible, added = True, 0.0
            if PAIRED or phase != 1:
                visible = sees(key < high, query, key, window, shift, CAUSAL, WINDOW)
            if PAIRED:
                visible, added = restrict(
                    visible & (query < length_q), query, key, query < length_q, key < high,
                    pairs, steps, batch, wide_head, start_q, start_k, num_queries, num_keys,
                    BIASED, MASKED, TABLED, RULES,
                )  # fmt: skip
            if not (PAIRED and SKIP) or some(visible):
                k_tile = load_tile(k, stride_kt, start, columns, high, in_k, FULL_K, phase != 1)
                key_gate = load_cumulative_gates(
                    gate, rest, shut_count, gates + key, key < high, GATED
                )
                products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
                p, shrink, row_max, weight_sum = online_softmax(
                    products, visible, query, key, shift, factor, cap, slope, query_gate, key_gate,
                    added, row_max, weight_sum, PAIRED or phase != 1, CAPPED, ALIBI, GATED, BIASED,
                )  # fmt: skip
                v_tile = load_tile(v, stride_vt, start, columns, high, in_v, FULL_V, phase != 1)
                acc *= shrink[:, None]
                acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

    out = acc / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
    o += ((batch * num_queries + start_q) * heads + wide_head) * value_dim
    store_tile(o, heads * value_dim, rows, length_q, out, in_v)
    to = (batch * heads + wide_head) * num_queries + start_q + rows
    tl.store(lse + to, (row_max + tl.log2(weight_sum)) * LN2, mask=rows < length_q)
    tl.store(row_maxima + to, row_max, mask=rows < length_q)
    tl.store(weight_sums + to, weight_sum, mask=rows < length_q)
