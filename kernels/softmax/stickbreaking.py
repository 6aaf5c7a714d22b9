"""Stick-breaking attention in tiles, from the nearest keys to the farthest.

With s = z log2(e), L = log2(1 - sigmoid(z)) and N_ij the sum of L over the keys between j and i,

    A_ij = sigmoid(z_ij) 2^N_ij        r_i = 2^(Σ_j L_ij)

Backward, with w = A ∘ (dO Vᵀ) and F_ij = r_i dr_i + Σ_{l < j} w_il,

    dz = w (1 - sigmoid(z)) - F sigmoid(z)

N sums the keys nearer than j, and F those farther. The backward pass walks three times: from near
to far for N at the borders of tiles of keys, from far to near for dq and for F at the borders, and
over queries for dk and dv, which read both. Each is [B, H, tiles of keys, T] in float32.
"""

from typing import Any, Literal, Unpack

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries, count_sequences
from kernels.differentiable import Given, differentiable
from kernels.primitives.chunks import locate_in_batch
from kernels.primitives.layout import dense_rows, outer_strides
from kernels.primitives.product import product, select_and_sum
from kernels.recurrence import StatelessOptions
from kernels.softmax.launch import launch
from kernels.softmax.logits import LOG2E, load_tile, products_by_key, store_tile
from kernels.softmax.pairs import pairs
from kernels.tiles import cdiv

# 2 to the power of it is 0, and sums of it do not overflow.
_FLOOR = tl.constexpr(-1048576.0)


@triton.jit
def _softplus(s):
    """log2(1 + 2^s) and 2^-|s|, the former with all its digits where it is near 0.

    log(1 + e) = 2 atanh(t) with t = e / (2 + e) <= 1/3, as an odd series in t.
    """
    e = tl.exp2(-tl.abs(s))
    t = e / (2.0 + e)
    square = t * t
    series = square * 0.06666666666666667 + 0.07692307692307693
    series = series * square + 0.09090909090909091
    series = series * square + 0.1111111111111111
    series = series * square + 0.14285714285714285
    series = series * square + 0.2
    series = series * square + 0.3333333333333333
    series = t + t * (series * square)
    return tl.maximum(s, 0.0) + series * (2.0 * LOG2E), e


@triton.jit
def _break(products, factor, visible, nearer, PIECES: tl.constexpr):
    """Return A, sigmoid(z) and 1 - sigmoid(z) of a tile, keys by queries, and the sum of L over its
    keys.

    `nearer` is the sum of L over the keys of nearer tiles. Pairs that are not `visible` are 0.
    """
    s = products * factor
    softplus, e = _softplus(s)
    rest = tl.where(visible, tl.maximum(-softplus, _FLOOR), 0.0)
    key = tl.arange(0, products.shape[0])
    within = select_and_sum(key[:, None] < key[None, :], rest, PIECES)
    inverse = 1.0 / (1.0 + e)
    share = tl.where(s < 0, e, 1.0) * inverse
    left = tl.where(s < 0, 1.0, e) * inverse
    weight = tl.where(visible, share * tl.exp2(within + nearer[None, :]), 0.0)
    return weight, share, left, tl.sum(rest, 0)


@triton.jit
def _sees(key, query, length, CURRENT: tl.constexpr):
    """Whether a query sees a key before it, or if CURRENT also its own."""
    if CURRENT:
        visible = key <= query
    else:
        visible = key < query
    return visible & (query < length)


