"""Attention whose weights are a function of their scores: kernels of several ops.

With w_ij the weight of a pair, a function of its score, and x_ij = r_i · k_j, which is 0 without r,

    P_ij = w_ij / (Σ_j w_ij + eps)                   or w_ij itself
    m_i  = Σ_j P_ij x_ij
    o_i  = Σ_j P_ij (1 + m_i - x_ij) v_j

and with D = dO Vᵀ, M_i = Σ_j P_ij D_ij and C_i = Σ_j P_ij x_ij D_ij - m_i M_i

    dS = (w' / (Σ w + eps)) ((1 + m - x) (D - M) + C)
    dX = -P (D - M)

M is 0 where weights are not divided. m, M and C are sums over keys of their own, before those of o
or dq, so that no rounded output enters them. Each gradient is summed by one program in a fixed
order.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries, count_sequences
from kernels.differentiable import differentiable
from kernels.primitives.chunks import locate_in_batch
from kernels.primitives.layout import dense_rows, outer_strides
from kernels.primitives.product import product
from kernels.softmax.launch import launch
from kernels.softmax.logits import (
    LOG2E,
    finite_maximum,
    inverse_or_0,
    keys_of,
    load_tile,
    products_by_key,
    queries_of,
    sees,
    store_tile,
)
from kernels.softmax.pairs import shapes
from kernels.tiles import cdiv


class Weights(NamedTuple):
    """The function that makes weights of scores, as `weighted` takes it."""

    kind: str
    scale: float
    tile: tiles.Entry
    divided: bool
    eps: float
    causal: bool
    window: int | None
    bias: float | None


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
    if KIND == "softmax":
        weight = tl.exp2(tl.fma(products, factor, offset))
        slope = weight
    elif KIND == "sigmoid":
        x = tl.fma(products, factor, offset)
        e = tl.exp2(-tl.abs(x))
        inverse = 1.0 / (1.0 + e)
        weight = tl.where(x < 0, e, 1.0) * inverse
        slope = e * inverse * inverse
    elif KIND == "taylor":
        s = products * factor
        weight = tl.fma(s, tl.fma(s, 0.5, 1.0), 1.0)
        slope = 1.0 + s
    else:
        s = products * factor
        weight = s * s
        slope = 2.0 * s
    return weight, slope


@triton.jit
def _sums_over_keys(
    q_tile, r_tile, do_tile, k, v, offset, bounds, query, window, shift, factor,
    stride_kt, stride_vt, in_k, in_v,
    KIND: tl.constexpr, DIVIDED: tl.constexpr, GRADIENT: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DTYPE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """The sums over keys of w, w·D, w·x and w·x·D; the outputs without r; and of a softmax the row
    maximum and the offset that it makes."""
    high = bounds[3]
    row_max = tl.full((QUERIES,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((QUERIES,), tl.float32)
    d_sum = tl.zeros((QUERIES,), tl.float32)
    x_sum = tl.zeros((QUERIES,), tl.float32)
    xd_sum = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, in_v.shape[0]), tl.float32)
    if DIVIDED or not GRADIENT:
        for phase in tl.static_range(3):
            for start in range(bounds[phase], bounds[phase + 1], KEYS):
                columns = start + tl.arange(0, KEYS)
                key = columns[None, :]
                visible = sees(key < high, query, key, window, shift, CAUSAL, WINDOW)
                k_tile = load_tile(k, stride_kt, start, columns, high, in_k, FULL_K, phase != 1)
                v_tile = load_tile(v, stride_vt, start, columns, high, in_v, FULL_V, phase != 1)
                products = product(q_tile, tl.trans(k_tile), DTYPE)
                if KIND == "softmax":
                    s = tl.where(visible, products * factor, float("-inf"))
                    new_max = tl.maximum(row_max, tl.max(s, 1))
                    base = finite_maximum(new_max)
                    shrink = tl.exp2(row_max - base)
                    row_max = new_max
                    offset = -base[:, None]
                    weight_sum *= shrink
                    d_sum *= shrink
                    x_sum *= shrink
                    xd_sum *= shrink
                weight, _ = _weigh(products, factor, offset, KIND)
                if phase != 1:
                    weight = tl.where(visible, weight, 0.0)
                if DIVIDED:
                    weight_sum += tl.sum(weight, 1)
                if r_tile is not None:
                    weighted_x = weight * product(r_tile, tl.trans(k_tile), DTYPE)
                    x_sum += tl.sum(weighted_x, 1)
                if GRADIENT:
                    d = product(do_tile, tl.trans(v_tile), DTYPE)
                    d_sum += tl.sum(weight * d, 1)
                    if r_tile is not None:
                        xd_sum += tl.sum(weighted_x * d, 1)
                elif r_tile is None:
                    acc = product(weight, v_tile, DTYPE, acc=acc)
    return weight_sum, d_sum, x_sum, xd_sum, acc, row_max, offset


@triton.jit
def _results_of_keys(
    q_tile, r_tile, do_tile, k, v, offset, bounds, query, window, shift, scale, factor,
    inverse, d_sum, mean, covariance, acc, stride_kt, stride_vt, in_k, in_v,
    KIND: tl.constexpr, DIVIDED: tl.constexpr, GRADIENT: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DTYPE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """The outputs with r, or if GRADIENT dq and dr, from the sums over keys."""
    high = bounds[3]
    dq_acc = tl.zeros((QUERIES, in_k.shape[0]), tl.float32)
    dr_acc = tl.zeros((QUERIES, in_k.shape[0]), tl.float32)
    for phase in tl.static_range(3):
        for start in range(bounds[phase], bounds[phase + 1], KEYS):
            columns = start + tl.arange(0, KEYS)
            key = columns[None, :]
            k_tile = load_tile(k, stride_kt, start, columns, high, in_k, FULL_K, phase != 1)
            v_tile = load_tile(v, stride_vt, start, columns, high, in_v, FULL_V, phase != 1)
            products = product(q_tile, tl.trans(k_tile), DTYPE)
            weight, slope = _weigh(products, factor, offset, KIND)
            if phase != 1:
                visible = sees(key < high, query, key, window, shift, CAUSAL, WINDOW)
                weight = tl.where(visible, weight, 0.0)
                slope = tl.where(visible, slope, 0.0)
            if DIVIDED:
                weight *= inverse[:, None]
                slope *= inverse[:, None]
            if r_tile is not None:
                share = 1.0 + (mean[:, None] - product(r_tile, tl.trans(k_tile), DTYPE))
            if GRADIENT:
                dp = product(do_tile, tl.trans(v_tile), DTYPE)
                if DIVIDED:
                    dp -= d_sum[:, None]
                if r_tile is not None:
                    dr_acc = product(-weight * dp, k_tile, DTYPE, acc=dr_acc)
                    dp = share * dp + covariance[:, None]
                dq_acc = product(slope * dp * scale, k_tile, DTYPE, acc=dq_acc)
            else:
                acc = product(weight * share, v_tile, DTYPE, acc=acc)
    return acc, dq_acc, dr_acc


@triton.jit(do_not_specialize=["num_queries", "num_keys", "window", "tiles", "heads", "group"])
def _by_query(
    q, k, v, r, do, out, dr, terms, cu_seqlens_q, cu_seqlens_k,
    scale, factor, bias, eps, window, num_queries, num_keys, tiles, heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_rb, stride_rt, stride_rh,
    stride_ob, stride_ot, stride_oh,
    KIND: tl.constexpr, DIVIDED: tl.constexpr, TERMS: tl.constexpr, GRADIENT: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, COUNTED: tl.constexpr,
    PACKED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] of QUERIES queries of one head; or if GRADIENT dq and dr [B, T, H, K], and
    terms [B, H, T, TERMS] if DIVIDED: 1 / the sum of weights, M; with r also m, C, row_max."""
    tile = tl.program_id(0) % tiles
    if CAUSAL:
        # The last queries see the most keys: start them first.
        tile = tiles - 1 - tile
    head = (tl.program_id(0) // tiles % heads).to(tl.int64)
    n = tl.program_id(0) // tiles // heads
    batch, start_q, length_q = locate_in_batch(n, cu_seqlens_q, num_queries, PACKED)
    batch, start_k, length_k = locate_in_batch(n, cu_seqlens_k, num_keys, PACKED)
    shift = length_k - length_q
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
    q_tile = load_tile(q, stride_qt, first, rows, length_q, in_k, FULL_K, True)
    offset = _bias(query, length_k, window, shift, bias, CAUSAL, WINDOW, COUNTED)
    r_tile = None
    if r is not None:
        r += batch * stride_rb + start_q * stride_rt + head * stride_rh
        r_tile = load_tile(r, stride_rt, first, rows, length_q, in_k, FULL_K, True)
    do_tile = None
    if GRADIENT:
        do += batch * stride_ob + start_q * stride_ot + head * stride_oh
        do_tile = load_tile(do, stride_ot, first, rows, length_q, in_v, FULL_V, True)

    bounds = keys_of(first, last, shift, length_k, window, CAUSAL, WINDOW, KEYS, False)
    weight_sum, d_sum, x_sum, xd_sum, acc, row_max, offset = _sums_over_keys(
        q_tile, r_tile, do_tile, k, v, offset, bounds, query, window, shift, factor,
        stride_kt, stride_vt, in_k, in_v,
        KIND, DIVIDED, GRADIENT, CAUSAL, WINDOW, DTYPE, QUERIES, KEYS, FULL_K, FULL_V,
    )  # fmt: skip
    inverse = tl.full((QUERIES,), 1.0, tl.float32)
    if DIVIDED:
        # Weights may sum to 0 where no key is seen.
        weight_sum += eps
        inverse = inverse_or_0(weight_sum)
        if not GRADIENT:
            acc *= inverse[:, None]
    d_sum *= inverse
    mean = x_sum * inverse
    covariance = xd_sum * inverse - mean * d_sum
    row = (batch * num_queries + start_q) * heads + head
    if GRADIENT and DIVIDED:
        of_head = (batch * heads + head) * num_queries + start_q
        to = terms + (of_head + rows) * TERMS
        inside = rows < length_q
        tl.store(to, inverse, mask=inside)
        tl.store(to + 1, d_sum, mask=inside)
        if r is not None:
            tl.store(to + 2, mean, mask=inside)
            tl.store(to + 3, covariance, mask=inside)
            tl.store(to + 4, row_max, mask=inside)
    if GRADIENT or r is not None:
        acc, dq_acc, dr_acc = _results_of_keys(
            q_tile, r_tile, do_tile, k, v, offset, bounds, query, window, shift, scale, factor,
            inverse, d_sum, mean, covariance, acc, stride_kt, stride_vt, in_k, in_v,
            KIND, DIVIDED, GRADIENT, CAUSAL, WINDOW, DTYPE, QUERIES, KEYS, FULL_K, FULL_V,
        )  # fmt: skip
    if GRADIENT:
        store_tile(out + row * key_dim, heads * key_dim, rows, length_q, dq_acc, in_k)
        if r is not None:
            store_tile(dr + row * key_dim, heads * key_dim, rows, length_q, dr_acc, in_k)
    else:
        store_tile(out + row * value_dim, heads * value_dim, rows, length_q, acc, in_v)


@triton.jit(
    do_not_specialize=["num_queries", "num_keys", "window", "tiles", "kv_heads"],
    # A group of 1 is compiled apart, without the loop over it.
    do_not_specialize_on_alignment=["group"],
)
def _by_key(
    q, k, v, r, do, dk, dv, terms, cu_seqlens_q, cu_seqlens_k,
    scale, factor, bias, window, num_queries, num_keys, tiles, kv_heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_rb, stride_rt, stride_rh,
    stride_ob, stride_ot, stride_oh,
    KIND: tl.constexpr, DIVIDED: tl.constexpr, TERMS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, COUNTED: tl.constexpr,
    PACKED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """dk [B, T, G, K] and dv [B, T, G, V] of KEYS keys of one kv head, over its query heads."""
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
    v_tile = load_tile(v, stride_vt, first, columns, length_k, in_v, FULL_V, True)
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
        for phase in tl.static_range(3):
            for start in range(bounds[phase], bounds[phase + 1], QUERIES):
                rows = start + tl.arange(0, QUERIES)
                query = rows[None, :]
                inside = query < high
                q_tile = load_tile(q_head, stride_qt, start, rows, high, in_k, FULL_K, phase != 1)
                do_tile = load_tile(do_head, stride_ot, start, rows, high, in_v, FULL_V, phase != 1)
                offset = _bias(query, length_k, window, shift, bias, CAUSAL, WINDOW, COUNTED)
                term = terms + (of_head + query) * TERMS
                if KIND == "softmax":
                    offset = -tl.load(term + 4, mask=inside, other=0.0)
                weight, slope = _weigh(products_by_key(k_tile, q_tile), factor, offset, KIND)
                if phase != 1:
                    visible = sees(inside, query, key, window, shift, CAUSAL, WINDOW)
                    weight = tl.where(visible, weight, 0.0)
                    slope = tl.where(visible, slope, 0.0)
                if DIVIDED:
                    inverse = tl.load(term, mask=inside, other=0.0)
                    weight *= inverse
                    slope *= inverse
                dp = product(v_tile, tl.trans(do_tile), DTYPE)
                if DIVIDED:
                    dp -= tl.load(term + 1, mask=inside, other=0.0)
                if r is not None:
                    r_head = r + batch * stride_rb + start_q * stride_rt + head * stride_rh
                    r_tile = load_tile(
                        r_head, stride_rt, start, rows, high, in_k, FULL_K, phase != 1
                    )
                    mean = tl.load(term + 2, mask=inside, other=0.0)
                    share = 1.0 + (mean - products_by_key(k_tile, r_tile))
                    dk_acc = product(-weight * dp, r_tile, DTYPE, acc=dk_acc)
                    dp = share * dp + tl.load(term + 3, mask=inside, other=0.0)
                    weight *= share
                dv_acc = product(weight, do_tile, DTYPE, acc=dv_acc)
                dk_acc = product(slope * dp * scale, q_tile, DTYPE, acc=dk_acc)

    row = (batch * num_keys + start_k) * kv_heads + kv_head
    store_tile(dk + row * key_dim, kv_heads * key_dim, columns, length_k, dk_acc, in_k)
    store_tile(dv + row * value_dim, kv_heads * value_dim, columns, length_k, dv_acc, in_v)


def _options(
    q: Tensor, k: Tensor, v: Tensor, weights: Weights, cu_seqlens: Tensor | None
) -> tuple[tuple[float, float, float], int, tuple[int, int, int], dict[str, bool | int | str]]:
    """(scale, factor, bias), the window, (group, key dim, value dim), and constants."""
    # Distances are below the limit, and a wider window could overflow when it is added to one.
    limit = q.shape[1] + k.shape[1]
    numbers = (
        weights.scale,
        weights.scale * (LOG2E.value if weights.kind in ("softmax", "sigmoid") else 1.0),
        0.0 if weights.bias is None else weights.bias * LOG2E.value,
    )
    window = limit if weights.window is None else min(weights.window, limit)
    constants: dict[str, bool | int | str] = {
        "KIND": weights.kind,
        "DIVIDED": weights.divided,
        "TERMS": 5 if weights.kind == "softmax" else 2,
        "CAUSAL": weights.causal,
        "WINDOW": weights.window is not None,
        "COUNTED": weights.bias is None,
        "PACKED": cu_seqlens is not None,
    }
    return numbers, window, (q.shape[2] // max(k.shape[2], 1), k.shape[3], v.shape[3]), constants


def _rows_of_queries(
    q: Tensor, k: Tensor, v: Tensor, r: Tensor | None, do: Tensor | None, out: Tensor,
    dr: Tensor | None, weights: Weights, cu_seqlens: Tensor | None, cu_seqlens_k: Tensor | None,
) -> Tensor:  # fmt: skip
    """Fill `out` with o, or if there is a cotangent `do` with dq, and `dr`; return the terms."""
    batch, queries, heads, _ = q.shape
    longest = check_boundaries("cu_seqlens", cu_seqlens, queries)
    check_boundaries("cu_seqlens_k", cu_seqlens_k, k.shape[1])
    numbers, window, dims, constants = _options(q, k, v, weights, cu_seqlens)
    kept = do is not None and constants["DIVIDED"]
    count = constants["TERMS"] if kept else 0
    terms = q.new_empty(batch, heads, queries, count, dtype=torch.float32)
    if out.numel() == 0:
        return terms
    tile = weights.tile if do is None else weights.tile.of("dq")
    count = cdiv(longest, tile.tokens)
    q, k, v, r, do = dense_rows(q, k, v, r, do)
    _by_query[(count * count_sequences(batch, cu_seqlens) * heads,)](
        q, k, v, r, do, out, dr, terms, cu_seqlens, cu_seqlens_k, *numbers, weights.eps,
        window, queries, k.shape[1], count, heads, *dims,
        *outer_strides(q, k, v, q if r is None else r, q if do is None else do),
        GRADIENT=do is not None, **constants,
        **launch(tile, k, v, held="QUERIES", read="KEYS"),
    )  # fmt: skip
    return terms


def _of(given: dict[str, Any]) -> tuple[Weights, Tensor | None, Tensor | None]:
    """The weights, and the boundaries of queries and of keys."""
    entry = tiles.TABLE[given.pop("op"), "parallel"][given.pop("tile")]
    bounds = given.pop("cu_seqlens"), given.pop("cu_seqlens_k")
    return (Weights(tile=entry, **given), *bounds)


def _forward(
    *, q: Tensor, k: Tensor, v: Tensor, r: Tensor | None, **given: Any
) -> list[Tensor | None]:
    o = q.new_empty(*q.shape[:3], v.shape[3])
    _rows_of_queries(q, k, v, r, None, o, None, *_of(given))
    return [o]


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, r: Tensor | None, d0: Tensor, **given: Any
) -> list[Tensor | None]:
    weights, cu_seqlens, cu_seqlens_k = _of(given)
    dq, dk, dv, dr = (
        None if x is None else torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in (q, k, v, r)
    )
    terms = _rows_of_queries(q, k, v, r, d0, dq, dr, weights, cu_seqlens, cu_seqlens_k)
    if dk.numel() == 0:
        return [dq, dk, dv, dr, None, None]
    batch, keys, kv_heads, _ = k.shape
    longest = check_boundaries("cu_seqlens_k", cu_seqlens_k, keys)
    numbers, window, dims, constants = _options(q, k, v, weights, cu_seqlens)
    tile = weights.tile.of("dkv")
    count = cdiv(longest, tile.tokens)
    q, k, v, r, d0 = dense_rows(q, k, v, r, d0)
    _by_key[(count * count_sequences(batch, cu_seqlens) * kv_heads,)](
        q, k, v, r, d0, dk, dv, terms, cu_seqlens, cu_seqlens_k, *numbers, window, q.shape[1],
        keys, count, kv_heads, *dims, *outer_strides(q, k, v, q if r is None else r, d0),
        **constants, **launch(tile, k, v, held="KEYS", read="QUERIES"),
    )  # fmt: skip
    return [dq, dk, dv, dr, None, None]


_weighted = differentiable(
    "weighted_parallel",
    _forward,
    _backward,
    shapes,
    outputs=1,
    takes={
        "q": "Tensor", "k": "Tensor", "v": "Tensor", "r": "Tensor?",
        "cu_seqlens": "Tensor?", "cu_seqlens_k": "Tensor?", "op": "str", "kind": "str",
        "scale": "float", "divided": "bool", "eps": "float", "causal": "bool", "window": "int?",
        "bias": "float?", "tile": "int",
    },
)  # fmt: skip


def weighted(
    op: str,
    kind: str,
    *,
    divided: bool = False,
    eps: float = 0.0,
    causal: bool = True,
    window: int | None = None,
    bias: float | None = 0.0,
    r: Tensor | None = None,
    cu_seqlens: Tensor | None,
    **given: Any,
) -> Tensor:
    """Return o [B, T, H, V], with gradients of q, k, v and r.

    Args:
        op: the row of `kernels.tiles.TABLE`, with mode "parallel".
        kind: how weights follow from scores: "sigmoid", "softmax", "taylor" (1 + s + s²/2) or
            "square".
        divided: whether they are divided by their sum.
        eps: what is added to that sum.
        causal: keys after the query are hidden.
        window: how many keys are seen, None for all.
        bias: of the scores of a sigmoid, None for minus the logarithm of how many keys are seen.
        r: rows that correct the weights of a softmax, like q.
        cu_seqlens: boundaries of the queries, and of the keys without `cu_seqlens_k`.
        given: q, k, v, scale, tile and `cu_seqlens_k` as `pairs` gives them.
    """
    o: Tensor = _weighted(
        op=op, kind=kind, divided=divided, eps=eps, causal=causal, window=window, bias=bias,
        r=r, cu_seqlens=cu_seqlens, **{"cu_seqlens_k": cu_seqlens, **given},
    )  # fmt: skip
    return o
