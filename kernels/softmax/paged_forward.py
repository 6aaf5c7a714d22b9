"""The kernels of paged attention: a tile of rows over one part of the keys, and the merge of parts.

A row is a query of one head; a tile holds the rows of one kv head, so that a decoding step reads
each key once for all heads of its group. Tiles of keys start at multiples of their length, whatever
the pages, and a tile that a row does not see leaves its sums as they are. So the bits of a row
depend on its own keys and on how these are split, and on no page size, neighbour or batch.
"""

import triton
import triton.language as tl

from kernels.primitives.chunks import locate_in_batch
from kernels.softmax.logits import (
    LN2,
    LOG2E,
    finite_maximum,
    keys_of,
    online_softmax,
    sees,
)


@triton.jit
def load_pages(
    pages, scales, table, columns, inside, size, stride_table,
    stride_page, stride_row, stride_dim, stride_scale_page, stride_scale_row,
    dims, in_dims, SCALED: tl.constexpr,
):  # fmt: skip
    """Rows of one sequence, `[columns, dims]` in the dtype of the pages, and their scales.

    The row of a key that is not `inside` is not read, and neither is its entry of the table.
    """
    page = tl.load(table + (columns // size).to(tl.int64) * stride_table, mask=inside, other=0)
    page = page.to(tl.int64)
    row = (columns % size).to(tl.int64)
    start = page * stride_page + row * stride_row
    places = pages + start[:, None] + dims[None, :].to(tl.int64) * stride_dim
    tile = tl.load(places, mask=inside[:, None] & in_dims[None, :], other=0.0)
    scale = tl.full((columns.shape[0],), 1.0, tl.float32)
    if SCALED:
        place = scales + page * stride_scale_page + row * stride_scale_row
        scale = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    return tile, scale


@triton.jit
def _load_queries(q, start_row, dims, exists, in_dims):
    """Rows of queries `[rows, dims]`; 0 where a row or a dim does not exist."""
    mask = exists[:, None] & in_dims[None, :]
    return tl.load(q + start_row[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _products(
    q, q_tile, start_row, exists, k, scales, table, columns, inside, size, stride_table,
    stride_page, stride_row, stride_dim, stride_scale_page, stride_scale_row, key_dim,
    WIDTH: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Products of rows of queries with keys in pages, `[rows, columns]`, times the keys' scales.

    Args:
        q_tile: whole rows of queries, or None: both are then read WIDTH columns at a time.
    """
    dims_k = tl.arange(0, WIDTH)
    if q_tile is not None:
        k_tile, k_factor = load_pages(
            k, scales, table, columns, inside, size, stride_table, stride_page, stride_row,
            stride_dim, stride_scale_page, stride_scale_row, dims_k, dims_k < key_dim, SCALED,
        )  # fmt: skip
        # Eight bits fit into the mantissa of every dtype of q.
        k_tile = k_tile.to(q_tile.dtype)
        products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
    else:
        products = tl.zeros((start_row.shape[0], columns.shape[0]), tl.float32)
        k_factor = tl.full((columns.shape[0],), 1.0, tl.float32)
        for begin in range(0, key_dim, WIDTH):
            dims = begin + dims_k
            in_slice = dims < key_dim
            q_slice = _load_queries(q, start_row, dims, exists, in_slice)
            k_slice, k_factor = load_pages(
                k, scales, table, columns, inside, size, stride_table, stride_page, stride_row,
                stride_dim, stride_scale_page, stride_scale_row, dims, in_slice, SCALED,
            )  # fmt: skip
            k_slice = k_slice.to(q_slice.dtype)
            products = tl.dot(q_slice, tl.trans(k_slice), products, input_precision="ieee")
    if SCALED:
        products *= k_factor[None, :]
    return products


@triton.jit
def _descends(enter, leave, entered, node, drafted):
    """Whether each key of a tree is an ancestor of each query, or the query itself.

    Args:
        enter, leave: of the nodes of this tree, see `kernels.softmax.tree.walk`.
        entered: `enter` of the queries `[rows, 1]`.
        node: the keys' nodes `[columns]`.
        drafted: which of them exist.
    """
    first = tl.load(enter + node, mask=drafted, other=0)[None, :]
    last = tl.load(leave + node, mask=drafted, other=0)[None, :]
    return (first <= entered) & (entered < last)


@triton.jit(
    do_not_specialize=[
        "num_queries", "window", "tiles", "splits", "kv_heads", "group", "size", "parts_stride",
    ]
)  # fmt: skip
def paged_forward(
    q, k, v, o, lse, parts, row_maxima, weight_sums, sink, slopes, k_scale, v_scale, enter, leave,
    table, lengths, cu_seqlens, factor, cap, window, num_queries, tiles, splits, kv_heads, group,
    size, parts_stride, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kp, stride_kc, stride_kg, stride_kd,
    stride_vp, stride_vc, stride_vg, stride_vd, stride_tn, stride_tm,
    stride_ksp, stride_ksc, stride_ksg, stride_vsp, stride_vsc, stride_vsg,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SINK: tl.constexpr,
    ALIBI: tl.constexpr, TREE: tl.constexpr, K_SCALED: tl.constexpr, V_SCALED: tl.constexpr,
    PACKED: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
    SLICE: tl.constexpr,
):  # fmt: skip
    """ROWS rows of one kv head, over the keys of one split.

    If PAD_K exceeds SLICE, it reads and multiplies queries and keys SLICE columns at a time.

    If SPLIT, `parts` gets the sum of weighted values, not divided, `row_maxima` the maximum of the
    base-2 logits and `weight_sums` the sum of their powers of 2; else o and lse are written.
    """
    tile = tl.program_id(0) % tiles
    split = tl.program_id(0) // tiles % splits
    kv_head = tl.program_id(0) // tiles // splits % kv_heads
    n = tl.program_id(0) // tiles // splits // kv_heads
    batch, start_q, length_q = locate_in_batch(n, cu_seqlens, num_queries, PACKED)
    length_k = tl.load(lengths + n).to(tl.int32)
    shift = length_k - length_q
    heads = kv_heads * group
    wide_kv_head = kv_head.to(tl.int64)
    k += wide_kv_head * stride_kg
    v += wide_kv_head * stride_vg
    k_scale += wide_kv_head * stride_ksg
    v_scale += wide_kv_head * stride_vsg
    table += n.to(tl.int64) * stride_tn

    # A sequence may have more rows than an index of 32 bits counts.
    first_row = tile.to(tl.int64) * ROWS
    rows = first_row + tl.arange(0, ROWS)
    token = (rows // group).to(tl.int32)
    head = kv_head * group + (rows % group).to(tl.int32)
    exists = token < length_q
    first = (first_row // group).to(tl.int32)
    last = tl.minimum(((first_row + ROWS - 1) // group).to(tl.int32), length_q - 1)
    WIDTH: tl.constexpr = min(PAD_K, SLICE)
    dims_k = tl.arange(0, WIDTH)
    dims_v = tl.arange(0, PAD_V)
    in_v = dims_v < value_dim
    start_row = (start_q + token) * stride_qt + head.to(tl.int64) * stride_qh
    q += batch * stride_qb
    q_tile = None
    if WIDTH == PAD_K:
        q_tile = _load_queries(q, start_row, dims_k, exists, dims_k < key_dim)
    query = token[:, None]
    place = batch * num_queries + start_q
    slope = tl.zeros((ROWS, 1), tl.float32)
    if ALIBI:
        slope = tl.load(slopes + head).to(tl.float32)[:, None] * LOG2E
    entered = tl.zeros((ROWS, 1), tl.int32)
    if TREE:
        entered = tl.load(enter + place + token, mask=exists, other=0)[:, None]

    row_max = tl.full((ROWS,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((ROWS,), tl.float32)
    if SINK:
        # The sink is one more logit: of the first split, as it may be there once only.
        sink_logit = tl.load(sink + head).to(tl.float32) * LOG2E
        row_max = tl.where(split == 0, sink_logit, row_max)
        weight_sum = tl.where(row_max == float("-inf"), 0.0, 1.0)
    acc = tl.zeros((ROWS, PAD_V), tl.float32)

    bounds = keys_of(first, last, shift, length_k, window, CAUSAL, WINDOW, KEYS, True)
    part = tl.cdiv(tl.cdiv(length_k, KEYS), splits) * KEYS
    low = bounds[4]
    high = bounds[3]
    begin = tl.maximum(bounds[0], split * part)
    end = tl.minimum(high, split * part + part)
    for start in range(begin, end, KEYS):
        columns = start + tl.arange(0, KEYS)
        key = columns[None, :]
        inside = (columns >= low) & (columns < high)
        products = _products(
            q, q_tile, start_row, exists, k, k_scale, table, columns, inside, size, stride_tm,
            stride_kp, stride_kc, stride_kd, stride_ksp, stride_ksc, key_dim, WIDTH, K_SCALED,
        )  # fmt: skip
        visible = sees(inside[None, :], query, key, window, shift, CAUSAL, WINDOW)
        if TREE:
            node = columns - shift
            of_tree = _descends(enter + place, leave + place, entered, node, inside & (node >= 0))
            visible = visible & ((key < shift) | of_tree)
        p, shrink, row_max, weight_sum = online_softmax(
            products, visible, query, key, shift, factor, cap, slope, 0, 0, 0.0,
            row_max, weight_sum, True, CAPPED, ALIBI, False, False,
        )  # fmt: skip
        v_tile, v_factor = load_pages(
            v, v_scale, table, columns, inside, size, stride_tm, stride_vp, stride_vc, stride_vd,
            stride_vsp, stride_vsc, dims_v, in_v, V_SCALED,
        )  # fmt: skip
        acc *= shrink[:, None]
        if V_SCALED:
            # A weight times a scale need not fit into 16 bits.
            v_tile = v_tile.to(tl.float32) * v_factor[:, None]
            acc = tl.dot(p, v_tile, acc, input_precision="ieee")
        else:
            acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

    row = (place + token) * heads + head
    if SPLIT:
        row += split.to(tl.int64) * parts_stride
        o = parts
        tl.store(row_maxima + row, row_max, mask=exists)
        tl.store(weight_sums + row, weight_sum, mask=exists)
    else:
        acc = acc / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
        to = (batch * heads + head) * num_queries + start_q + token
        tl.store(lse + to, (row_max + tl.log2(weight_sum)) * LN2, mask=exists)
    o += row[:, None] * value_dim + dims_v[None, :]
    tl.store(o, acc.to(o.dtype.element_ty), mask=exists[:, None] & in_v[None, :])


@triton.jit(do_not_specialize=["count", "tokens", "splits", "heads"])
def merge_parts(
    parts, row_maxima, weight_sums, o, lse, count, tokens, splits, heads, value_dim: tl.int32,
    ROWS: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """Merge the splits of ROWS rows `[B, T, H]`, first to last."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PAD_V)
    exists = rows < count
    mask = exists[:, None] & (dims < value_dim)[None, :]
    row_max = tl.full((ROWS,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, PAD_V), tl.float32)
    for split in range(splits):
        row = rows + tl.cast(split, tl.int64) * count
        part_max = tl.load(row_maxima + row, mask=exists, other=float("-inf"))
        part = tl.load(parts + row[:, None] * value_dim + dims[None, :], mask=mask, other=0.0)
        new_max = tl.maximum(row_max, part_max)
        base = finite_maximum(new_max)
        shrink = tl.exp2(row_max - base)
        weight = tl.exp2(part_max - base)
        part_sum = tl.load(weight_sums + row, mask=exists, other=0.0)
        weight_sum = weight_sum * shrink + part_sum * weight
        acc = acc * shrink[:, None] + part * weight[:, None]
        row_max = new_max
    acc = acc / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
    to = o + rows[:, None] * value_dim + dims[None, :]
    tl.store(to, acc.to(o.dtype.element_ty), mask=mask)
    head = rows % heads
    token = rows // heads
    to = (token // tokens * heads + head) * tokens + token % tokens
    tl.store(lse + to, (row_max + tl.log2(weight_sum)) * LN2, mask=exists)
