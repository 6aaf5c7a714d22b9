"""Attention whose weights are a function of their scores: kernels of several ops.

With w_ij the weight of a pair, x_ij = r_i · k_j if there are such rows, and else 0,

    P_ij = w_ij / (Σ_j w_ij + eps)                   or w_ij itself
    m_i  = Σ_j P_ij x_ij
    o_i  = Σ_j P_ij (1 + m_i - x_ij) v_j

and with D = dO Vᵀ, M_i = Σ_j P_ij D_ij and C_i = Σ_j P_ij (x_ij - m_i) (D_ij - M_i),

    dS = (w' / (Σ w + eps)) ((1 + m - x) (D - M) + C)
    dX = -P (D - M)

M and C are 0 where weights are not divided. They are sums over keys of their own, before those of
dq, so that no rounded output enters them. A cotangent in float32 is one that the caller computed,
and keeps 16 bits. Each gradient is summed by one program in a fixed order.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries, count_sequences
from kernels.primitives.layout import dense_rows
from kernels.primitives.product import product
from kernels.softmax.launch import launch
from kernels.softmax.logits import (
    LOG2E,
    keys_of,
    load_rows,
    locate,
    products_by_key,
    queries_of,
    sees,
    store_rows,
)
from kernels.tiles import cdiv


class Weights(NamedTuple):
    """What the weights of a call are.

    Args:
        kind: "sigmoid", "softmax", "taylor" (1 + s + s²/2) or "square".
        scale: of the scores.
        divided: whether they are divided by their sum; of a softmax they always are.
        eps: what is added to that sum.
        causal: keys after the query are hidden.
        strict: so is the query's own key.
        window: how many keys are seen, None for all.
        bias: of the scores of a sigmoid, None for minus the logarithm of how many keys are seen.
        tile: of an op.
    """

    kind: str
    scale: float
    tile: tiles.Entry
    divided: bool = False
    eps: float = 0.0
    causal: bool = True
    strict: bool = False
    window: int | None = None
    bias: float | None = 0.0


@triton.jit
def _bias(
    query, num_keys, window, shift, bias,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """The base-2 bias of some queries: `bias`, or if COUNTED -log2 of how many keys each sees."""
    b = bias + tl.zeros(query.shape, tl.float32)
    if COUNTED:
        high = tl.zeros(query.shape, tl.int32) + num_keys
        low = tl.zeros(query.shape, tl.int32)
        if CAUSAL:
            high = tl.minimum(high, query + shift + 1)
        if WINDOW:
            low = tl.maximum(low, query + shift - window + 1)
            if not CAUSAL:
                high = tl.minimum(high, query + shift + window)
        b = -tl.log2(tl.maximum(high - low, 1).to(tl.float32))
    return b


@triton.jit
def _weigh(products, factor, offset, KIND: tl.constexpr):
    """The weight of a pair and its slope, both with all their digits where they are near 0."""
    if KIND == "sigmoid":
        x = tl.fma(products, factor, offset)
        e = tl.exp2(-tl.abs(x))
        inverse = 1.0 / (1.0 + e)
        weight = tl.where(x < 0, e, 1.0) * inverse
        slope = e * inverse * inverse
    elif KIND == "softmax":
        weight = tl.exp2(tl.fma(products, factor, offset))
        slope = weight
    elif KIND == "taylor":
        s = products * factor
        weight = tl.fma(s, tl.fma(s, 0.5, 1.0), 1.0)
        slope = 1.0 + s
    else:
        s = products * factor
        weight = s * s
        slope = 2.0 * s
    return weight, slope


@triton.jit(do_not_specialize=["num_queries", "num_keys", "window", "tiles", "heads", "group"])
def _by_query(
    q, r, k, v, do, out, dr, terms, cu_seqlens_q, cu_seqlens_k,
    scale, factor, bias, eps, window, num_queries, num_keys, tiles, heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_rb, stride_rt, stride_rh,
    stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    KIND: tl.constexpr, DIVIDED: tl.constexpr, CORRECTED: tl.constexpr, GRADIENT: tl.constexpr,
    CAUSAL: tl.constexpr, STRICT: tl.constexpr, WINDOW: tl.constexpr, COUNTED: tl.constexpr,
    PACKED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of QUERIES queries of one head; or if GRADIENT dq [B, T, H, K], dr, and terms
    [B, H, T, 5] if DIVIDED: the offset of scores, 1 / the sum of weights, M, m and C."""
    tile = tl.program_id(0) % tiles
    if CAUSAL:
        # The last queries see the most keys: start them first.
        tile = tiles - 1 - tile
    head = (tl.program_id(0) // tiles % heads).to(tl.int64)
    n = tl.program_id(0) // tiles // heads
    batch, start_q, length_q = locate(cu_seqlens_q, n, num_queries, PACKED)
    batch, start_k, length_k = locate(cu_seqlens_k, n, num_keys, PACKED)
    shift = length_k - length_q
    if STRICT:
        shift -= 1
    q += batch * stride_qb + start_q * stride_qt + head * stride_qh
    k += batch * stride_kb + start_k * stride_kt + head // group * stride_kh
    v += batch * stride_vb + start_k * stride_vt + head // group * stride_vh

    first = tile * QUERIES
    last = tl.minimum(first + QUERIES, length_q) - 1
    rows = first + tl.arange(0, QUERIES)
    query = rows[:, None]
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    DTYPE: tl.constexpr = q.dtype.element_ty
    q_tile = load_rows(q, stride_qt, first, rows, length_q, in_k, FULL_K, True)
    offset = _bias(query, length_k, window, shift, bias, CAUSAL, WINDOW, COUNTED)
    if CORRECTED:
        r += batch * stride_rb + start_q * stride_rt + head * stride_rh
        r_tile = load_rows(r, stride_rt, first, rows, length_q, in_k, FULL_K, True)
    if GRADIENT:
        do += batch * stride_ob + start_q * stride_ot + head * stride_oh
        do_tile = load_rows(do, stride_ot, first, rows, length_q, in_v, FULL_V, True)

    bounds = keys_of(first, last, shift, length_k, window, CAUSAL, WINDOW, KEYS, False)
    high = bounds[3]
    # Sums over keys of w, w·x and w·D.
    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    of_x = tl.zeros((QUERIES,), tl.float32)
    of_d = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, PAD_V), tl.float32)
    if DIVIDED or not GRADIENT:
        for phase in tl.static_range(3):
            for start in range(bounds[phase], bounds[phase + 1], KEYS):
                columns = start + tl.arange(0, KEYS)
                key = columns[None, :]
                visible = sees(key < high, query, key, window, shift, CAUSAL, WINDOW)
                k_tile = load_rows(k, stride_kt, start, columns, high, in_k, FULL_K, phase != 1)
                v_tile = load_rows(v, stride_vt, start, columns, high, in_v, FULL_V, phase != 1)
                products = product(q_tile, tl.trans(k_tile), DTYPE)
                if KIND == "softmax":
                    s = products * factor
                    if phase != 1:
                        s = tl.where(visible, s, float("-inf"))
                    new_peak = tl.maximum(peak, tl.max(s, 1))
                    # A row that has seen no key has the maximum -inf; -inf - -inf would be NaN.
                    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
                    decay = tl.exp2(peak - base)
                    peak = new_peak
                    offset = -base[:, None]
                    total *= decay
                    of_x *= decay
                    of_d *= decay
                    acc *= decay[:, None]
                weight, _ = _weigh(products, factor, offset, KIND)
                if phase != 1:
                    weight = tl.where(visible, weight, 0.0)
                if DIVIDED:
                    total += tl.sum(weight, 1)
                if CORRECTED:
                    of_x += tl.sum(weight * product(r_tile, tl.trans(k_tile), DTYPE), 1)
                if GRADIENT:
                    d = product(do_tile, tl.trans(v_tile), DTYPE, FINE_A=True)
                    of_d += tl.sum(weight * d, 1)
                elif not CORRECTED:
                    acc = product(weight, v_tile, DTYPE, acc=acc)
    inverse = tl.full((QUERIES,), 1.0, tl.float32)
    if DIVIDED:
        # Weights may sum to 0 where no key is seen.
        total += eps
        inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
        acc *= inverse[:, None]
    mean = of_x * inverse
    of_d *= inverse
    covariance = tl.zeros((QUERIES,), tl.float32)
    if CORRECTED:
        # Once more, with the means known: differences from them keep their digits.
        for phase in tl.static_range(3):
            for start in range(bounds[phase], bounds[phase + 1], KEYS):
                columns = start + tl.arange(0, KEYS)
                key = columns[None, :]
                k_tile = load_rows(k, stride_kt, start, columns, high, in_k, FULL_K, phase != 1)
                v_tile = load_rows(v, stride_vt, start, columns, high, in_v, FULL_V, phase != 1)
                products = product(q_tile, tl.trans(k_tile), DTYPE)
                weight, _ = _weigh(products, factor, offset, KIND)
                if phase != 1:
                    visible = sees(key < high, query, key, window, shift, CAUSAL, WINDOW)
                    weight = tl.where(visible, weight, 0.0)
                weight *= inverse[:, None]
                less = mean[:, None] - product(r_tile, tl.trans(k_tile), DTYPE)
                if GRADIENT:
                    d = product(do_tile, tl.trans(v_tile), DTYPE, FINE_A=True)
                    covariance -= tl.sum(weight * less * (d - of_d[:, None]), 1)
                else:
                    acc = product(weight * (1.0 + less), v_tile, DTYPE, acc=acc)

    row = (batch * num_queries + start_q) * heads + head
    if not GRADIENT:
        store_rows(out + row * value_dim, heads * value_dim, rows, length_q, acc, in_v)
    else:
        if DIVIDED:
            of_head = (batch * heads + head) * num_queries + start_q
            to = terms + (of_head + rows) * 5
            inside = rows < length_q
            tl.store(to, tl.sum(offset, 1), mask=inside)
            tl.store(to + 1, inverse, mask=inside)
            tl.store(to + 2, of_d, mask=inside)
            if CORRECTED:
                tl.store(to + 3, mean, mask=inside)
                tl.store(to + 4, covariance, mask=inside)
        dq_acc = tl.zeros((QUERIES, PAD_K), tl.float32)
        dr_acc = tl.zeros((QUERIES, PAD_K), tl.float32)
        for phase in tl.static_range(3):
            for start in range(bounds[phase], bounds[phase + 1], KEYS):
                columns = start + tl.arange(0, KEYS)
                key = columns[None, :]
                k_tile = load_rows(k, stride_kt, start, columns, high, in_k, FULL_K, phase != 1)
                v_tile = load_rows(v, stride_vt, start, columns, high, in_v, FULL_V, phase != 1)
                products = product(q_tile, tl.trans(k_tile), DTYPE)
                weight, slope = _weigh(products, factor, offset, KIND)
                if phase != 1:
                    visible = sees(key < high, query, key, window, shift, CAUSAL, WINDOW)
                    weight = tl.where(visible, weight, 0.0)
                    slope = tl.where(visible, slope, 0.0)
                dp = product(do_tile, tl.trans(v_tile), DTYPE, FINE_A=True)
                if DIVIDED:
                    dp -= of_d[:, None]
                    weight *= inverse[:, None]
                    slope *= inverse[:, None]
                if CORRECTED:
                    x = product(r_tile, tl.trans(k_tile), DTYPE)
                    dr_acc = product(-weight * dp, k_tile, DTYPE, acc=dr_acc)
                    dp = (1.0 + (mean[:, None] - x)) * dp + covariance[:, None]
                dq_acc = product(slope * dp * scale, k_tile, DTYPE, acc=dq_acc)
        store_rows(out + row * key_dim, heads * key_dim, rows, length_q, dq_acc, in_k)
        if CORRECTED:
            store_rows(dr + row * key_dim, heads * key_dim, rows, length_q, dr_acc, in_k)


