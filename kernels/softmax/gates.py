"""The forget gate of attention: prefix sums of log gates, and the gradient back to the gates.

The bias of a logit is `Gc[i] - Gc[j]` with `Gc` the prefix sum of `g` along the keys of a sequence
(Lin et al., "Forgetting Transformer", arXiv 2503.02130). A float32 `Gc` would lose the digits of
that difference once the gates have summed up to something large. So the sum is made in float64, in
base 2, and kept as a pair of float32, the rounded sum and what the rounding left: 48 bits, and the
difference of two leading parts is exact when they are within a factor of two of each other, else
rounded relative to a result that is itself large.

A gate below SHUT, -inf included, is not summed but counted: the weight of a key with another count
than the query's is exactly 0. The sums behind such a gate keep their digits, and -inf - -inf does
not arise. Kept are thus three arrays, the two parts of the sum and the count.

The gradient of a gate is a sum over the pairs of a query and a key on its two sides,

    dg_t = Σ_{j < t <= p_i} dS_ij.

As the difference of row sums and column sums of dS after t, which also hold the pairs with both on
one side, it would keep the rounding errors of what cancels: with a window of one key, or behind a
shut gate, noise in place of 0. Here each pair is counted where it belongs and nothing cancels.
Tokens are divided into blocks of SPAN, and blocks, pairs of blocks, pairs of pairs and so on into a
tree. Level l holds the pairs (i, j) whose blocks differ in bit l at the highest: i lies in the
right half, and j in the left half, of one subtree of 2^(l+1) blocks. A gate in the right half needs
the sum over the queries from t on, and one in the left half the sum over the keys before t:

    dg_t += Σ_{i in half, p_i >= t} rows[l, i]    or    Σ_{j in half, j < t} columns[l, j].

The kernels of dq and of dk, dv sum dS over the other half on their way, `rows[l, i]` and
`columns[l, j]`; what is left is the triangle of pairs within a block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import count_sequences
from kernels.primitives.chunks import locate_in_batch
from kernels.softmax.logits import (
    LOG2E,
    load_cumulative_gates,
    load_slope,
    load_terms,
    load_tile,
    logits,
    products_by_key,
    sees,
)
from kernels.softmax.structure import restrict
from kernels.tiles import cdiv

# exp(SHUT) is 0 in float64 as well, even against logits a hundred thousand apart.
SHUT = tl.constexpr(-(2.0**17))
_BLOCK = 512


@triton.jit(do_not_specialize=["num_keys", "heads", "stride_b", "stride_t", "stride_h"])
def prefix_sums(
    g, gate, rest, shut_count, cu_seqlens, num_keys, heads, stride_b, stride_t, stride_h,
    PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """gate + rest = log2(e)·cumsum(g) of the gates from SHUT on, and shut_count, how many are not.

    A program sums one head of one sequence.
    """
    head = tl.program_id(0) % heads
    batch, start, length = locate_in_batch(tl.program_id(0) // heads, cu_seqlens, num_keys, PACKED)
    g += batch * stride_b + start * stride_t + head.to(tl.int64) * stride_h
    base = (batch * heads + head) * num_keys + start
    carry = tl.full((), 0.0, tl.float64)
    count = tl.full((), 0, tl.int32)
    for first in range(0, length, BLOCK):
        t = first + tl.arange(0, BLOCK)
        inside = t < length
        x = tl.load(g + t.to(tl.int64) * stride_t, mask=inside, other=0.0).to(tl.float64)
        shut = x < SHUT
        x = tl.where(shut, 0.0, x)
        cumulative = (carry + tl.cumsum(x, 0)) * LOG2E
        leading = cumulative.to(tl.float32)
        tl.store(gate + base + t, leading, mask=inside)
        tl.store(rest + base + t, (cumulative - leading.to(tl.float64)).to(tl.float32), mask=inside)
        tl.store(shut_count + base + t, count + tl.cumsum(shut.to(tl.int32), 0), mask=inside)
        carry += tl.sum(x, 0)
        count += tl.sum(shut.to(tl.int32), 0)


@triton.jit
def level_of(position, key, SPAN: tl.constexpr):
    """The level at which a query's and a key's block part; negative within one block.

    It is the highest bit in which the numbers of the blocks differ: the exponent of a float32,
    exact up to 2^24 blocks.
    """
    differing = (position // SPAN) ^ (key // SPAN)
    return (differing.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit(do_not_specialize=["num_queries", "num_keys", "window", "tiles", "heads", "group"])
def within_blocks(
    q, k, v, do, terms, parts, slopes, gate, rest, shut_count,
    cu_seqlens_q, cu_seqlens_k,
    factor, cap, window, num_queries, num_keys, tiles, heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh, pairs, steps,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    ALIBI: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr,
    BIASED: tl.constexpr, MASKED: tl.constexpr, TABLED: tl.constexpr, RULES: tl.constexpr,
    SKIP: tl.constexpr,
    QUERIES: tl.constexpr, SPAN: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
    FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """parts[0, t] = Σ dS_ij over the pairs of t's block with j < t <= p_i.

    Line t of the tile holds key t - 1, so that the sum over the lines up to t is over keys before
    t, without subtracting any.
    """
    tile = tl.program_id(0) % tiles
    head = (tl.program_id(0) // tiles % heads).to(tl.int64)
    n = tl.program_id(0) // tiles // heads
    batch, start_q, length_q = locate_in_batch(n, cu_seqlens_q, num_queries, PACKED)
    batch, start_k, length_k = locate_in_batch(n, cu_seqlens_k, num_keys, PACKED)
    shift = length_k - length_q
    kv_head = head // group
    q += batch * stride_qb + start_q * stride_qt + head * stride_qh
    k += batch * stride_kb + start_k * stride_kt + kv_head * stride_kh
    v += batch * stride_vb + start_k * stride_vt + kv_head * stride_vh
    do += batch * stride_ob + start_q * stride_ot + head * stride_oh
    first_row = (batch * heads + head) * num_queries + start_q
    gates = (batch * heads + head) * num_keys + start_k

    first = tile * SPAN
    t = first + tl.arange(0, SPAN)
    # The line of the first gate has no key in this block; it gets one that does not exist.
    before = tl.where(t == first, length_k, t - 1)
    key = before[:, None]
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    k_tile = load_tile(k, stride_kt, first - 1, before, length_k, in_k, FULL_K, True)
    v_tile = load_tile(v, stride_vt, first - 1, before, length_k, in_v, FULL_V, True)
    key_gate = load_cumulative_gates(gate, rest, shut_count, gates + key, key < length_k, GATED)
    slope = load_slope(slopes, head, ALIBI)
    acc = tl.zeros((SPAN,), tl.float32)
    for position in range(first, tl.minimum(first + SPAN, length_k), QUERIES):
        rows = position - shift + tl.arange(0, QUERIES)
        rows = tl.where(rows < 0, length_q, rows)
        query = rows[None, :]
        exists = query < length_q
        q_tile = load_tile(q, stride_qt, position - shift, rows, length_q, in_k, FULL_K, True)
        do_tile = load_tile(do, stride_ot, position - shift, rows, length_q, in_v, FULL_V, True)
        base, weight, row_delta = load_terms(
            terms + first_row * 4, position - shift, rows, length_q, True
        )
        query_gate = load_cumulative_gates(
            gate, rest, shut_count, gates + query + shift, exists, GATED
        )
        visible = sees(exists & (key < length_k), query, key, window, shift, CAUSAL, WINDOW)
        visible, added = restrict(
            visible, query, key, exists, key < length_k,
            pairs, steps, batch, head, start_q, start_k, num_queries, num_keys,
            BIASED, MASKED, TABLED, RULES,
        )  # fmt: skip
        products = products_by_key(k_tile, q_tile)
        s = logits(
            products, query, key, shift, factor, cap, slope, query_gate, key_gate,
            base[None, :], CAPPED, ALIBI, GATED, added, BIASED,
        )  # fmt: skip
        dp = tl.dot(v_tile, tl.trans(do_tile), input_precision="ieee")
        ds = tl.exp2(s) * weight[None, :] * (dp - row_delta[None, :])
        ds = tl.cumsum(tl.where(visible, ds, 0.0), 0)
        acc += tl.sum(tl.where(t[:, None] <= query + shift, ds, 0.0), 1)
    tl.store(parts + gates + t, acc, mask=t < length_k)


@triton.jit(
    do_not_specialize=[
        "num_queries", "num_keys", "sequences", "heads", "part_stride", "row_stride"
    ]
)  # fmt: skip
def across_blocks(
    parts, rows, columns, cu_seqlens_q, cu_seqlens_k, num_queries, num_keys, sequences, heads,
    part_stride, row_stride,
    PACKED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """parts[1 + l, t], the pairs of level l; a program does one level of one head."""
    head = tl.program_id(0) % heads
    n = tl.program_id(0) // heads % sequences
    level = tl.program_id(0) // heads // sequences
    batch, start_q, length_q = locate_in_batch(n, cu_seqlens_q, num_queries, PACKED)
    batch, start_k, length_k = locate_in_batch(n, cu_seqlens_k, num_keys, PACKED)
    rows += level.to(tl.int64) * row_stride + (batch * heads + head) * num_queries + start_q
    tokens = (batch * heads + head) * num_keys + start_k
    columns += level.to(tl.int64) * part_stride + tokens
    parts += (level.to(tl.int64) + 1) * part_stride + tokens
    blocks = tl.cdiv(length_k, SPAN)
    half = 1 << level

    carry = tl.full((), 0.0, tl.float64)
    for block in range(blocks):
        begins = block % half == 0
        carry = tl.where(begins, 0.0, carry)
        t = block * SPAN + tl.arange(0, SPAN)
        inside = (t < length_k) & ((block // half) % 2 == 0)
        earlier = inside & ((t > block * SPAN) | (not begins))
        x = tl.load(columns + t - 1, mask=earlier, other=0.0).to(tl.float64)
        tl.store(parts + t, (carry + tl.cumsum(x, 0)).to(tl.float32), mask=inside)
        carry += tl.sum(x, 0)

    carry = tl.full((), 0.0, tl.float64)
    for back in range(blocks):
        block = blocks - 1 - back
        carry = tl.where((block + 1) % half == 0, 0.0, carry)
        t = block * SPAN + (SPAN - 1) - tl.arange(0, SPAN)
        inside = (t < length_k) & ((block // half) % 2 == 1)
        query = t + length_q - length_k
        x = tl.load(rows + query, mask=inside & (query >= 0), other=0.0).to(tl.float64)
        tl.store(parts + t, (carry + tl.cumsum(x, 0)).to(tl.float32), mask=inside)
        carry += tl.sum(x, 0)


def cumulative_gates(g: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Leading part and rest of the prefix sums of g [B, T, H] in base 2, and shut gates so far.

    Each is [B, H, T].
    """
    batch, tokens, heads = g.shape
    gate, rest = g.new_empty(2, batch, heads, tokens, dtype=torch.float32)
    shut_count = g.new_empty(batch, heads, tokens, dtype=torch.int32)
    sequences = count_sequences(batch, cu_seqlens)
    if g.numel():
        prefix_sums[(sequences * heads,)](
            g, gate, rest, shut_count, cu_seqlens, tokens, heads, *g.stride(),
            PACKED=cu_seqlens is not None, BLOCK=_BLOCK,
        )  # fmt: skip
    return gate, rest, shut_count


def levels(longest: int, span: int) -> int:
    """Levels of the tree over the blocks of the longest sequence: 0 for one block."""
    return max(cdiv(longest, span) - 1, 0).bit_length()


def add_levels(
    parts: Tensor,
    rows: Tensor,
    columns: Tensor,
    span: int,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Tensor:
    """dg [B, T, H] in float64, from parts [1 + L, B, H, T], whose first alone is filled.

    Args:
        rows, columns: sums of dS over the left, the right half, [L, B, H, T_q] and [L, B, H, T].
    """
    num_levels, batch, heads, queries = rows.shape
    keys = columns.shape[3]
    sequences = count_sequences(batch, cu_seqlens_k)
    if columns.numel():
        across_blocks[(num_levels * sequences * heads,)](
            parts, rows, columns, cu_seqlens_q, cu_seqlens_k, queries, keys, sequences, heads,
            batch * heads * keys, batch * heads * queries,
            PACKED=cu_seqlens_k is not None, SPAN=span,
        )  # fmt: skip
    return parts.sum(0, dtype=torch.float64).transpose(1, 2)
