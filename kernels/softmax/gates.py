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
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.softmax.logits import LOG2E, locate

# exp(SHUT) is 0 in float64 as well, even against logits a hundred thousand apart.
SHUT = tl.constexpr(-(2.0**17))
_BLOCK = 512


@triton.jit(do_not_specialize=["num_keys"])
def prefix_sums(
    g, gate, rest, closed, cu_seqlens, num_keys, heads, stride_b, stride_t, stride_h,
    PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """gate + rest = log2(e)·cumsum(g) of the gates from SHUT on, and closed, how many are not.

    A program sums one head of one sequence.
    """
    head = tl.program_id(0) % heads
    batch, start, length = locate(cu_seqlens, tl.program_id(0) // heads, num_keys, PACKED)
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
        total = (carry + tl.cumsum(x, 0)) * LOG2E
        leading = total.to(tl.float32)
        tl.store(gate + base + t, leading, mask=inside)
        tl.store(rest + base + t, (total - leading.to(tl.float64)).to(tl.float32), mask=inside)
        tl.store(closed + base + t, count + tl.cumsum(shut.to(tl.int32), 0), mask=inside)
        carry += tl.sum(x, 0)
        count += tl.sum(shut.to(tl.int32), 0)


@triton.jit(do_not_specialize=["num_queries", "num_keys"])
def suffix_sums(
    dg, rows, columns, cu_seqlens_q, cu_seqlens_k, num_queries, num_keys, heads,
    PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dg[t] = Σ_{u >= t} rows[u] - columns[u], last token first; a program sums one head.

    `rows[u]` is the sum of dS over the keys of the query whose position is u, and `columns[u]` the
    sum over the queries of key u. Summed as it stands: a prefix subtracted from the total would
    lose the digits of the late tokens.
    """
    head = tl.program_id(0) % heads
    n = tl.program_id(0) // heads
    batch, start_q, length_q = locate(cu_seqlens_q, n, num_queries, PACKED)
    batch, start_k, length_k = locate(cu_seqlens_k, n, num_keys, PACKED)
    rows += (batch * heads + head) * num_queries + start_q
    columns += (batch * heads + head) * num_keys + start_k
    dg += ((batch * num_keys + start_k) * heads) + head
    carry = tl.full((), 0.0, tl.float64)
    for first in range(0, length_k, BLOCK):
        t = length_k - 1 - first - tl.arange(0, BLOCK)
        query = t + length_q - length_k
        inside = t >= 0
        row = tl.load(rows + query, mask=inside & (query >= 0), other=0.0).to(tl.float64)
        column = tl.load(columns + t, mask=inside, other=0.0).to(tl.float64)
        x = row - column
        total = carry + tl.cumsum(x, 0)
        tl.store(dg + t.to(tl.int64) * heads, total.to(dg.dtype.element_ty), mask=inside)
        carry += tl.sum(x, 0)


def cumulative_gates(g: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Leading part and rest of the prefix sums of g [B, T, H] in base 2, and shut gates so far.

    Each is [B, H, T].
    """
    batch, tokens, heads = g.shape
    gate, rest = g.new_empty(2, batch, heads, tokens, dtype=torch.float32)
    closed = g.new_empty(batch, heads, tokens, dtype=torch.int32)
    sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
    if g.numel():
        prefix_sums[(sequences * heads,)](
            g, gate, rest, closed, cu_seqlens, tokens, heads, *g.stride(),
            PACKED=cu_seqlens is not None, BLOCK=_BLOCK,
        )  # fmt: skip
    return gate, rest, closed


def gate_gradient(
    rows: Tensor,
    columns: Tensor,
    dtype: torch.dtype,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Tensor:
    """dg [B, T, H] from the sums of dS over keys [B, H, Tq] and over queries [B, H, T]."""
    batch, heads, keys = columns.shape
    dg = torch.empty(batch, keys, heads, dtype=dtype, device=columns.device)
    sequences = batch if cu_seqlens_k is None else len(cu_seqlens_k) - 1
    if dg.numel():
        suffix_sums[(sequences * heads,)](
            dg, rows, columns, cu_seqlens_q, cu_seqlens_k, rows.shape[2], keys, heads,
            PACKED=cu_seqlens_k is not None, BLOCK=_BLOCK,
        )  # fmt: skip
    return dg