@triton.jit(do_not_specialize=["tokens", "tiles", "heads", "group", "borders"])
def _near_to_far(
    q, k, v, o, rest, nearer, of_all, cu_seqlens, factor, tokens, tiles, heads, borders,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh,
    BORDERS: tl.constexpr, CURRENT: tl.constexpr, PACKED: tl.constexpr, PIECES: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
    FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """o [B, T, H, V] and rest [B, T, H] of QUERIES queries of one head; or if BORDERS, nearer
    [B, H, tiles of keys, T], N at the near end of each tile, and of_all [B, H, T] of all keys."""
    # The last queries see the most keys: start them first.
    tile = tiles - 1 - tl.program_id(0) % tiles
    head = (tl.program_id(0) // tiles % heads).to(tl.int64)
    n = tl.program_id(0) // tiles // heads
    batch, start, length = locate_in_batch(n, cu_seqlens, tokens, PACKED)
    q += batch * stride_qb + start * stride_qt + head * stride_qh
    k += batch * stride_kb + start * stride_kt + head // group * stride_kh
    v += batch * stride_vb + start * stride_vt + head // group * stride_vh
    row = (batch * heads + head) * tokens + start
    nearer += (batch * heads + head) * borders * tokens + start

    first = tile * QUERIES
    rows = first + tl.arange(0, QUERIES)
    query = rows[None, :]
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    DTYPE: tl.constexpr = q.dtype.element_ty
    q_tile = load_tile(q, stride_qt, first, rows, length, in_k, FULL_K, True)
    high = tl.where(first < length, tl.minimum(first + QUERIES, length), 0)
    count = tl.cdiv(high, KEYS)

    sum_l = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, PAD_V), tl.float32)
    for step in range(count):
        at = count - 1 - step
        columns = at * KEYS + tl.arange(0, KEYS)
        visible = _sees(columns[:, None], query, length, CURRENT)
        k_tile = load_tile(k, stride_kt, at * KEYS, columns, high, in_k, FULL_K, True)
        products = products_by_key(k_tile, q_tile)
        weight, _, _, of_tile = _break(products, factor, visible, sum_l, PIECES)
        if BORDERS:
            tl.store(nearer + at.to(tl.int64) * tokens + rows, sum_l, mask=rows < length)
        else:
            v_tile = load_tile(v, stride_vt, at * KEYS, columns, high, in_v, FULL_V, True)
            acc = product(tl.trans(weight), v_tile, DTYPE, acc=acc)
        sum_l += of_tile
    if BORDERS:
        tl.store(of_all + row + rows, sum_l, mask=rows < length)
    else:
        of_token = (batch * tokens + start) * heads + head
        store_tile(o + of_token * value_dim, heads * value_dim, rows, length, acc, in_v)
        to = rest + of_token + rows.to(tl.int64) * heads
        tl.store(to, tl.exp2(sum_l).to(rest.dtype.element_ty), mask=rows < length)


