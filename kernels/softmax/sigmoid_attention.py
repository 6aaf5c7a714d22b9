"""Sigmoid attention: weights that need no sum over keys, and so no maximum and no second pass.

Logits are in base 2, as in `logits.py`, and x is a logit with its bias. With P = 1 / (1 + 2^-x) the
gradients are dV = Pᵀ dO and dS = P (1 - P) (dO Vᵀ). Each is summed by one program in a fixed order.
"""

import math
from typing import Literal, Unpack

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import (
    bind_dims,
    check_boundaries,
    check_flags,
    check_one_dtype,
    count_sequences,
    describe,
)
from kernels.differentiable import Given, differentiable
from kernels.op import op
from kernels.primitives.layout import dense_rows
from kernels.primitives.product import product
from kernels.scale import resolve_scale
from kernels.softmax.arguments import Packing, check_heads, check_mode, check_packing, check_window
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
def _sigmoid(x):
    """1 / (1 + 2^-x) and its slope, both with all their digits where they are near 0."""
    e = tl.exp2(-tl.abs(x))
    inverse = 1.0 / (1.0 + e)
    return tl.where(x < 0, e, 1.0) * inverse, e * inverse * inverse


@triton.jit(do_not_specialize=["num_queries", "num_keys", "window", "tiles", "heads", "group"])
def _by_query(
    q, k, v, do, out, cu_seqlens_q, cu_seqlens_k,
    scale, factor, bias, window, num_queries, num_keys, tiles, heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    GRADIENT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, COUNTED: tl.constexpr,
    PACKED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V], or if GRADIENT dq [B, T, H, K], of QUERIES queries of one head."""
    tile = tl.program_id(0) % tiles
    if CAUSAL:
        # The last queries see the most keys: start them first.
        tile = tiles - 1 - tile
    head = (tl.program_id(0) // tiles % heads).to(tl.int64)
    n = tl.program_id(0) // tiles // heads
    batch, start_q, length_q = locate(cu_seqlens_q, n, num_queries, PACKED)
    batch, start_k, length_k = locate(cu_seqlens_k, n, num_keys, PACKED)
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
    q_tile = load_rows(q, stride_qt, first, rows, length_q, in_k, FULL_K, True)
    row_bias = _bias(query, length_k, window, shift, bias, CAUSAL, WINDOW, COUNTED)
    DTYPE: tl.constexpr = q.dtype.element_ty
    if GRADIENT:
        do += batch * stride_ob + start_q * stride_ot + head * stride_oh
        do_tile = load_rows(do, stride_ot, first, rows, length_q, in_v, FULL_V, True)
        acc = tl.zeros((QUERIES, PAD_K), tl.float32)
    else:
        acc = tl.zeros((QUERIES, PAD_V), tl.float32)

    bounds = keys_of(first, last, shift, length_k, window, CAUSAL, WINDOW, KEYS, False)
    high = bounds[3]
    for phase in tl.static_range(3):
        for start in range(bounds[phase], bounds[phase + 1], KEYS):
            columns = start + tl.arange(0, KEYS)
            key = columns[None, :]
            k_tile = load_rows(k, stride_kt, start, columns, high, in_k, FULL_K, phase != 1)
            v_tile = load_rows(v, stride_vt, start, columns, high, in_v, FULL_V, phase != 1)
            products = product(q_tile, tl.trans(k_tile), DTYPE)
            weight, slope = _sigmoid(tl.fma(products, factor, row_bias))
            if GRADIENT:
                weight = slope * product(do_tile, tl.trans(v_tile), DTYPE)
            if phase != 1:
                visible = sees(key < high, query, key, window, shift, CAUSAL, WINDOW)
                weight = tl.where(visible, weight, 0.0)
            if GRADIENT:
                acc = product(weight, k_tile, DTYPE, acc=acc)
            else:
                acc = product(weight, v_tile, DTYPE, acc=acc)

    row = (batch * num_queries + start_q) * heads + head
    if GRADIENT:
        store_rows(out + row * key_dim, heads * key_dim, rows, length_q, acc * scale, in_k)
    else:
        store_rows(out + row * value_dim, heads * value_dim, rows, length_q, acc, in_v)


@triton.jit(
    do_not_specialize=["num_queries", "num_keys", "window", "tiles", "kv_heads"],
    # A group of 1 is compiled apart, without the loop over it.
    do_not_specialize_on_alignment=["group"],
)
def _by_key(
    q, k, v, do, dk, dv, cu_seqlens_q, cu_seqlens_k,
    scale, factor, bias, window, num_queries, num_keys, tiles, kv_heads,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, COUNTED: tl.constexpr,
    PACKED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """dk [B, T, G, K] and dv [B, T, G, V] of KEYS keys of one kv head, over its query heads."""
    tile = tl.program_id(0) % tiles
    kv_head = (tl.program_id(0) // tiles % kv_heads).to(tl.int64)
    n = tl.program_id(0) // tiles // kv_heads
    batch, start_q, length_q = locate(cu_seqlens_q, n, num_queries, PACKED)
    batch, start_k, length_k = locate(cu_seqlens_k, n, num_keys, PACKED)
    shift = length_k - length_q
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
        for phase in tl.static_range(3):
            for start in range(bounds[phase], bounds[phase + 1], QUERIES):
                rows = start + tl.arange(0, QUERIES)
                query = rows[None, :]
                q_tile = load_rows(q_head, stride_qt, start, rows, high, in_k, FULL_K, phase != 1)
                do_tile = load_rows(do_head, stride_ot, start, rows, high, in_v, FULL_V, phase != 1)
                b = _bias(query, length_k, window, shift, bias, CAUSAL, WINDOW, COUNTED)
                weight, slope = _sigmoid(tl.fma(products_by_key(k_tile, q_tile), factor, b))
                ds = slope * product(v_tile, tl.trans(do_tile), DTYPE)
                if phase != 1:
                    visible = sees(query < high, query, key, window, shift, CAUSAL, WINDOW)
                    weight = tl.where(visible, weight, 0.0)
                    ds = tl.where(visible, ds, 0.0)
                dv_acc = product(weight, do_tile, DTYPE, acc=dv_acc)
                dk_acc = product(ds, q_tile, DTYPE, acc=dk_acc)

    row = (batch * num_keys + start_k) * kv_heads + kv_head
    store_rows(dk + row * key_dim, kv_heads * key_dim, columns, length_k, dk_acc * scale, in_k)
    store_rows(dv + row * value_dim, kv_heads * value_dim, columns, length_k, dv_acc, in_v)


def _options(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: int | None,
    bias: float | None, cu_seqlens: Tensor | None,
) -> tuple[tuple[float, float, float, int], tuple[int, int, int], dict[str, bool]]:  # fmt: skip
    """(scale, factor, bias, window), (group, key dim, value dim), and constants."""
    # Distances are below the limit, and a wider window could overflow when it is added to one.
    limit = q.shape[1] + k.shape[1]
    numbers = (
        scale,
        scale * LOG2E.value,
        0.0 if bias is None else bias * LOG2E.value,
        limit if window is None else min(window, limit),
    )
    constants = {
        "CAUSAL": causal,
        "WINDOW": window is not None,
        "COUNTED": bias is None,
        "PACKED": cu_seqlens is not None,
    }
    return numbers, (q.shape[2] // k.shape[2], k.shape[3], v.shape[3]), constants


def _rows_of_queries(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor | None, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, scale: float, causal: bool, window: int | None,
    bias: float | None, tile: int,
) -> Tensor:  # fmt: skip
    """o, or dq if there is a cotangent `do`."""
    batch, queries, heads, key_dim = q.shape
    keys, value_dim = k.shape[1], v.shape[3]
    longest = check_boundaries("cu_seqlens", cu_seqlens, queries)
    check_boundaries("cu_seqlens_k", cu_seqlens_k, keys)
    out = q.new_empty(batch, queries, heads, value_dim if do is None else key_dim)
    if out.numel() == 0:
        return out
    entry = tiles.TABLE["sigmoid_attention", "parallel"][tile]
    numbers, dims, constants = _options(q, k, v, scale, causal, window, bias, cu_seqlens)
    count = cdiv(longest, entry.tokens)
    q, k, v, do = dense_rows(q, k, v, do)
    strides = [stride for x in (q, k, v, q if do is None else do) for stride in x.stride()[:3]]
    with torch.cuda.device_of(q):
        _by_query[(count * count_sequences(batch, cu_seqlens) * heads,)](
            q, k, v, do, out, cu_seqlens, cu_seqlens_k, *numbers, queries, keys, count, heads,
            *dims, *strides, GRADIENT=do is not None, **constants,
            **launch(entry, k, v, held="QUERIES", read="KEYS"),
        )  # fmt: skip
    return out


def _rows_of_keys(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None, scale: float, causal: bool, window: int | None,
    bias: float | None, tile: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dk and dv."""
    batch, keys, kv_heads, _ = k.shape
    dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, v))
    if dk.numel() == 0:
        return dk, dv
    longest = check_boundaries("cu_seqlens_k", cu_seqlens_k, keys)
    entry = tiles.TABLE["sigmoid_attention", "parallel"][tile]
    numbers, dims, constants = _options(q, k, v, scale, causal, window, bias, cu_seqlens)
    count = cdiv(longest, entry.tokens)
    q, k, v, do = dense_rows(q, k, v, do)
    strides = [stride for x in (q, k, v, do) for stride in x.stride()[:3]]
    with torch.cuda.device_of(q):
        _by_key[(count * count_sequences(batch, cu_seqlens) * kv_heads,)](
            q, k, v, do, dk, dv, cu_seqlens, cu_seqlens_k, *numbers, q.shape[1], keys, count,
            kv_heads, *dims, *strides, **constants,
            **launch(entry, k, v, held="KEYS", read="QUERIES"),
        )  # fmt: skip
    return dk, dv


