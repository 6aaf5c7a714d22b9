"""DeltaFormer in chunks of C tokens, one after the other: a triangular system within each.

With a the reads of earlier tokens, P their weights and w the weight of a token's own value,

    a_t = Σ_{j < t} P_tj u_j      u_t = v_t - β_t a_t      o_t = (1 - w_t) a_t + w_t u_t

so that the outputs need no softmax of their own. Within a chunk, whose reads of earlier chunks are
r, `u = (I + diag(β) P)⁻¹ (v - β r)`. Backward the chunks come last to first: with d the gradients
that later chunks send to u,

    du = (I + (diag(β) P)ᵀ)⁻¹ (w do + d + Pᵀ (1 - w) do)      da = (1 - w) do - β du

and with dz = w (1 - w) do · (u - a), the gradient of the own logit,

    dv = du      dβ = -du · a      dS_tj = P_tj (da_t · u_j - δ_t - dz_t)      dS_tt = dz_t
    δ_t = Σ_j P_tj da_t · u_j

A launch is for one chunk of every sequence, as a chunk reads what those before it have written.
Base-2 logits are x * factor with x = q · k, and a maximum is taken from them in one `fma` each
time: a compiler that fuses the two here and not there would make weights that do not sum to 1.
u, a and da are float32.
"""

from typing import Any, Literal, Unpack

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries
from kernels.differentiable import differentiable
from kernels.primitives.chunks import cut, locate_chunk, locate_sequence
from kernels.primitives.layout import contiguous
from kernels.primitives.product import TRITON_DTYPES, product
from kernels.primitives.rows import load_rows, store_rows
from kernels.primitives.triangular import inverse_unit_lower
from kernels.recurrence import StatelessOptions
from kernels.softmax.chunked import dot_rows, place_in_heads
from kernels.softmax.logits import LOG2E, finite_maximum, inverse_or_0
from kernels.softmax.pairs import pairs, shapes
from kernels.tiles import cdiv, next_power_of_2


@triton.jit
def _own_weight(own, factor, row_max, weight_sum):
    """w, the weight of the own key beside keys of so large a maximum and sum, and 1 - w."""
    excess = tl.fma(own, factor, -row_max)
    up = tl.exp2(tl.minimum(excess, 0.0))
    down = tl.exp2(tl.minimum(-excess, 0.0)) * weight_sum
    inverse = 1.0 / (up + down)
    return up * inverse, down * inverse


@triton.jit
def _weights(x, factor, earlier, row_max, weight_sum):
    """The weights of the keys that are `earlier`; 0 in a row without any."""
    base = finite_maximum(row_max)
    inverse = inverse_or_0(weight_sum)
    return tl.where(earlier, tl.exp2(tl.fma(x, factor, -base[:, None])), 0.0) * inverse[:, None]


@triton.jit
def _load_terms(terms, place, count, rows, left):
    """Maximum and sum of some rows, as `_read` stores them."""
    inside = rows < left
    row_max = tl.load(terms + place + rows, mask=inside, other=0.0)
    return row_max, tl.load(terms + count + place + rows, mask=inside, other=1.0)


@triton.jit
def _diagonal(x, C: tl.constexpr):
    rows = tl.arange(0, C)
    return tl.sum(tl.where(rows[:, None] == rows[None, :], x, 0.0), 1)


@triton.jit
def _load_beta(beta, start, rows, stride, left):
    """β of some rows, 1 if there is none."""
    beta_rows = tl.where(rows < left, 1.0, 0.0)
    if beta is not None:
        at = beta + start + rows * stride
        beta_rows = tl.load(at, mask=rows < left, other=0.0).to(tl.float32)
    return beta_rows


