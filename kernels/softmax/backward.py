"""The backward kernels of attention: terms of rows; dq by tiles of queries; dk, dv by keys.

With P = exp(logit - maximum) / sum, dP = do·vᵀ and delta = Σ_v do·o - dlse, the gradient of the
logits is dS = P∘(dP - delta) (Dao et al., arXiv 2205.14135, with the gradient of the lse added:
∂lse/∂logit is P). Each gradient is summed by one program in a fixed order; nothing is atomic.
"""

import triton
import triton.language as tl

from kernels.primitives.chunks import locate_in_batch
from kernels.softmax.gates import level_of
from kernels.softmax.logits import (
    finite_maximum,
    inverse_or_0,
    keys_of,
    load_cumulative_gates,
    load_slope,
    load_terms,
    load_tile,
    logits,
    products_by_key,
    queries_of,
    sees,
    store_tile,
    tanh_slope,
)
from kernels.softmax.structure import restrict, some


@triton.jit(do_not_specialize=["num_queries", "tiles", "heads"])
def attention_terms(
    o, do, dlse, row_maxima, weight_sums, factors, terms, cu_seqlens, num_queries, tiles, heads,
    value_dim: tl.int32, stride_b, stride_t, stride_h,
    PACKED: tl.constexpr, SCALED: tl.constexpr, QUERIES: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """terms [B, H, T, 4]: base, weight and delta of each query, and delta once more.

    The base is what to subtract from base-2 logits, the weight is 1 / the sum of their powers, and
    delta = Σ_v do·o - dlse, over all of V at once. The softmax is rebuilt from the maximum and the
    sum rather than from the lse, whose rounding error, relative to a large logit, would enter every
    weight. A row that sees no key has the maximum -inf and the sum 0, and gets 0 and 0: its weights
    are 0, and never inf - inf. If SCALED, the weight is multiplied by the factor of the head, and
    with it all gradients.
    """
    tile = tl.program_id(0) % tiles
    head = (tl.program_id(0) // tiles % heads).to(tl.int64)
    n = tl.program_id(0) // tiles // heads
    batch, start, length = locate_in_batch(n, cu_seqlens, num_queries, PACKED)
    o += ((batch * num_queries + start) * heads + head) * value_dim
    do += batch * stride_b + start * stride_t + head * stride_h
    first_row = (batch * heads + head) * num_queries + start

    first = tile * QUERIES
    rows = first + tl.arange(0, QUERIES)
    inside = rows < length
    in_v = tl.arange(0, PAD_V) < value_dim
    o_tile = load_tile(o, heads * value_dim, first, rows, length, in_v, False, True).to(tl.float32)
    do_tile = load_tile(do, stride_t, first, rows, length, in_v, False, True).to(tl.float32)
    from_lse = tl.load(dlse + first_row + rows, mask=inside, other=0.0)
    row_delta = tl.sum(o_tile * do_tile, 1) - from_lse
    base = tl.load(row_maxima + first_row + rows, mask=inside, other=0.0)
    base = finite_maximum(base)
    weight_sum = tl.load(weight_sums + first_row + rows, mask=inside, other=0.0)
    weight = inverse_or_0(weight_sum)
    if SCALED:
        weight *= tl.load(factors + head)

    term = tl.arange(0, 4)
    four = tl.where(term == 1, weight[:, None], row_delta[:, None])
    four = tl.where(term == 0, base[:, None], four)
    store_tile(terms + first_row * 4, 4, rows, length, four, term < 4)


@triton.jit(
    do_not_specialize=[
        "num_queries", "num_keys", "window", "tiles", "heads", "group", "level_stride"
    ]
)  # fmt: skip
def attention_backward_q(
    q, k, v, do, terms, dq, row_sums, slopes, gate, rest, shut_count,
    cu_seqlens_q, cu_seqlens_k,
    scale, factor, cap, window, num_queries, num_keys, tiles, heads, level_stride,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh, pairs, steps,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    ALIBI: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr,
    BIASED: tl.constexpr, MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr,
    SKIP: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SPAN: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K] of QUERIES queries of one head.

    With gates also row_sums [L, B, H, T], the sums of dS over the keys of the left half of each
    level's subtree (see gates.py). Tiles then start at positions and keys that are multiples of
    their length, so that one level holds the whole of a tile.
    """
    PAIRED: tl.constexpr = BIASED or MASKED or TABLED or RULES > 0
    tile = tl.program_id(0) % tiles
    if CAUSAL:
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
    do += batch * stride_ob + start_q * stride_ot + wide_head * stride_oh
    first_row = (batch * heads + wide_head) * num_queries + start_q
    if GATED:
        row_sums += first_row

    first = tile * QUERIES
    if GATED:
        first -= shift & (QUERIES - 1)
    position = first + shift
    last = tl.minimum(first + QUERIES, length_q) - 1
    rows = first + tl.arange(0, QUERIES)
    # A row before the first is sent past the last one, where nothing is read or written.
    rows = tl.where(rows < 0, length_q, rows)
    query = rows[:, None]
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    q_tile = load_tile(q, stride_qt, first, rows, length_q, in_k, FULL_K, True)
    do_tile = load_tile(do, stride_ot, first, rows, length_q, in_v, FULL_V, True)
    base, weight, row_delta = load_terms(terms + first_row * 4, first, rows, length_q, True)

    slope = load_slope(slopes, head, ALIBI)
    gates = (batch * heads + wide_head) * num_keys + start_k
    placed = (query + shift >= 0) & (query < length_q)
    query_gate = load_cumulative_gates(gate, rest, shut_count, gates + query + shift, placed, GATED)

    acc = tl.zeros((QUERIES, PAD_K), tl.float32)
    row_sum = tl.zeros((QUERIES,), tl.float32)
    level = tl.full((), -1, tl.int32)
    bounds = keys_of(
        tl.maximum(first, 0), last, shift, length_k, window, CAUSAL, WINDOW, KEYS, GATED
    )
    high = bounds[3]
    for phase in tl.static_range(3):
        for start in range(bounds[phase], bounds[phase + 1], KEYS):
            columns = start + tl.arange(0, KEYS)
            if GATED and phase == 0:
                columns = tl.where(columns < bounds[4], high, columns)
            key = columns[None, :]
            added = 0.0
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
                v_tile = load_tile(v, stride_vt, start, columns, high, in_v, FULL_V, phase != 1)
                key_gate = load_cumulative_gates(
                    gate, rest, shut_count, gates + key, key < high, GATED
                )
                products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
                s = logits(
                    products, query, key, shift, factor, cap, slope, query_gate, key_gate,
                    base[:, None], CAPPED, ALIBI, GATED, added, BIASED,
                )  # fmt: skip
                p = tl.exp2(s) * weight[:, None]
                dp = tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee")
                ds = p * (dp - row_delta[:, None])
                if PAIRED or phase != 1:
                    ds = tl.where(visible, ds, 0.0)
                if GATED:
                    last_level = level
                    level = level_of(position, start, SPAN)
                    row_sum = tl.where(level == last_level, row_sum, 0.0) + tl.sum(ds, 1)
                    to = row_sums + level.to(tl.int64) * level_stride + rows
                    tl.store(to, row_sum, mask=(rows < length_q) & (level >= 0))
                if CAPPED:
                    ds *= tanh_slope(products * factor)
                acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")

    dq += ((batch * num_queries + start_q) * heads + wide_head) * key_dim
    store_tile(dq, heads * key_dim, rows, length_q, acc * scale, in_k)


@triton.jit(
    do_not_specialize=["num_queries", "num_keys", "window", "tiles", "kv_heads", "level_stride"],
    # A group of 1 is compiled apart, without the loop over it.
    do_not_specialize_on_alignment=["group"],
)
def attention_backward_kv(
    q, k, v, do, terms, dk, dv, column_sums, slopes, gate, rest, shut_count,
    cu_seqlens_q, cu_seqlens_k,
    scale, factor, cap, window, num_queries, num_keys, tiles, kv_heads, level_stride,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh, pairs, steps,
    DK: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, ALIBI: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr,
    BIASED: tl.constexpr, MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr,
    SKIP: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SPAN: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """dk [B, T, G, K], dv [B, T, G, V] or both of KEYS keys of one kv head, over its query heads.

    With gates also column_sums [L, B, H, T], the sums of dS over the queries of the right half of
    each level's subtree, for each query head. Tiles are keys by queries.
    """
    PAIRED: tl.constexpr = BIASED or MASKED or TABLED or RULES > 0
    tile = tl.program_id(0) % tiles
    kv_head = (tl.program_id(0) // tiles % kv_heads).to(tl.int64)
    n = tl.program_id(0) // tiles // kv_heads
    batch, start_q, length_q = locate_in_batch(n, cu_seqlens_q, num_queries, PACKED)
    batch, start_k, length_k = locate_in_batch(n, cu_seqlens_k, num_keys, PACKED)
    shift = length_k - length_q
    k += batch * stride_kb + start_k * stride_kt + kv_head * stride_kh
    v += batch * stride_vb + start_k * stride_vt + kv_head * stride_vh

    first = tile * KEYS
    last = tl.minimum(first + KEYS, length_k) - 1
    columns = first + tl.arange(0, KEYS)
    key = columns[:, None]
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    k_tile = load_tile(k, stride_kt, first, columns, length_k, in_k, FULL_K, True)
    if DK:
        v_tile = load_tile(v, stride_vt, first, columns, length_k, in_v, FULL_V, True)
        dk_acc = tl.zeros((KEYS, PAD_K), tl.float32)
    if DV:
        dv_acc = tl.zeros((KEYS, PAD_V), tl.float32)

    bounds = queries_of(first, last, shift, length_q, window, CAUSAL, WINDOW, QUERIES, GATED)
    high = bounds[3]
    # No loop-invariant code motion: values that three loops share would fill the registers.
    for member in tl.range(group, disable_licm=True):
        head = kv_head * group + member
        q_head = q + batch * stride_qb + start_q * stride_qt + head * stride_qh
        do_head = do + batch * stride_ob + start_q * stride_ot + head * stride_oh
        first_row = (batch * kv_heads * group + head) * num_queries + start_q
        slope = load_slope(slopes, head, ALIBI)
        gates = (batch * kv_heads * group + head) * num_keys + start_k
        key_gate = load_cumulative_gates(gate, rest, shut_count, gates + key, key < length_k, GATED)
        column_sum = tl.zeros((KEYS,), tl.float32)
        level = tl.full((), -1, tl.int32)
        for phase in tl.static_range(3):
            for start in range(bounds[phase], bounds[phase + 1], QUERIES):
                rows = start + tl.arange(0, QUERIES)
                if GATED and phase == 0:
                    rows = tl.where(rows < bounds[4], high, rows)
                query = rows[None, :]
                inside = query < high
                added = 0.0
                if PAIRED or phase != 1:
                    visible = sees(inside, query, key, window, shift, CAUSAL, WINDOW)
                if PAIRED:
                    visible, added = restrict(
                        visible & (key < length_k), query, key, inside, key < length_k,
                        pairs, steps, batch, head, start_q, start_k, num_queries, num_keys,
                        BIASED, MASKED, TABLED, RULES,
                    )  # fmt: skip
                if not (PAIRED and SKIP) or some(visible):
                    bounded: tl.constexpr = phase != 1
                    q_tile = load_tile(q_head, stride_qt, start, rows, high, in_k, FULL_K, bounded)
                    do_tile = load_tile(
                        do_head, stride_ot, start, rows, high, in_v, FULL_V, bounded
                    )
                    base, weight, row_delta = load_terms(
                        terms + first_row * 4, start, rows, high, bounded
                    )
                    # From the causal bound on, a query's own position is a key's.
                    query_gate = load_cumulative_gates(
                        gate, rest, shut_count, gates + query + shift, inside, GATED
                    )
                    products = products_by_key(k_tile, q_tile)
                    s = logits(
                        products, query, key, shift, factor, cap, slope, query_gate, key_gate,
                        base[None, :], CAPPED, ALIBI, GATED, added, BIASED,
                    )  # fmt: skip
                    p = tl.exp2(s) * weight[None, :]
                    if PAIRED or bounded:
                        p = tl.where(visible, p, 0.0)
                    if DV:
                        # Before ds, which is computed while the tensor cores do this.
                        dv_acc = tl.dot(
                            p.to(do_tile.dtype), do_tile, dv_acc, input_precision="ieee"
                        )
                    if DK:
                        dp = tl.dot(v_tile, tl.trans(do_tile), input_precision="ieee")
                        ds = p * (dp - row_delta[None, :])
                        if PAIRED or bounded:
                            # Nothing times a product that is infinite would be NaN.
                            ds = tl.where(visible, ds, 0.0)
                        if GATED:
                            last_level = level
                            level = level_of(start + shift, first, SPAN)
                            column_sum = tl.where(level == last_level, column_sum, 0.0)
                            column_sum += tl.sum(ds, 1)
                            to = column_sums + level.to(tl.int64) * level_stride + gates + columns
                            tl.store(to, column_sum, mask=(columns < length_k) & (level >= 0))
                        if CAPPED:
                            ds *= tanh_slope(products * factor)
                        dk_acc = tl.dot(ds.to(q_tile.dtype), q_tile, dk_acc, input_precision="ieee")

    row = (batch * num_keys + start_k) * kv_heads + kv_head
    if DK:
        store_tile(dk + row * key_dim, kv_heads * key_dim, columns, length_k, dk_acc * scale, in_k)
    if DV:
        store_tile(dv + row * value_dim, kv_heads * value_dim, columns, length_k, dv_acc, in_v)


@triton.jit(
    do_not_specialize=[
        "num_queries", "num_keys", "window", "tiles_q", "tiles_k", "heads", "sequences", "group"
    ]
)  # fmt: skip
def attention_backward_bias(
    q, k, v, do, terms, dbias, slopes, gate, rest, shut_count,
    cu_seqlens_q, cu_seqlens_k,
    factor, cap, window, num_queries, num_keys, tiles_q, tiles_k, heads, sequences,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh, pairs, steps,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    ALIBI: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr,
    BIASED: tl.constexpr, MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr,
    SKIP: tl.constexpr,
    SUM_N: tl.constexpr, SUM_H: tl.constexpr, SUM_Q: tl.constexpr, SUM_K: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """dbias, contiguous: dS of one tile of queries and keys, summed over what shares its bias.

    All sequences share it if SUM_N, all heads if SUM_H, all queries if SUM_Q, all keys if SUM_K.
    """
    of_queries = 1 if SUM_Q else tiles_q
    of_keys = 1 if SUM_K else tiles_k
    of_heads = 1 if SUM_H else heads
    program = tl.program_id(0).to(tl.int64)
    first_q = program % of_queries
    first_k = program // of_queries % of_keys
    first_head = program // of_queries // of_keys % of_heads
    first_n = program // of_queries // of_keys // of_heads
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim

    acc = tl.zeros((QUERIES, KEYS), tl.float32)
    for n in range(first_n, sequences if SUM_N else first_n + 1):
        batch, start_q, length_q = locate_in_batch(n, cu_seqlens_q, num_queries, PACKED)
        batch, start_k, length_k = locate_in_batch(n, cu_seqlens_k, num_keys, PACKED)
        shift = length_k - length_q
        for member in range(first_head, heads if SUM_H else first_head + 1):
            head = tl.cast(member, tl.int64)
            kv_head = head // group
            q_head = q + batch * stride_qb + start_q * stride_qt + head * stride_qh
            do_head = do + batch * stride_ob + start_q * stride_ot + head * stride_oh
            k_head = k + batch * stride_kb + start_k * stride_kt + kv_head * stride_kh
            v_head = v + batch * stride_vb + start_k * stride_vt + kv_head * stride_vh
            first_row = (batch * heads + head) * num_queries + start_q
            gates = (batch * heads + head) * num_keys + start_k
            slope = load_slope(slopes, head, ALIBI)
            for tile_q in range(first_q, tiles_q if SUM_Q else first_q + 1):
                first = tile_q * QUERIES
                rows = first + tl.arange(0, QUERIES)
                query = rows[:, None]
                in_query = query < length_q
                for tile_k in range(first_k, tiles_k if SUM_K else first_k + 1):
                    start = tile_k * KEYS
                    columns = start + tl.arange(0, KEYS)
                    key = columns[None, :]
                    in_key = key < length_k
                    visible = sees(in_query & in_key, query, key, window, shift, CAUSAL, WINDOW)
                    visible, added = restrict(
                        visible, query, key, in_query, in_key,
                        pairs, steps, batch, head, start_q, start_k, num_queries, num_keys,
                        BIASED, MASKED, TABLED, RULES,
                    )  # fmt: skip
                    if not SKIP or some(visible):
                        q_tile = load_tile(
                            q_head, stride_qt, first, rows, length_q, in_k, FULL_K, True
                        )
                        do_tile = load_tile(
                            do_head, stride_ot, first, rows, length_q, in_v, FULL_V, True
                        )
                        k_tile = load_tile(
                            k_head, stride_kt, start, columns, length_k, in_k, FULL_K, True
                        )
                        v_tile = load_tile(
                            v_head, stride_vt, start, columns, length_k, in_v, FULL_V, True
                        )
                        base, weight, row_delta = load_terms(
                            terms + first_row * 4, first, rows, length_q, True
                        )
                        placed = in_query & (query + shift >= 0)
                        query_gate = load_cumulative_gates(
                            gate, rest, shut_count, gates + query + shift, placed, GATED
                        )
                        key_gate = load_cumulative_gates(
                            gate, rest, shut_count, gates + key, in_key, GATED
                        )
                        products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
                        s = logits(
                            products, query, key, shift, factor, cap, slope, query_gate, key_gate,
                            base[:, None], CAPPED, ALIBI, GATED, added, BIASED,
                        )  # fmt: skip
                        p = tl.exp2(s) * weight[:, None]
                        dp = tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee")
                        acc += tl.where(visible, p * (dp - row_delta[:, None]), 0.0)

    batch, start_q, length_q = locate_in_batch(first_n, cu_seqlens_q, num_queries, PACKED)
    batch, start_k, length_k = locate_in_batch(first_n, cu_seqlens_k, num_keys, PACKED)
    width = 1 if SUM_K else num_keys
    height = 1 if SUM_Q else num_queries
    dbias += ((0 if SUM_N else batch * of_heads) + first_head).to(tl.int64) * height * width
    rows = tl.arange(0, QUERIES)
    columns = tl.arange(0, KEYS)
    stop_q = 1
    stop_k = 1
    if SUM_Q:
        acc = tl.sum(acc, 0, keep_dims=True) + tl.zeros_like(acc)
    else:
        rows += first_q * QUERIES
        stop_q = length_q
        dbias += start_q * width
    if SUM_K:
        acc = tl.sum(acc, 1, keep_dims=True) + tl.zeros_like(acc)
    else:
        columns += first_k * KEYS
        stop_k = length_k
        dbias += start_k
    pointers = dbias + rows[:, None].to(tl.int64) * width + columns[None, :]
    inside = (rows < stop_q)[:, None] & (columns < stop_k)[None, :]
    tl.store(pointers, acc.to(dbias.dtype.element_ty), mask=inside)
