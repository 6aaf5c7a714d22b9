"""Gradients of the matrices of one span, see `path_spans`, and of the tokens in it."""

import triton
import triton.language as tl

from kernels.primitives.chunks import locate_chunk
from kernels.primitives.rows import load_rows, store_rows
from kernels.softmax.path_spans import (
    exact,
    load_block,
    load_solution,
    load_strengths,
    locate_block,
    lower,
    overlaps,
    store_block,
)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def by_row(
    q, k, w, z, d, dx, dscores, e_out, de_out, dq, cu_seqlens, scale,
    sequences, tokens, heads, group, key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K], and E and dE [B, T, H, S], of one block of queries."""
    head = tl.program_id(0) % heads
    first, left, _, index, inside = locate_block(
        tl.program_id(0) // heads, cu_seqlens, sequences, tokens, span, C, SPAN, PACKED
    )
    if left <= inside:
        return
    rows = tl.arange(0, C)
    kv_heads = heads // group
    stride = heads * key_dim
    stride_k = kv_heads * key_dim
    row = (first * heads + head) * key_dim
    shared = (first * kv_heads + head // group) * key_dim
    q += row
    dx += row
    dq += row
    k += shared
    w += shared
    z += shared
    d += (index * kv_heads + head // group) * SPAN * SPAN
    pairs = (first * heads + head) * SPAN
    dscores += pairs
    e_out += pairs
    de_out += pairs
    stride_s = tl.cast(heads, tl.int64) * SPAN
    for e in tl.range(0, inside + C, C, disable_licm=True):
        E = overlaps(q, w, inside, e, stride, stride_k, left, key_dim, 0, DTYPE, C, BK)
        store_block(e_out, E, inside, e, stride_s, left, C)
        dE = overlaps(dx, z, inside, e, stride, stride_k, left, key_dim, 0, DTYPE, C, BK)
        for j in tl.range(0, e + C, C, disable_licm=True):
            ds = load_block(dscores, inside, j, stride_s, left, C)
            dE = exact(ds, tl.trans(load_block(d, e, j, SPAN, left, C)), DTYPE, dE)
        store_block(de_out, -scale * dE, inside, e, stride_s, left, C)
    # Wait for the blocks that other threads write.
    tl.debug_barrier()
    for start in tl.range(0, key_dim, BK, disable_licm=True):
        keys = start + tl.arange(0, BK)
        acc = load_rows(dx + inside * stride, rows, keys, stride, left - inside, key_dim)
        for e in tl.range(0, inside + C, C, disable_licm=True):
            k_tile = load_rows(k + e * stride_k, rows, keys, stride_k, left - e, key_dim)
            acc = exact(load_block(dscores, inside, e, stride_s, left, C), k_tile, DTYPE, acc)
        acc *= scale
        for e in tl.range(0, inside + C, C, disable_licm=True):
            w_tile = load_rows(w + e * stride_k, rows, keys, stride_k, left - e, key_dim)
            acc = exact(load_block(de_out, inside, e, stride_s, left, C), w_tile, DTYPE, acc)
        store_rows(dq + inside * stride, acc, rows, keys, stride, left - inside, key_dim)


@triton.jit
def _turned_product(
    matrix, x, first, column, left, kv_head, heads, group, keys, key_dim, span,
    DTYPE: tl.constexpr, SPAN: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Σ matrixᵀ x `[C, BK]` of the heads of a group: C columns of each matrix [B, T, H, S], and a
    slice of x [B, T, H, K]."""
    rows = tl.arange(0, C)
    stride = heads * key_dim
    stride_s = tl.cast(heads, tl.int64) * SPAN
    acc = tl.zeros((C, BK), tl.float32)
    for head in tl.range(kv_head * group, (kv_head + 1) * group, disable_licm=True):
        row = first * heads + head
        for i in tl.range(column, tl.minimum(left, span), C, disable_licm=True):
            x_tile = load_rows(
                x + row * key_dim + i * stride, rows, keys, stride, left - i, key_dim
            )
            block = load_block(matrix + row * SPAN, i, column, stride_s, left, C)
            acc = exact(tl.trans(block), x_tile, DTYPE, acc)
    return acc


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def by_column(
    q, w, z, dx, dscores, e_in, de, dm, dk, dw, dz, cu_seqlens, scale,
    sequences, tokens, heads, group, key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dZ [B, T, G, K] of one block of keys, and the parts of dk and dw through the scores, E and
    M."""
    kv_heads = heads // group
    kv_head = tl.program_id(0) % kv_heads
    first, left, before, index, inside = locate_block(
        tl.program_id(0) // kv_heads, cu_seqlens, sequences, tokens, span, C, SPAN, PACKED
    )
    if left <= inside:
        return
    rows = tl.arange(0, C)
    stride_k = kv_heads * key_dim
    shared = (first * kv_heads + kv_head) * key_dim
    w += shared
    z += shared
    dk += shared
    dw += shared
    dz += shared
    dm += (index * kv_heads + kv_head) * key_dim * key_dim
    crossed = (before > 0) & (left > SPAN)
    here = inside * stride_k
    for start in tl.range(0, key_dim, BK, disable_licm=True):
        keys = start + tl.arange(0, BK)
        acc = _turned_product(
            dscores, q, first, inside, left, kv_head, heads, group, keys, key_dim, span,
            DTYPE, SPAN, C, BK,
        )  # fmt: skip
        store_rows(dk + here, scale * acc, rows, keys, stride_k, left - inside, key_dim)
        acc = _turned_product(
            de, q, first, inside, left, kv_head, heads, group, keys, key_dim, span,
            DTYPE, SPAN, C, BK,
        )  # fmt: skip
        if crossed:
            for at in tl.range(0, key_dim, BK, disable_licm=True):
                along = at + tl.arange(0, BK)
                z_tile = load_rows(z + here, rows, along, stride_k, left - inside, key_dim)
                dm_tile = load_rows(dm, keys, along, key_dim, key_dim, key_dim)
                acc = exact(-z_tile, tl.trans(dm_tile), DTYPE, acc)
        store_rows(dw + here, acc, rows, keys, stride_k, left - inside, key_dim)
        acc = -scale * _turned_product(
            e_in, dx, first, inside, left, kv_head, heads, group, keys, key_dim, span,
            DTYPE, SPAN, C, BK,
        )  # fmt: skip
        if crossed:
            for at in tl.range(0, key_dim, BK, disable_licm=True):
                along = at + tl.arange(0, BK)
                w_tile = load_rows(w + here, rows, along, stride_k, left - inside, key_dim)
                dm_tile = load_rows(dm, along, keys, key_dim, key_dim, key_dim)
                acc = exact(w_tile, -dm_tile, DTYPE, acc)
        store_rows(dz + here, acc, rows, keys, stride_k, left - inside, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "group"])
def by_pair(
    w, dscores, e_in, dk_out, dd, cu_seqlens, scale, sequences, tokens, heads, group,
    key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C rows of dD [spans, G, S, S], from scores and K'."""
    kv_heads = heads // group
    kv_head = tl.program_id(0) % kv_heads
    first, left, _, index, inside = locate_block(
        tl.program_id(0) // kv_heads, cu_seqlens, sequences, tokens, span, C, SPAN, PACKED
    )
    if left <= inside:
        return
    stride_k = kv_heads * key_dim
    w += (first * kv_heads + kv_head) * key_dim
    dk_out += (first * kv_heads + kv_head) * key_dim
    dd += (index * kv_heads + kv_head) * SPAN * SPAN
    stride_s = tl.cast(heads, tl.int64) * SPAN
    count = tl.minimum(left, span)
    for j in tl.range(0, inside + C, C, disable_licm=True):
        acc = -overlaps(w, dk_out, inside, j, stride_k, stride_k, left, key_dim, 0, DTYPE, C, BK)
        for head in tl.range(kv_head * group, (kv_head + 1) * group, disable_licm=True):
            pairs = (first * heads + head) * SPAN
            for i in tl.range(inside, count, C, disable_licm=True):
                E = load_block(e_in + pairs, i, inside, stride_s, left, C)
                ds = load_block(dscores + pairs, i, j, stride_s, left, C) * scale
                acc = exact(-tl.trans(E), ds, DTYPE, acc)
        store_block(dd, acc, inside, j, SPAN, left, C)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def solve_backward(
    k, w, beta, inverse, dz, dd, da, db, dbeta, cu_seqlens, sequences, tokens, heads,
    key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dbeta [B, T, G], and the gradients of A and of tril₋₁(W Kᵀ) [spans, G, S, S], from those of
    Z and D."""
    index = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, _, _ = locate_chunk(index, cu_seqlens, sequences, tokens, SPAN, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    row = first * heads + head
    k += row * key_dim
    w += row * key_dim
    dz += row * key_dim
    beta += row
    dbeta += row
    cell = (index.to(tl.int64) * heads + head) * SPAN * SPAN
    inverse += cell
    dd += cell
    da += cell
    db += cell
    count = tl.minimum(left, span)
    # dT, in the place of dA
    for i in tl.range(0, count, C, disable_licm=True):
        for j in tl.range(0, i + C, C, disable_licm=True):
            dT = overlaps(dz, w, i, j, stride, stride, left, key_dim, 0, DTYPE, C, BK)
            for e in tl.range(0, j + C, C, disable_licm=True):
                of_keys = overlaps(w, k, j, e, stride, stride, left, key_dim, 1, DTYPE, C, BK)
                dT = exact(load_block(dd, i, e, SPAN, left, C), tl.trans(of_keys), DTYPE, dT)
            store_block(da, dT, i, j, SPAN, left, C)
    tl.debug_barrier()
    # Lᵀ dT, in the place of the other
    for i in tl.range(0, count, C, disable_licm=True):
        for j in tl.range(0, i + C, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(i, count, C, disable_licm=True):
                of_block = tl.trans(load_block(inverse, e, i, SPAN, left, C))
                acc = exact(of_block, load_block(da, e, j, SPAN, left, C), DTYPE, acc)
            store_block(db, acc, i, j, SPAN, left, C)
    # The strengths of columns of T
    for j in tl.range(0, count, C, disable_licm=True):
        of_strengths = tl.zeros((C,), tl.float32)
        for i in tl.range(j, count, C, disable_licm=True):
            dT = load_block(da, i, j, SPAN, left, C)
            of_strengths += tl.sum(dT * load_block(inverse, i, j, SPAN, left, C), 0)
        tl.store(dbeta + (j + rows) * heads, of_strengths, mask=j + rows < left)
    tl.debug_barrier()
    # dA, and the strengths of rows of the system
    for i in tl.range(0, count, C, disable_licm=True):
        of_strengths = tl.zeros((C,), tl.float32)
        strengths = load_strengths(beta, i, heads, left, C)
        for j in tl.range(0, i + C, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(0, j + C, C, disable_licm=True):
                T = load_solution(inverse, beta, j, e, heads, left, SPAN, C)
                acc = exact(-load_block(db, i, e, SPAN, left, C), tl.trans(T), DTYPE, acc)
            acc = tl.where(lower(i, j + 1, left, C), acc, 0.0)
            own = overlaps(w, w, i, j, stride, stride, left, key_dim, 1, DTYPE, C, BK)
            of_strengths += tl.sum(acc * own, 1)
            store_block(da, strengths[:, None] * acc, i, j, SPAN, left, C)
        at = dbeta + (i + rows) * heads
        of_strengths += tl.load(at, mask=i + rows < left, other=0.0)
        tl.store(at, of_strengths, mask=i + rows < left)
    tl.debug_barrier()
    for i in tl.range(0, count, C, disable_licm=True):
        for j in tl.range(0, i + C, C, disable_licm=True):
            acc = tl.zeros((C, C), tl.float32)
            for e in tl.range(i, count, C, disable_licm=True):
                T = load_solution(inverse, beta, e, i, heads, left, SPAN, C)
                acc = exact(tl.trans(T), load_block(dd, e, j, SPAN, left, C), DTYPE, acc)
            acc = tl.where(lower(i, j + 1, left, C), acc, 0.0)
            store_block(db, acc, i, j, SPAN, left, C)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def add_system(
    k, w, beta, inverse, d, dz, dk_inner, da, db, dk_more, dw_more, dk, dw, cu_seqlens,
    sequences, tokens, heads,
    key_dim: tl.int32, span: tl.int32,
    PACKED: tl.constexpr, DTYPE: tl.constexpr, SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dk and dw [B, T, G, K] of one block: what they have already, and what they get from Z, K', A
    and tril₋₁(W Kᵀ)."""
    head = tl.program_id(0) % heads
    first, left, _, index, inside = locate_block(
        tl.program_id(0) // heads, cu_seqlens, sequences, tokens, span, C, SPAN, PACKED
    )
    if left <= inside:
        return
    rows = tl.arange(0, C)
    stride = heads * key_dim
    here = ((first + inside) * heads + head) * key_dim
    row = first * heads + head
    k += row * key_dim
    w += row * key_dim
    dz += row * key_dim
    dk_inner += row * key_dim
    beta += row
    cell = (index * heads + head) * SPAN * SPAN
    inverse += cell
    d += cell
    da += cell
    db += cell
    for start in tl.range(0, key_dim, BK, disable_licm=True):
        keys = start + tl.arange(0, BK)
        acc = tl.zeros((C, BK), tl.float32)
        for e in tl.range(inside, tl.minimum(left, span), C, disable_licm=True):
            dz_tile = load_rows(dz + e * stride, rows, keys, stride, left - e, key_dim)
            of_block = tl.trans(load_block(inverse, e, inside, SPAN, left, C))
            acc = exact(of_block, dz_tile, DTYPE, acc)
        acc *= load_strengths(beta, inside, heads, left, C)[:, None]
        acc += load_rows(dw_more + here, rows, keys, stride, left - inside, key_dim)
        for e in tl.range(0, inside + C, C, disable_licm=True):
            inner = load_rows(dk_inner + e * stride, rows, keys, stride, left - e, key_dim)
            acc = exact(-load_block(d, inside, e, SPAN, left, C), inner, DTYPE, acc)
        for e in tl.range(0, inside + C, C, disable_licm=True):
            k_tile = load_rows(k + e * stride, rows, keys, stride, left - e, key_dim)
            acc = exact(load_block(db, inside, e, SPAN, left, C), k_tile, DTYPE, acc)
        for e in tl.range(0, inside + C, C, disable_licm=True):
            w_tile = load_rows(w + e * stride, rows, keys, stride, left - e, key_dim)
            acc = exact(load_block(da, inside, e, SPAN, left, C), w_tile, DTYPE, acc)
        for e in tl.range(inside, tl.minimum(left, span), C, disable_licm=True):
            w_tile = load_rows(w + e * stride, rows, keys, stride, left - e, key_dim)
            acc = exact(tl.trans(load_block(da, e, inside, SPAN, left, C)), w_tile, DTYPE, acc)
        store_rows(dw + here, acc, rows, keys, stride, left - inside, key_dim)
        acc = load_rows(dk_more + here, rows, keys, stride, left - inside, key_dim)
        acc += load_rows(dk_inner + inside * stride, rows, keys, stride, left - inside, key_dim)
        for e in tl.range(inside, tl.minimum(left, span), C, disable_licm=True):
            w_tile = load_rows(w + e * stride, rows, keys, stride, left - e, key_dim)
            acc = exact(tl.trans(load_block(db, e, inside, SPAN, left, C)), w_tile, DTYPE, acc)
        store_rows(dk + here, acc, rows, keys, stride, left - inside, key_dim)