@triton.jit(do_not_specialize=["tokens", "tiles", "heads", "group", "borders"])
def _far_to_near(
    q, k, v, do, drest, dq, nearer, farther, of_all, cu_seqlens,
    scale, factor, tokens, tiles, heads, borders,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    CURRENT: tl.constexpr, PACKED: tl.constexpr, PIECES: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
    FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K] of QUERIES queries of one head, and farther [B, H, tiles of keys, T], F at
    the far end of each tile."""
    tile = tiles - 1 - tl.program_id(0) % tiles
    head = (tl.program_id(0) // tiles % heads).to(tl.int64)
    n = tl.program_id(0) // tiles // heads
    batch, start, length = locate_in_batch(n, cu_seqlens, tokens, PACKED)
    q += batch * stride_qb + start * stride_qt + head * stride_qh
    k += batch * stride_kb + start * stride_kt + head // group * stride_kh
    v += batch * stride_vb + start * stride_vt + head // group * stride_vh
    do += batch * stride_ob + start * stride_ot + head * stride_oh
    row = (batch * heads + head) * tokens + start
    nearer += (batch * heads + head) * borders * tokens + start
    farther += (batch * heads + head) * borders * tokens + start

    first = tile * QUERIES
    rows = first + tl.arange(0, QUERIES)
    inside = rows < length
    query = rows[None, :]
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    DTYPE: tl.constexpr = q.dtype.element_ty
    q_tile = load_tile(q, stride_qt, first, rows, length, in_k, FULL_K, True)
    do_tile = load_tile(do, stride_ot, first, rows, length, in_v, FULL_V, True)
    high = tl.where(first < length, tl.minimum(first + QUERIES, length), 0)
    key = tl.arange(0, KEYS)

    sum_w = tl.zeros((QUERIES,), tl.float32)
    of_token = (batch * tokens + start) * heads + head
    if drest is not None:
        to = drest + of_token + rows.to(tl.int64) * heads
        sum_w = tl.load(to, mask=inside, other=0.0).to(tl.float32)
        sum_w *= tl.exp2(tl.load(of_all + row + rows, mask=inside, other=0.0))
    acc = tl.zeros((QUERIES, PAD_K), tl.float32)
    for at in range(tl.cdiv(high, KEYS)):
        columns = at * KEYS + key
        visible = _sees(columns[:, None], query, length, CURRENT)
        k_tile = load_tile(k, stride_kt, at * KEYS, columns, high, in_k, FULL_K, True)
        v_tile = load_tile(v, stride_vt, at * KEYS, columns, high, in_v, FULL_V, True)
        border = at.to(tl.int64) * tokens + rows
        sum_l = tl.load(nearer + border, mask=inside, other=0.0)
        tl.store(farther + border, sum_w, mask=inside)
        products = products_by_key(k_tile, q_tile)
        weight, share, left, _ = _break(products, factor, visible, sum_l, PIECES)
        w = weight * product(v_tile, tl.trans(do_tile), DTYPE)
        w = tl.where(visible, w, 0.0)
        f = select_and_sum(key[:, None] > key[None, :], w, PIECES) + sum_w[None, :]
        dz = tl.where(visible, w * left - f * share, 0.0)
        acc = product(tl.trans(dz), k_tile, DTYPE, acc=acc)
        sum_w += tl.sum(w, 0)

    store_tile(dq + of_token * key_dim, heads * key_dim, rows, length, acc * scale, in_k)


@triton.jit(
    do_not_specialize=["tokens", "tiles", "kv_heads", "borders"],
    # A group of 1 is compiled apart, without the loop over it.
    do_not_specialize_on_alignment=["group"],
)
def _by_key(
    q, k, v, do, dk, dv, nearer, farther, cu_seqlens,
    scale, factor, tokens, tiles, kv_heads, borders,
    group, key_dim: tl.int32, value_dim: tl.int32,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    CURRENT: tl.constexpr, PACKED: tl.constexpr, PIECES: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
    FULL_K: tl.constexpr, FULL_V: tl.constexpr,
):  # fmt: skip
    """dk [B, T, G, K] and dv [B, T, G, V] of KEYS keys of one kv head, over its query heads."""
    tile = tl.program_id(0) % tiles
    kv_head = (tl.program_id(0) // tiles % kv_heads).to(tl.int64)
    n = tl.program_id(0) // tiles // kv_heads
    batch, start, length = locate_in_batch(n, cu_seqlens, tokens, PACKED)
    k += batch * stride_kb + start * stride_kt + kv_head * stride_kh
    v += batch * stride_vb + start * stride_vt + kv_head * stride_vh

    first = tile * KEYS
    key = tl.arange(0, KEYS)
    columns = first + key
    in_k = tl.arange(0, PAD_K) < key_dim
    in_v = tl.arange(0, PAD_V) < value_dim
    k_tile = load_tile(k, stride_kt, first, columns, length, in_k, FULL_K, True)
    v_tile = load_tile(v, stride_vt, first, columns, length, in_v, FULL_V, True)
    dk_acc = tl.zeros((KEYS, PAD_K), tl.float32)
    dv_acc = tl.zeros((KEYS, PAD_V), tl.float32)
    DTYPE: tl.constexpr = q.dtype.element_ty

    for member in range(group):
        head = kv_head * group + member
        q_head = q + batch * stride_qb + start * stride_qt + head * stride_qh
        do_head = do + batch * stride_ob + start * stride_ot + head * stride_oh
        border = ((batch * kv_heads * group + head) * borders + tile) * tokens + start
        for begin in range(first, length, QUERIES):
            rows = begin + tl.arange(0, QUERIES)
            inside = rows < length
            visible = _sees(columns[:, None], rows[None, :], length, CURRENT)
            q_tile = load_tile(q_head, stride_qt, begin, rows, length, in_k, FULL_K, True)
            do_tile = load_tile(do_head, stride_ot, begin, rows, length, in_v, FULL_V, True)
            sum_l = tl.load(nearer + border + rows, mask=inside, other=0.0)
            sum_w = tl.load(farther + border + rows, mask=inside, other=0.0)
            products = products_by_key(k_tile, q_tile)
            weight, share, left, _ = _break(products, factor, visible, sum_l, PIECES)
            dv_acc = product(weight, do_tile, DTYPE, acc=dv_acc)
            w = weight * product(v_tile, tl.trans(do_tile), DTYPE)
            w = tl.where(visible, w, 0.0)
            f = select_and_sum(key[:, None] > key[None, :], w, PIECES) + sum_w[None, :]
            dz = tl.where(visible, w * left - f * share, 0.0)
            dk_acc = product(dz, q_tile, DTYPE, acc=dk_acc)

    row = (batch * tokens + start) * kv_heads + kv_head
    store_tile(dk + row * key_dim, kv_heads * key_dim, columns, length, dk_acc * scale, in_k)
    store_tile(dv + row * value_dim, kv_heads * value_dim, columns, length, dv_acc, in_v)


def _shape(k: Tensor, v: Tensor, tile: int) -> dict[str, int]:
    """The launch of all kernels: their tiles of keys have the same borders."""
    entry = tiles.TABLE["stickbreaking_attn", "parallel"][tile]
    return launch(entry, k, v, held="QUERIES", read="KEYS")


def _constants(q: Tensor, cu_seqlens: Tensor | None, attend_current: bool) -> dict[str, Any]:
    return {
        "CURRENT": attend_current,
        "PACKED": cu_seqlens is not None,
        # Three of 8 bits have the 24 bits of float32.
        "PIECES": 0 if q.dtype == torch.float32 else 3,
    }


def _dims(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int]:
    return q.shape[2] // k.shape[2], k.shape[3], v.shape[3]


def _forward(
    *, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, scale: float,
    attend_current: bool, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    batch, tokens, heads, _ = q.shape
    longest = check_boundaries("cu_seqlens", cu_seqlens, tokens)
    o = q.new_empty(batch, tokens, heads, v.shape[3])
    rest = q.new_empty(batch, tokens, heads)
    if rest.numel() == 0:
        return [o, rest]
    q, k, v = dense_rows(q, k, v)
    shape = _shape(k, v, tile)
    count = cdiv(longest, shape["QUERIES"])
    _near_to_far[(count * count_sequences(batch, cu_seqlens) * heads,)](
        q, k, v, o, rest, rest, rest, cu_seqlens, scale * LOG2E.value, tokens, count, heads,
        0, *_dims(q, k, v), *outer_strides(q, k, v), BORDERS=False,
        **_constants(q, cu_seqlens, attend_current), **shape,
    )  # fmt: skip
    return [o, rest]


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, d0: Tensor, d1: Tensor | None,
    scale: float, attend_current: bool, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    batch, tokens, heads, _ = q.shape
    longest = check_boundaries("cu_seqlens", cu_seqlens, tokens)
    if dq.numel() == 0:
        return [dq, dk, dv, None]
    q, k, v, d0 = dense_rows(q, k, v, d0)
    d1 = None if d1 is None else d1.contiguous()
    shape = _shape(k, v, tile)
    sequences = count_sequences(batch, cu_seqlens)
    count, borders = cdiv(longest, shape["QUERIES"]), cdiv(longest, shape["KEYS"])
    of_all = q.new_empty(batch, heads, tokens, dtype=torch.float32)
    nearer, farther = of_all.new_empty(2, batch, heads, borders, tokens)
    by_key = dict(shape)
    if tiles.architecture(q.device) >= 80 and shape["KEYS"] == 16:
        # Wide heads spill with four warps on NVIDIA's GPUs, and with eight on AMD's.
        by_key["num_warps"] = 8
    factor, dims = scale * LOG2E.value, _dims(q, k, v)
    constants = _constants(q, cu_seqlens, attend_current)
    _near_to_far[(count * sequences * heads,)](
        q, k, v, d0, d0, nearer, of_all, cu_seqlens, factor, tokens, count, heads, borders,
        *dims, *outer_strides(q, k, v), BORDERS=True, **constants, **shape,
    )  # fmt: skip
    _far_to_near[(count * sequences * heads,)](
        q, k, v, d0, d1, dq, nearer, farther, of_all, cu_seqlens, scale, factor, tokens, count,
        heads, borders, *dims, *outer_strides(q, k, v, d0), **constants, **shape,
    )  # fmt: skip
    _by_key[(borders * sequences * k.shape[2],)](
        q, k, v, d0, dk, dv, nearer, farther, cu_seqlens, scale, factor, tokens, borders,
        k.shape[2], borders, *dims, *outer_strides(q, k, v, d0), **constants, **by_key,
    )  # fmt: skip
    return [dq, dk, dv, None]


def _shapes(given: Given) -> list[tuple[tuple[int, ...], torch.dtype]]:
    q, v = given["q"], given["v"]
    return [((*q.shape[:3], v.shape[3]), q.dtype), (tuple(q.shape[:3]), q.dtype)]


_stickbreaking = differentiable("stickbreaking_parallel", _forward, _backward, _shapes, outputs=2)


@pairs(
    _stickbreaking,
    outputs=("o", "rest"),
    about="The backward pass allocates two numbers for each query of a head and tile of 16 or 32 "
    "keys.",
)
def stickbreaking_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    *,
    attend_current: bool = False,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[StatelessOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """Stick-breaking attention in tiles of all pairs, `reference.stickbreaking_attn`."""