@triton.jit(
    do_not_specialize=["num_queries", "num_keys", "window", "tiles", "kv_heads"],
    # A group of 1 is compiled apart, without the loop over it.
    do_not_specialize_on_alignment=["group"],
)
def _by_key(
    q, r, k, v, do, dk, dv, terms, cu_seqlens_q, cu_seqlens_k,
    scale, factor, bias, window, num_queries, num_keys, tiles, kv_heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_rb, stride_rt, stride_rh,
    stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    DK: tl.constexpr, DV: tl.constexpr,
    KIND: tl.constexpr, DIVIDED: tl.constexpr, CORRECTED: tl.constexpr,
    CAUSAL: tl.constexpr, STRICT: tl.constexpr, WINDOW: tl.constexpr, COUNTED: tl.constexpr,
    PACKED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """dk [B, T, G, K], dv [B, T, G, V] or both of KEYS keys of a kv head, over its query heads."""
    tile = tl.program_id(0) % tiles
    kv_head = (tl.program_id(0) // tiles % kv_heads).to(tl.int64)
    n = tl.program_id(0) // tiles // kv_heads
    batch, start_q, length_q = locate(cu_seqlens_q, n, num_queries, PACKED)
    batch, start_k, length_k = locate(cu_seqlens_k, n, num_keys, PACKED)
    shift = length_k - length_q
    if STRICT:
        shift -= 1
    k += batch * stride_kb + start_k * stride_kt + kv_head * stride_kh
    v += batch * stride_vb + start_k * stride_vt + kv_head * stride_vh

    first = tile * KEYS
    last = tl.minimum(first + KEYS, length_k) - 1
    columns = first + tl.arange(0, KEYS)
    key = columns[:, None]
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    k_tile = load_rows(k, stride_kt, first, columns, length_k, in_k, FULL_K, True)
    v_tile = load_rows(v, stride_vt, first, columns, length_k, in_v, FULL_V, True)
    dk_acc = tl.zeros((KEYS, PAD_K), tl.float32)
    dv_acc = tl.zeros((KEYS, PAD_V), tl.float32)
    DTYPE: tl.constexpr = q.dtype.element_ty

    bounds = queries_of(first, last, shift, length_q, window, CAUSAL, WINDOW, QUERIES, False)
    high = bounds[3]
    for member in range(group):
        head = kv_head * group + member
        q_head = q + batch * stride_qb + start_q * stride_qt + head * stride_qh
        do_head = do + batch * stride_ob + start_q * stride_ot + head * stride_oh
        of_head = (batch * kv_heads * group + head) * num_queries + start_q
        if CORRECTED:
            r_head = r + batch * stride_rb + start_q * stride_rt + head * stride_rh
        for phase in tl.static_range(3):
            for start in range(bounds[phase], bounds[phase + 1], QUERIES):
                rows = start + tl.arange(0, QUERIES)
                query = rows[None, :]
                inside = query < high
                q_tile = load_rows(q_head, stride_qt, start, rows, high, in_k, FULL_K, phase != 1)
                do_tile = load_rows(do_head, stride_ot, start, rows, high, in_v, FULL_V, phase != 1)
                offset = _bias(query, length_k, window, shift, bias, CAUSAL, WINDOW, COUNTED)
                term = terms + (of_head + query) * 5
                if KIND == "softmax":
                    offset = tl.load(term, mask=inside, other=0.0)
                weight, slope = _weigh(products_by_key(k_tile, q_tile), factor, offset, KIND)
                if phase != 1:
                    visible = sees(inside, query, key, window, shift, CAUSAL, WINDOW)
                    weight = tl.where(visible, weight, 0.0)
                    slope = tl.where(visible, slope, 0.0)
                if DIVIDED:
                    inverse = tl.load(term + 1, mask=inside, other=0.0)
                    weight *= inverse
                    slope *= inverse
                share = 1.0
                if CORRECTED:
                    mean = tl.load(term + 3, mask=inside, other=0.0)
                    r_tile = load_rows(
                        r_head, stride_rt, start, rows, high, in_k, FULL_K, phase != 1
                    )
                    share = 1.0 + (mean - products_by_key(k_tile, r_tile))
                if DV:
                    dv_acc = product(weight * share, do_tile, DTYPE, FINE_B=True, acc=dv_acc)
                if DK:
                    dp = product(v_tile, tl.trans(do_tile), DTYPE, FINE_B=True)
                    if DIVIDED:
                        dp -= tl.load(term + 2, mask=inside, other=0.0)
                    if CORRECTED:
                        dk_acc = product(-weight * dp, r_tile, DTYPE, acc=dk_acc)
                        dp = share * dp + tl.load(term + 4, mask=inside, other=0.0)
                    dk_acc = product(slope * dp * scale, q_tile, DTYPE, acc=dk_acc)

    row = (batch * num_keys + start_k) * kv_heads + kv_head
    if DK:
        store_rows(dk + row * key_dim, kv_heads * key_dim, columns, length_k, dk_acc, in_k)
    if DV:
        store_rows(dv + row * value_dim, kv_heads * value_dim, columns, length_k, dv_acc, in_v)


def _options(
    q: Tensor, k: Tensor, v: Tensor, weights: Weights, cu_seqlens: Tensor | None, corrected: bool
) -> tuple[tuple[float, float, float], int, tuple[int, int, int], dict[str, bool | str]]:
    """(scale, factor, bias), the window, (group, key dim, value dim), and constants."""
    # Distances are below the limit, and a wider window could overflow when it is added to one.
    limit = q.shape[1] + k.shape[1]
    in_base_2 = weights.kind in ("sigmoid", "softmax")
    numbers = (
        weights.scale,
        weights.scale * LOG2E.value if in_base_2 else weights.scale,
        0.0 if weights.bias is None else weights.bias * LOG2E.value,
    )
    window = limit if weights.window is None else min(weights.window, limit)
    constants: dict[str, bool | str] = {
        "KIND": weights.kind,
        "DIVIDED": weights.divided or weights.kind == "softmax",
        "CORRECTED": corrected,
        "CAUSAL": weights.causal,
        "STRICT": weights.strict,
        "WINDOW": weights.window is not None,
        "COUNTED": weights.bias is None,
        "PACKED": cu_seqlens is not None,
    }
    return numbers, window, (q.shape[2] // k.shape[2], k.shape[3], v.shape[3]), constants


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:3]]


def _rows_of_queries(
    q: Tensor, r: Tensor | None, k: Tensor, v: Tensor, do: Tensor | None, out: Tensor,
    weights: Weights, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None,
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    """Fill `out` with o, or with dq if there is a cotangent `do`; return dr and terms of rows."""
    batch, queries, heads, _ = q.shape
    longest = check_boundaries("cu_seqlens", cu_seqlens, queries)
    check_boundaries("cu_seqlens_k", cu_seqlens_k, k.shape[1])
    dr = None if r is None or do is None else torch.empty_like(out, dtype=r.dtype)
    numbers, window, dims, constants = _options(q, k, v, weights, cu_seqlens, r is not None)
    kept = do is not None and constants["DIVIDED"]
    terms = q.new_empty(batch, heads, queries, 5 if kept else 0, dtype=torch.float32)
    if out.numel() == 0:
        return dr, terms
    count = cdiv(longest, weights.tile.tokens)
    q, r, k, v, do = dense_rows(q, r, k, v, do)
    with torch.cuda.device_of(q):
        _by_query[(count * count_sequences(batch, cu_seqlens) * heads,)](
            q, r, k, v, do, out, dr, terms, cu_seqlens, cu_seqlens_k, *numbers, weights.eps,
            window, queries, k.shape[1], count, heads, *dims,
            *_strides(q, q if r is None else r, k, v, q if do is None else do),
            GRADIENT=do is not None, **constants,
            **launch(weights.tile, k, v, held="QUERIES", read="KEYS"),
        )  # fmt: skip
    return dr, terms


def attend(
    q: Tensor, k: Tensor, v: Tensor, weights: Weights, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, r: Tensor | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """o, in that dtype or that of q."""
    o = q.new_empty(*q.shape[:3], v.shape[3], dtype=dtype)
    _rows_of_queries(q, r, k, v, None, o, weights, cu_seqlens, cu_seqlens_k)
    return o


def gradients(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, weights: Weights, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, r: Tensor | None = None, dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """dq, dr, dk and dv, in that dtype or that of q."""
    dtype = q.dtype if dtype is None else dtype
    dq, dk, dv = (
        torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format) for x in (q, k, v)
    )
    dr, terms = _rows_of_queries(q, r, k, v, do, dq, weights, cu_seqlens, cu_seqlens_k)
    if dk.numel() == 0:
        return dq, dr, dk, dv
    batch, keys, kv_heads, _ = k.shape
    longest = check_boundaries("cu_seqlens_k", cu_seqlens_k, keys)
    numbers, window, dims, constants = _options(q, k, v, weights, cu_seqlens, r is not None)
    count = cdiv(longest, weights.tile.tokens)
    q, r, k, v, do = dense_rows(q, r, k, v, do)
    # With r, registers do not hold both.
    launches = [(True, True)] if r is None else [(True, False), (False, True)]
    with torch.cuda.device_of(q):
        for of_k, of_v in launches:
            _by_key[(count * count_sequences(batch, cu_seqlens) * kv_heads,)](
                q, r, k, v, do, dk, dv, terms, cu_seqlens, cu_seqlens_k, *numbers, window,
                q.shape[1], keys, count, kv_heads, *dims,
                *_strides(q, q if r is None else r, k, v, do), DK=of_k, DV=of_v, **constants,
                **launch(weights.tile, k, v, held="KEYS", read="QUERIES"),
            )  # fmt: skip
    return dq, dr, dk, dv