@triton.jit(do_not_specialize=["chunk", "tokens", "heads", "count"])
def _read(
    q, k, v, beta, u, a, o, terms, cu_seqlens, factor, chunk, tokens, heads, count,
    key_dim: tl.int32, value_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """u, a and o [B, T, H, V] of a slice of values of one chunk, and terms [2, B, H, T]: maximum
    and sum of the softmax over earlier keys."""
    parts = tl.cdiv(value_dim, BV)
    part = tl.program_id(0) % parts
    values = part * BV + tl.arange(0, BV)
    head = (tl.program_id(0) // parts % heads).to(tl.int64)
    n = tl.program_id(0) // parts // heads
    first, length, _ = locate_sequence(n, cu_seqlens, tokens, C, PACKED)
    before = chunk * C
    left = length - before
    if left <= 0:
        return
    rows = tl.arange(0, C)
    stride_k = heads * key_dim
    stride_v = heads * value_dim
    place = place_in_heads(first + before, n.to(tl.int64), head, heads, tokens, PACKED)
    k += (first * heads + head) * key_dim
    u += (first * heads + head) * value_dim
    here = first + before
    q += (here * heads + head) * key_dim
    v += (here * heads + head) * value_dim

    row_max = tl.full((C,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((C,), tl.float32)
    acc = tl.zeros((C, BV), tl.float32)
    for step in tl.range(chunk, disable_licm=True):
        on = tl.cast(step, tl.int64) * C
        x = dot_rows(q, k + on * stride_k, stride_k, stride_k, left, C, key_dim, DTYPE, C, BK)
        new_max = tl.maximum(row_max, tl.max(x * factor, 1))
        p = tl.exp2(tl.fma(x, factor, -new_max[:, None]))
        shrink = tl.exp2(row_max - new_max)
        weight_sum = weight_sum * shrink + tl.sum(p, 1)
        u_tile = load_rows(u + on * stride_v, rows, values, stride_v, C, value_dim)
        acc = product(p, u_tile, DTYPE, FINE_A=True, FINE_B=True, acc=acc * shrink[:, None])
        row_max = new_max
    on = tl.cast(before, tl.int64)
    x = dot_rows(q, k + on * stride_k, stride_k, stride_k, left, left, key_dim, DTYPE, C, BK)
    earlier = rows[:, None] > rows[None, :]
    new_max = tl.maximum(row_max, tl.max(tl.where(earlier, x * factor, float("-inf")), 1))
    base = finite_maximum(new_max)
    shrink = tl.exp2(row_max - base)
    p = tl.where(earlier, tl.exp2(tl.fma(x, factor, -base[:, None])), 0.0)
    weight_sum = weight_sum * shrink + tl.sum(p, 1)
    row_max = new_max
    P = _weights(x, factor, earlier, row_max, weight_sum)
    far = acc * (shrink * inverse_or_0(weight_sum))[:, None]

    beta_rows = _load_beta(beta, here * heads + head, rows, heads, left)
    v_tile = load_rows(v, rows, values, stride_v, left, value_dim).to(tl.float32)
    inverse = inverse_unit_lower(beta_rows[:, None] * P, C, DTYPE)
    u_tile = product(inverse, v_tile - beta_rows[:, None] * far, DTYPE, FINE_A=True, FINE_B=True)
    a_tile = product(P, u_tile, DTYPE, FINE_A=True, FINE_B=True, acc=far)
    w, others = _own_weight(_diagonal(x, C), factor, row_max, weight_sum)
    out = (here * heads + head) * value_dim
    store_rows(u + on * stride_v, u_tile, rows, values, stride_v, left, value_dim)
    store_rows(a + out, a_tile, rows, values, stride_v, left, value_dim)
    o_tile = others[:, None] * a_tile + w[:, None] * u_tile
    store_rows(o + out, o_tile, rows, values, stride_v, left, value_dim)
    # All parts compute the same sums: one of them writes.
    mine = rows < tl.where(part == 0, left, 0)
    tl.store(terms + place + rows, row_max, mask=mine)
    tl.store(terms + count + place + rows, weight_sum, mask=mine)


@triton.jit(do_not_specialize=["chunk", "tokens", "heads", "count"])
def _send_back(
    q, k, beta, do, da, dv, terms, cu_seqlens, factor, chunk, tokens, heads, count,
    key_dim: tl.int32, value_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """da and dv [B, T, H, V] of a slice of values of one chunk; those of later chunks are done."""
    parts = tl.cdiv(value_dim, BV)
    values = tl.program_id(0) % parts * BV + tl.arange(0, BV)
    head = (tl.program_id(0) // parts % heads).to(tl.int64)
    n = tl.program_id(0) // parts // heads
    first, length, _ = locate_sequence(n, cu_seqlens, tokens, C, PACKED)
    before = chunk * C
    left = length - before
    if left <= 0:
        return
    rows = tl.arange(0, C)
    stride_k = heads * key_dim
    stride_v = heads * value_dim
    here = first + before
    place = place_in_heads(here, n.to(tl.int64), head, heads, tokens, PACKED)
    q += (here * heads + head) * key_dim
    k += (here * heads + head) * key_dim
    start = (here * heads + head) * value_dim
    da += start

    sent = tl.zeros((C, BV), tl.float32)
    for step in tl.range(1, tl.cdiv(left, C), disable_licm=True):
        on = tl.cast(step, tl.int64) * C
        later = left - step * C
        x = dot_rows(q + on * stride_k, k, stride_k, stride_k, later, C, key_dim, DTYPE, C, BK)
        row_max, weight_sum = _load_terms(terms, place + on, count, rows, later)
        p = _weights(x, factor, (rows < later)[:, None], row_max, weight_sum)
        of_later = load_rows(da + on * stride_v, rows, values, stride_v, later, value_dim)
        sent = product(tl.trans(p), of_later, DTYPE, FINE_A=True, FINE_B=True, acc=sent)
    x = dot_rows(q, k, stride_k, stride_k, left, left, key_dim, DTYPE, C, BK)
    row_max, weight_sum = _load_terms(terms, place, count, rows, left)
    P = _weights(
        x, factor, (rows[:, None] > rows[None, :]) & (rows < left)[:, None], row_max, weight_sum
    )
    w, others = _own_weight(_diagonal(x, C), factor, row_max, weight_sum)
    beta_rows = _load_beta(beta, here * heads + head, rows, heads, left)
    do_tile = load_rows(do + start, rows, values, stride_v, left, value_dim).to(tl.float32)
    read = others[:, None] * do_tile
    sent = product(tl.trans(P), read, DTYPE, FINE_A=True, FINE_B=True, acc=sent)
    inverse = inverse_unit_lower(beta_rows[:, None] * P, C, DTYPE)
    du = product(tl.trans(inverse), w[:, None] * do_tile + sent, DTYPE, FINE_A=True, FINE_B=True)
    store_rows(dv + start, du, rows, values, stride_v, left, value_dim)
    store_rows(da, read - beta_rows[:, None] * du, rows, values, stride_v, left, value_dim)


@triton.jit
def _of_values(
    x, y, stride, count_x, count_y, value_dim,
    DTYPE: tl.constexpr, C: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """x yᵀ `[C, C]` of float32 rows, from slices of V."""
    return dot_rows(x, y, stride, stride, count_x, count_y, value_dim, DTYPE, C, BV, FINE=True)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "count", "chunks"])
def _by_query(
    q, k, du, do, u, a, da, dq, dbeta, terms, cu_seqlens, scale, factor,
    sequences, tokens, heads, count, chunks, key_dim: tl.int32, value_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PAD_K: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K] and dbeta [B, T, H] of one chunk of a head; and two more terms of its rows:
    Σ_j P_tj da_t · u_j + dz_t, and dz."""
    # The last chunks see the most keys: start them first.
    chunk = chunks - 1 - tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, sequence, before = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    stride_k = heads * key_dim
    stride_v = heads * value_dim
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
    count = tl.cast(count, tl.int64)
    q += (first * heads + head) * key_dim
    k += (first * heads + head) * key_dim
    start = (first * heads + head) * value_dim
    do += start
    u += start
    a += start
    da += start

    of_weight = tl.zeros((C,), tl.float32)
    dbeta_rows = tl.zeros((C,), tl.float32)
    row_max, weight_sum = _load_terms(terms, place, count, rows, left)
    x = dot_rows(q, k, stride_k, stride_k, left, left, key_dim, DTYPE, C, BK)
    w, others = _own_weight(_diagonal(x, C), factor, row_max, weight_sum)
    for begin in range(0, value_dim, BV):
        values = begin + tl.arange(0, BV)
        do_tile = load_rows(do, rows, values, stride_v, left, value_dim).to(tl.float32)
        a_tile = load_rows(a, rows, values, stride_v, left, value_dim)
        u_tile = load_rows(u, rows, values, stride_v, left, value_dim)
        of_weight += tl.sum(do_tile * (u_tile - a_tile), 1)
        if dbeta is not None:
            du_tile = load_rows(du + start, rows, values, stride_v, left, value_dim)
            dbeta_rows += tl.sum(du_tile * a_tile, 1)
    dz = w * others * of_weight
    inside = rows < left
    if dbeta is not None:
        tl.store(dbeta + first * heads + head + rows * heads, -dbeta_rows, mask=inside)

    P = _weights(x, factor, rows[:, None] > rows[None, :], row_max, weight_sum)
    dp = _of_values(da, u, stride_v, left, left, value_dim, DTYPE, C, BV)
    of_read = tl.sum(P * dp, 1)
    # A sum over keys of its own: less da · a, whose a is rounded, a weight of 1 would leave the
    # rounding error.
    for step in tl.range(1, before // C + 1, disable_licm=True):
        back = tl.cast(step, tl.int64) * C
        x = dot_rows(q, k - back * stride_k, stride_k, stride_k, left, C, key_dim, DTYPE, C, BK)
        of_earlier = _of_values(da, u - back * stride_v, stride_v, left, C, value_dim, DTYPE, C, BV)
        of_read += tl.sum(_weights(x, factor, inside[:, None], row_max, weight_sum) * of_earlier, 1)
    of_read += dz
    to = terms + 2 * count + place + rows
    tl.store(to, of_read, mask=inside)
    tl.store(to + count, dz, mask=inside)

    keys = tl.arange(0, PAD_K)
    ds = P * (dp - of_read[:, None])
    ds = tl.where(rows[:, None] == rows[None, :], dz[:, None], ds)
    k_tile = load_rows(k, rows, keys, stride_k, left, key_dim)
    acc = product(ds * scale, k_tile, DTYPE)
    for step in tl.range(1, before // C + 1, disable_licm=True):
        back = tl.cast(step, tl.int64) * C
        k_rows = k - back * stride_k
        x = dot_rows(q, k_rows, stride_k, stride_k, left, C, key_dim, DTYPE, C, BK)
        dp = _of_values(da, u - back * stride_v, stride_v, left, C, value_dim, DTYPE, C, BV)
        ds = _weights(x, factor, inside[:, None], row_max, weight_sum) * (dp - of_read[:, None])
        k_tile = load_rows(k_rows, rows, keys, stride_k, C, key_dim)
        acc = product(ds * scale, k_tile, DTYPE, acc=acc)
    store_rows(dq + (first * heads + head) * key_dim, acc, rows, keys, stride_k, left, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "count"])
def _by_key(
    q, k, u, da, dk, terms, cu_seqlens, scale, factor, sequences, tokens, heads, count,
    key_dim: tl.int32, value_dim: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PAD_K: tl.constexpr,
):  # fmt: skip
    """dk [B, T, H, K] of one chunk of a head."""
    chunk = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, sequence, _ = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    keys = tl.arange(0, PAD_K)
    stride_k = heads * key_dim
    stride_v = heads * value_dim
    place = place_in_heads(first, sequence, head, heads, tokens, PACKED)
    count = tl.cast(count, tl.int64)
    q += (first * heads + head) * key_dim
    k += (first * heads + head) * key_dim
    u += (first * heads + head) * value_dim
    da += (first * heads + head) * value_dim

    acc = tl.zeros((C, PAD_K), tl.float32)
    for step in tl.range(tl.cdiv(left, C), disable_licm=True):
        on = tl.cast(step, tl.int64) * C
        later = left - step * C
        q_rows = q + on * stride_k
        x = dot_rows(q_rows, k, stride_k, stride_k, later, left, key_dim, DTYPE, C, BK)
        row_max, weight_sum = _load_terms(terms, place + on, count, rows, later)
        of_read, dz = _load_terms(terms + 2 * count, place + on, count, rows, later)
        distance = step * C + rows[:, None] - rows[None, :]
        inside = (rows < later)[:, None]
        dp = _of_values(da + on * stride_v, u, stride_v, later, left, value_dim, DTYPE, C, BV)
        ds = _weights(x, factor, (distance > 0) & inside, row_max, weight_sum) * (
            dp - of_read[:, None]
        )
        ds = tl.where((distance == 0) & inside, dz[:, None], ds)
        q_tile = load_rows(q_rows, rows, keys, stride_k, later, key_dim)
        acc = product(tl.trans(ds * scale), q_tile, DTYPE, acc=acc)
    store_rows(dk + (first * heads + head) * key_dim, acc, rows, keys, stride_k, left, key_dim)


def _shape(q: Tensor, v: Tensor, tile: int) -> dict[str, Any]:
    entry = tiles.TABLE["deltaformer", "parallel"][tile]
    BK, BV = (min(max(16, next_power_of_2(x.shape[3])), entry.features) for x in (q, v))
    return {
        "DTYPE": TRITON_DTYPES[q.dtype],
        "C": entry.tokens,
        "BK": BK,
        "BV": BV,
        "num_warps": entry.num_warps,
        "num_stages": entry.num_stages,
    }


def _reads(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, cu_seqlens: Tensor | None,
    scale: float, tile: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """o, u, a and the first two of four terms, of contiguous tensors."""
    batch, tokens, heads, key_dim = q.shape
    longest = check_boundaries("cu_seqlens", cu_seqlens, tokens)
    o = torch.empty_like(v)
    u, a = v.new_empty(2, *v.shape, dtype=torch.float32)
    terms = u.new_empty(4, batch, heads, tokens)
    if o.numel() == 0:
        return o, u, a, terms
    shape = _shape(q, v, tile)
    sequences = cut(batch, tokens, cu_seqlens, shape["C"]).sequences
    grid = (sequences * heads * cdiv(v.shape[3], shape["BV"]),)
    for chunk in range(cdiv(longest, shape["C"])):
        _read[grid](
            q, k, v, beta, u, a, o, terms, cu_seqlens, scale * LOG2E.value, chunk, tokens,
            heads, batch * heads * tokens, key_dim, v.shape[3],
            PACKED=cu_seqlens is not None, **shape,
        )  # fmt: skip
    return o, u, a, terms


def _forward(
    *, q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, cu_seqlens: Tensor | None,
    scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    o, *_ = _reads(*contiguous(q, k, v, beta), cu_seqlens, scale, tile)
    return [o]


def _backward(
    *, q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, cu_seqlens: Tensor | None,
    d0: Tensor, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    q, k, v, beta, do = contiguous(q, k, v, beta, d0)
    batch, tokens, heads, key_dim = q.shape
    value_dim = v.shape[3]
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    dbeta = None if beta is None else torch.empty_like(beta)
    if dv.numel() == 0:
        return [dq, dk, dv, dbeta, None]
    _, u, a, terms = _reads(q, k, v, beta, cu_seqlens, scale, tile)
    shape = _shape(q, v, tile)
    chunks = cut(batch, tokens, cu_seqlens, shape["C"])
    longest = check_boundaries("cu_seqlens", cu_seqlens, tokens)
    packed, count = cu_seqlens is not None, batch * heads * tokens
    factor = scale * LOG2E.value
    du, da = u.new_empty(2, *u.shape)
    grid = (chunks.sequences * heads * cdiv(value_dim, shape["BV"]),)
    for chunk in reversed(range(cdiv(longest, shape["C"]))):
        _send_back[grid](
            q, k, beta, do, da, du, terms, cu_seqlens, factor, chunk, tokens, heads, count,
            key_dim, value_dim, PACKED=packed, **shape,
        )  # fmt: skip
    pad = {"PAD_K": max(16, next_power_of_2(key_dim))}
    where = chunks.sequences, tokens, heads, count
    _by_query[(chunks.count * heads,)](
        q, k, du, do, u, a, da, dq, dbeta, terms, cu_seqlens, scale, factor,
        *where, chunks.count, key_dim, value_dim, PACKED=packed, **shape, **pad,
    )  # fmt: skip
    _by_key[(chunks.count * heads,)](
        q, k, u, da, dk, terms, cu_seqlens, scale, factor, *where, key_dim, value_dim,
        PACKED=packed, **shape, **pad,
    )  # fmt: skip
    return [dq, dk, du.to(v.dtype), dbeta, None]


_deltaformer = differentiable("deltaformer_parallel", _forward, _backward, shapes, outputs=1)


@pairs(
    _deltaformer,
    about="The corrected values are float32. There is a launch for each chunk of 16 or 32 tokens "
    "of the longest sequence.",
)
def deltaformer(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "parallel"] = "auto",
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Attention to values that a delta rule has corrected, `reference.deltaformer`."""
