"""Kernels of attention to selected blocks.

A program of the forward pass and of dq holds ROWS query heads of one token that share a selection,
and gathers the keys of its blocks in tiles. A program of dk and dv holds keys of one
block and walks over the queries that selected it, in their order: nothing is atomic.

Slots are sorted, the largest index first, each index once and -1 last. A list of queries by block
is a sort of all pairs (block, query). Both are made of the indices by PyTorch.
"""

import triton
import triton.language as tl

from kernels.softmax.logits import LN2, finite_maximum, inverse_or_0


@triton.jit
def _gather(x, stride, rows, there, exists):
    """Load rows of a matrix, 0 where one does not exist."""
    columns = tl.arange(0, exists.shape[0])
    pointers = x + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    return tl.load(pointers, mask=there[:, None] & exists[None, :], other=0.0)


@triton.jit
def _scatter(x, stride, rows, there, values, exists):
    """Store rows of a matrix that exist."""
    columns = tl.arange(0, exists.shape[0])
    pointers = x + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(pointers, values.to(x.dtype.element_ty), mask=there[:, None] & exists[None, :])


@triton.jit
def _keys(slots, start, count, block_size, position, KEYS: tl.constexpr):
    """KEYS keys of a query's blocks, from the `start`-th on, and which of them it sees."""
    place = start + tl.arange(0, KEYS)
    index = tl.load(slots + place // block_size, mask=place < count, other=-1)
    key = index * block_size + place % block_size
    return key, (index >= 0) & (key <= position)


@triton.jit(
    do_not_specialize=[
        "num_queries", "select_heads", "slots_each", "block_size", "parts", "share",
        "group",
    ]
)  # fmt: skip
def selected_forward(
    q, k, v, o, lse, row_maxima, weight_sums, slots, counts, positions, starts,
    factor, num_queries, select_heads, slots_each, block_size, parts, share,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """o and lse of heads of one query that share a selection; for the backward pass, row_maxima and
    weight_sums."""
    part = tl.program_id(0) % parts
    pid = (tl.program_id(0) // parts).to(tl.int64)
    select_head = pid % select_heads
    kv_head = select_head // share
    token = pid // select_heads
    batch, i = token // num_queries, token % num_queries
    position = tl.load(positions + i)
    first_key = tl.load(starts + i)
    slots += pid * slots_each
    count = tl.load(counts + pid) * block_size

    row = part * ROWS + tl.arange(0, ROWS)
    inside = row < group
    head = select_head * group + row
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    q_tile = _gather(q + batch * stride_qb + i * stride_qt, stride_qh, head, inside, in_k)
    k += batch * stride_kb + first_key * stride_kt + kv_head * stride_kh
    v += batch * stride_vb + first_key * stride_vt + kv_head * stride_vh

    row_max = tl.full((ROWS,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, PAD_V), tl.float32)
    for start in range(0, count, KEYS):
        key, seen = _keys(slots, start, count, block_size, position, KEYS)
        k_tile = _gather(k, stride_kt, key, seen, in_k)
        v_tile = _gather(v, stride_vt, key, seen, in_v)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * factor
        s = tl.where(seen[None, :], s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1))
        base = finite_maximum(new_max)
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(row_max - base)
        weight_sum = weight_sum * shrink + tl.sum(p, 1)
        row_max = new_max
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * shrink[:, None], input_precision="ieee")

    out = acc / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
    heads = select_heads * group
    _scatter(o + token * heads * value_dim, value_dim, head, inside, out, in_v)
    to = (batch * heads + head) * num_queries + i
    tl.store(lse + to, (row_max + tl.log2(weight_sum)) * LN2, mask=inside)
    tl.store(row_maxima + to, row_max, mask=inside)
    tl.store(weight_sums + to, weight_sum, mask=inside)


@triton.jit
def _weight(weight_sums, at, inside):
    """1 / the sum of a row's powers of 2; 0 for a row that sees no key."""
    weight_sum = tl.load(weight_sums + at, mask=inside, other=0.0)
    return inverse_or_0(weight_sum)


@triton.jit
def _base(row_maxima, at, inside):
    row_max = tl.load(row_maxima + at, mask=inside, other=0.0)
    return finite_maximum(row_max)


@triton.jit(
    do_not_specialize=[
        "num_queries", "select_heads", "slots_each", "block_size", "parts", "share",
        "group",
    ]
)  # fmt: skip
def selected_backward_q(
    q, k, v, o, do, dlse, row_maxima, weight_sums, deltas, dq, slots, counts, positions, starts,
    scale, factor, num_queries, select_heads, slots_each, block_size, parts, share,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """dq of the heads of one query that share a selection, and their deltas = Σ_v do·o - dlse."""
    part = tl.program_id(0) % parts
    pid = (tl.program_id(0) // parts).to(tl.int64)
    select_head = pid % select_heads
    kv_head = select_head // share
    token = pid // select_heads
    batch, i = token // num_queries, token % num_queries
    position = tl.load(positions + i)
    first_key = tl.load(starts + i)
    slots += pid * slots_each
    count = tl.load(counts + pid) * block_size

    row = part * ROWS + tl.arange(0, ROWS)
    inside = row < group
    head = select_head * group + row
    heads = select_heads * group
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    q_tile = _gather(q + batch * stride_qb + i * stride_qt, stride_qh, head, inside, in_k)
    do_tile = _gather(do + batch * stride_ob + i * stride_ot, stride_oh, head, inside, in_v)
    o_tile = _gather(o + token * heads * value_dim, value_dim, head, inside, in_v)
    at = (batch * heads + head) * num_queries + i
    delta = tl.sum(do_tile.to(tl.float32) * o_tile.to(tl.float32), 1)
    delta -= tl.load(dlse + at, mask=inside, other=0.0)
    tl.store(deltas + at, delta, mask=inside)
    base, weight = _base(row_maxima, at, inside), _weight(weight_sums, at, inside)
    k += batch * stride_kb + first_key * stride_kt + kv_head * stride_kh
    v += batch * stride_vb + first_key * stride_vt + kv_head * stride_vh

    acc = tl.zeros((ROWS, PAD_K), tl.float32)
    for start in range(0, count, KEYS):
        key, seen = _keys(slots, start, count, block_size, position, KEYS)
        k_tile = _gather(k, stride_kt, key, seen, in_k)
        v_tile = _gather(v, stride_vt, key, seen, in_v)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * factor
        s = tl.where(seen[None, :], s, float("-inf"))
        p = tl.exp2(s - base[:, None]) * weight[:, None]
        dp = tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee")
        # Nothing times a product that is infinite would be NaN.
        ds = tl.where(seen[None, :], p * (dp - delta[:, None]), 0.0)
        acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")
    _scatter(dq + token * heads * key_dim, key_dim, head, inside, acc * scale, in_k)


@triton.jit(
    do_not_specialize=[
        "num_queries", "num_keys", "kv_heads", "blocks", "block_size", "parts", "share",
        "group",
    ]
)  # fmt: skip
def selected_backward_kv(
    q, k, v, do, row_maxima, weight_sums, deltas, dk, dv, queries, bounds, positions,
    block_keys, scale, factor, num_queries, num_keys, kv_heads, blocks, block_size, parts, share,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """dk and dv of KEYS keys of a block, from the query heads that selected it."""
    part = tl.program_id(0) % parts
    pid = (tl.program_id(0) // parts).to(tl.int64)
    block = pid % blocks
    kv_head = pid // blocks % kv_heads
    batch = pid // blocks // kv_heads
    first_key = tl.load(block_keys + 3 * block)
    place = tl.load(block_keys + 3 * block + 1)
    stop = tl.load(block_keys + 3 * block + 2)

    offset = part * KEYS + tl.arange(0, KEYS)
    key = first_key + offset
    there = (offset < block_size) & (key < stop)
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    k_tile = _gather(k + batch * stride_kb + kv_head * stride_kh, stride_kt, key, there, in_k)
    v_tile = _gather(v + batch * stride_vb + kv_head * stride_vh, stride_vt, key, there, in_v)
    q += batch * stride_qb
    do += batch * stride_ob
    heads = kv_heads * share * group

    dk_acc = tl.zeros((KEYS, PAD_K), tl.float32)
    dv_acc = tl.zeros((KEYS, PAD_V), tl.float32)
    for member in range(share):
        select_head = kv_head * share + member
        entry = (batch * kv_heads * share + select_head) * blocks + block
        first = tl.load(bounds + entry)
        count = (tl.load(bounds + entry + 1) - first) * group
        for start in range(0, count, ROWS):
            row = start + tl.arange(0, ROWS)
            inside = row < count
            i = tl.load(queries + first + row // group, mask=inside, other=0)
            head = select_head * group + row % group
            position = tl.load(positions + i, mask=inside, other=-1)
            seen = (place + offset)[:, None] <= position[None, :]
            seen = seen & there[:, None] & inside[None, :]
            q_tile = _gather(q, 1, i * stride_qt + head * stride_qh, inside, in_k)
            do_tile = _gather(do, 1, i * stride_ot + head * stride_oh, inside, in_v)
            at = (batch * heads + head) * num_queries + i
            base, weight = _base(row_maxima, at, inside), _weight(weight_sums, at, inside)
            delta = tl.load(deltas + at, mask=inside, other=0.0)
            s = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee") * factor
            s = tl.where(seen, s, float("-inf"))
            p = tl.exp2(s - base[None, :]) * weight[None, :]
            dv_acc = tl.dot(p.to(do_tile.dtype), do_tile, dv_acc, input_precision="ieee")
            dp = tl.dot(v_tile, tl.trans(do_tile), input_precision="ieee")
            ds = tl.where(seen, p * (dp - delta[None, :]), 0.0)
            dk_acc = tl.dot(ds.to(q_tile.dtype), q_tile, dk_acc, input_precision="ieee")

    at = (batch * num_keys + key) * kv_heads + kv_head
    _scatter(dk, key_dim, at, there, dk_acc * scale, in_k)
    _scatter(dv, value_dim, at, there, dv_acc, in_v)