def _shapes(given: Given) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((*given["q"].shape[:3], given["v"].shape[3]), given["q"].dtype)]


_sigmoid_attention = differentiable(
    "sigmoid_attention_parallel",
    tensors=("q", "k", "v", "cu_seqlens?", "cu_seqlens_k?"),
    settings={
        "scale": "float",
        "causal": "bool",
        "window": "int?",
        "bias": "float?",
        "tile": "int",
    },
    outputs=1,
    forward=lambda **given: [_rows_of_queries(do=None, **given)],
    backward=lambda d0, **given: [
        _rows_of_queries(do=d0, **given),
        *_rows_of_keys(do=d0, **given),
        None,
        None,
    ],
    shapes=_shapes,
)


def compute(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    causal: bool,
    window: int | None,
    bias: float | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
    mode: str,
    tile: int | None,
) -> Tensor:
    sizes = bind_dims(q=(q, "B T_q H K"), k=(k, "B T_k G K"), v=(v, "B T_k G V"))
    dtype = check_one_dtype(q=q, k=k, v=v)
    check_heads(sizes)
    check_flags(causal=causal)
    check_mode(mode)
    cu_seqlens, cu_seqlens_k = check_packing(cu_seqlens, cu_seqlens_k, sizes, q.device)
    dim = max(sizes["K"], sizes["V"])
    tile = tiles.choose(
        "sigmoid_attention", "parallel", dim=dim, dtype=dtype, device=q.device, tile=tile
    )
    scale = resolve_scale(scale, sizes["K"])
    window, bias = check_window(window), _check_bias(bias)
    return _sigmoid_attention(q, k, v, cu_seqlens, cu_seqlens_k, scale, causal, window, bias, tile)


def _check_bias(bias: float | None) -> float | None:
    if bias is None:
        return None
    if isinstance(bias, bool) or not isinstance(bias, (int, float)):
        raise TypeError(f"bias: {describe(bias)}, expected a real number or None")
    if not -math.inf < bias < math.inf:
        raise ValueError(f"bias: {bias}, expected a finite number or None")
    return float(bias)


@op(
    compute,
    outputs=("o",),
    about="Differentiable once. Sums are float32. K and V are 1 to 256.",
    same_dtype=("q", "k", "v"),
    texts={
        "cu_seqlens": "int32 or int64. Boundaries of packed sequences of queries.",
        "cu_seqlens_k": "int32 or int64. Those of the keys; None means those of the queries.",
    },
    raises=[
        "K or V outside 1 to 256",
        "H not a multiple of G",
        "a scale or bias that is NaN or infinite",
        "a window below 1",
        "boundaries that do not delimit all tokens, or of the keys alone",
    ],
)
def sigmoid_attention(
    q: Float[Tensor, "B T_q H K"],
    k: Float[Tensor, "B T_k G K"],
    v: Float[Tensor, "B T_k G V"],
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: float | None = None,
    mode: Literal["auto", "parallel"] = "auto",
    tile: int | None = None,
    **options: Unpack[Packing],
) -> Float[Tensor, "B T_q H V"]:
    """Sigmoid attention in tiles, `reference.sigmoid_attention`."""
