"""Delta rules in chunks: a triangular system per chunk, and then a linear recurrence.

A delta rule writes what the state lacks. With `S' = diag(exp g_t) S_{t-1}`,

    u_t = β_t (v_t - S'ᵀ k_t),    S_t = S' + k_t u_tᵀ,    o_t = scale · S_tᵀ q_t

so once the rows u_t of a chunk are known, all else is `kernels.linear.chunk` with u for v. Let S be
the state before the chunk, and P_i, R_j sums of gates as there. What a row lacks depends on the
rows before it and on S,

    A_ij = β_i Σ_k k_ik k_jk exp(Σ_{j < t <= i} g_tk)                    (j < i, 0 elsewhere)
    U    = W_v - W_k S,    W_v = (I + A)⁻¹ diag(β) V,    W_k = (I + A)⁻¹ diag(β) (exp(P) ∘ K)

and only the last step waits for S. W_v and W_k are `w_v` and `w_k` below, for all chunks at once.

Backwards, dU is that of the linear recurrence within the chunk and through the state after it, and
the gradient of the state before the chunk gets `-W_kᵀ dU` besides. With `X = diag(β)(exp(P) ∘ K)`,
`Y = diag(β) V` and `dW_k = -dU Sᵀ`,

    dX = (I + A)⁻ᵀ dW_k,    dY = (I + A)⁻ᵀ dU,    dA = -(dX W_kᵀ + dY W_vᵀ) below the diagonal

Nothing is saved for the backward pass but the inputs.

Source: Yang et al., Parallelizing Linear Transformers with the Delta Rule, arXiv 2406.06484,
    section 3 (the system; W_v, W_k are its U, W); Yang et al., Gated Delta Networks, arXiv
    2412.06464, section 3.3 (gates per head); Kimi Linear, arXiv 2510.26692 (per channel).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.linear.chunk import blocks, gradients, outputs, pass_states
from kernels.primitives.chunks import Chunks, cut, locate_chunk
from kernels.primitives.decay import (
    chunk_span,
    chunk_span_transposed,
    decay,
    gate_flags,
    head_decay,
    level_pairs,
    level_span,
    level_span_transposed,
    load_gates,
    load_head_gates,
    pair_decay,
    sum_columns,
    sum_gradients,
)
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows
from kernels.primitives.triangular import inverse_unit_lower
from kernels.tiles import Tile


@triton.jit
def _overlaps(
    k_ptr, g_ptr, rows, heads, left, key_dim,
    C: tl.constexpr, BK: tl.constexpr, LEVELS: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr,
):  # fmt: skip
    """`Σ_k k_ik k_jk exp(Σ_{j < t <= i} g_tk) [C, C]` below the diagonal, 0 elsewhere."""
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    overlaps = tl.zeros([C, C], tl.float32)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        k = load_rows(k_ptr, rows, keys, heads * key_dim, left, key_dim)
        if USE_G:
            g = load_gates(g_ptr, rows, keys, heads * key_dim, left, key_dim)
            for level in tl.range(LEVELS, disable_licm=True):
                X = k.to(tl.float32) * decay(level_span(level, C), g, DTYPE)
                overlaps += tl.where(level_pairs(level, C), product(X, tl.trans(X), DTYPE), 0.0)
        else:
            overlaps += product(k, tl.trans(k), DTYPE)
    if USE_HEAD_G:
        overlaps *= pair_decay(0, load_head_gates(g_ptr, rows, heads, left), C, DTYPE)
    return tl.where(rows[:, None] > rows[None, :], overlaps, 0.0)


@triton.jit
def _from_start(
    g_ptr, rows, keys, heads, left, key_dim,
    C: tl.constexpr, DTYPE: tl.constexpr, USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr,
):  # fmt: skip
    """`exp(P_i)` as a factor of a tile of keys."""
    factor = tl.full([C, 1], 1.0, tl.float32)
    if USE_G:
        g = load_gates(g_ptr, rows, keys, heads * key_dim, left, key_dim)
        factor = decay(chunk_span(0, C), g, DTYPE)
    if USE_HEAD_G:
        g = load_head_gates(g_ptr, rows, heads, left)
        factor = head_decay(chunk_span(0, C), g, DTYPE)[:, None]
    return factor


@triton.jit(do_not_specialize=["tokens", "heads"])
def _prepare(
    k_ptr, v_ptr, g_ptr, beta_ptr, w_k_ptr, w_v_ptr, inverse_ptr, table_ptr,
    tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LEVELS: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program solves the system of one chunk and head: w_k, w_v and the inverse."""
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    head = tl.program_id(0) % heads
    chunk = tl.program_id(0) // heads
    first, left = locate_chunk(chunk, table_ptr, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    token = first * heads + head
    if USE_G:
        g_ptr += token * key_dim
    if USE_HEAD_G:
        g_ptr += token
    k_ptr += token * key_dim
    v_ptr += token * value_dim
    beta = tl.load(beta_ptr + token + rows * heads, mask=rows < left, other=0.0).to(tl.float32)
    A = beta[:, None] * _overlaps(
        k_ptr, g_ptr, rows, heads, left, key_dim, C, BK, LEVELS, USE_G, USE_HEAD_G
    )
    inverse = inverse_unit_lower(A, C)
    store_rows(
        inverse_ptr + (chunk.to(tl.int64) * heads + head) * C * C, inverse, rows, rows, C, C, C
    )
    for start in range(0, value_dim, BV):
        values = start + tl.arange(0, BV)
        v = load_rows(v_ptr, rows, values, heads * value_dim, left, value_dim)
        w_v = product(inverse, beta[:, None] * v.to(tl.float32), DTYPE, FINE_A=True)
        store_rows(
            w_v_ptr + token * value_dim, w_v, rows, values, heads * value_dim, left, value_dim
        )
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        k = load_rows(k_ptr, rows, keys, heads * key_dim, left, key_dim)
        from_start = _from_start(
            g_ptr, rows, keys, heads, left, key_dim, C, DTYPE, USE_G, USE_HEAD_G
        )
        X = beta[:, None] * from_start * k.to(tl.float32)
        w_k = product(inverse, X, DTYPE, FINE_A=True)
        store_rows(w_k_ptr + token * key_dim, w_k, rows, keys, heads * key_dim, left, key_dim)


@triton.jit(do_not_specialize=["tokens", "heads"])
def _prepare_backward(
    k_ptr, v_ptr, g_ptr, beta_ptr, w_k_ptr, w_v_ptr, inverse_ptr, states_ptr, dwritten_ptr,
    dk_part_ptr, dg_part_ptr, dk_ptr, dv_ptr, dg_ptr, dbeta_ptr, table_ptr,
    tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LEVELS: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program turns dU of one chunk and head into dk, dv, dg and dbeta.

    To dk and dg it adds the parts of the linear recurrence; the part of dk is its workspace too.
    """
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    head = tl.program_id(0) % heads
    chunk = tl.program_id(0) // heads
    first, left = locate_chunk(chunk, table_ptr, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    token = first * heads + head
    key_rows = token * key_dim
    value_rows = token * value_dim
    key_stride = heads * key_dim
    value_stride = heads * value_dim
    if USE_G:
        g_ptr += key_rows
    if USE_HEAD_G:
        g_ptr += token
    k_ptr += key_rows
    states_ptr += (chunk.to(tl.int64) * heads + head) * key_dim * value_dim
    inside = rows < left
    beta = tl.load(beta_ptr + token + rows * heads, mask=inside, other=0.0).to(tl.float32)
    inverse = load_rows(
        inverse_ptr + (chunk.to(tl.int64) * heads + head) * C * C, rows, rows, C, C, C
    )
    overlaps = _overlaps(k_ptr, g_ptr, rows, heads, left, key_dim, C, BK, LEVELS, USE_G, USE_HEAD_G)

    dA = tl.zeros([C, C], tl.float32)
    dbeta = tl.zeros([C], tl.float32)
    for start in range(0, value_dim, BV):
        values = start + tl.arange(0, BV)
        v = load_rows(v_ptr + value_rows, rows, values, value_stride, left, value_dim)
        w_v = load_rows(w_v_ptr + value_rows, rows, values, value_stride, left, value_dim)
        du = load_rows(dwritten_ptr + value_rows, rows, values, value_stride, left, value_dim)
        dY = product(tl.trans(inverse), du, DTYPE, FINE_A=True, FINE_B=True)
        dA -= product(dY, tl.trans(w_v), DTYPE, FINE_A=True)
        dbeta += tl.sum(v.to(tl.float32) * dY, 1)
        dv = beta[:, None] * dY
        store_rows(dv_ptr + value_rows, dv, rows, values, value_stride, left, value_dim)
    to_start = tl.zeros([C], tl.float32)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        dW = tl.zeros([C, BK], tl.float32)
        for value_start in range(0, value_dim, BV):
            values = value_start + tl.arange(0, BV)
            du = load_rows(dwritten_ptr + value_rows, rows, values, value_stride, left, value_dim)
            S = load_rows(states_ptr, keys, values, value_dim, key_dim, value_dim)
            dW -= product(du, tl.trans(S), DTYPE, FINE_A=True)
        dX = product(tl.trans(inverse), dW, DTYPE, FINE_A=True, FINE_B=True)
        w_k = load_rows(w_k_ptr + key_rows, rows, keys, key_stride, left, key_dim)
        dA -= product(dX, tl.trans(w_k), DTYPE, FINE_A=True)
        k = load_rows(k_ptr, rows, keys, key_stride, left, key_dim).to(tl.float32)
        dX *= _from_start(g_ptr, rows, keys, heads, left, key_dim, C, DTYPE, USE_G, USE_HEAD_G)
        dbeta += tl.sum(k * dX, 1)
        dX *= beta[:, None]
        to_start += tl.sum(k * dX, 1)
        part = dk_part_ptr + key_rows
        dk = load_rows(part, rows, keys, key_stride, left, key_dim) + dX
        store_rows(part, dk, rows, keys, key_stride, left, key_dim)
        if USE_G:
            part = dg_part_ptr + key_rows
            dg = load_rows(part, rows, keys, key_stride, left, key_dim)
            dg += sum_gradients(chunk_span_transposed(0, C), k * dX, DTYPE)
            store_rows(part, dg, rows, keys, key_stride, left, key_dim)
    # Parts may be read by another thread than the one that wrote them.
    tl.debug_barrier()

    dA = tl.where(rows[:, None] > rows[None, :], dA, 0.0)
    dbeta += tl.sum(dA * overlaps, 1)
    tl.store(dbeta_ptr + token + rows * heads, dbeta.to(dbeta_ptr.dtype.element_ty), mask=inside)
    dA *= beta[:, None]
    if USE_HEAD_G:
        to_query = chunk_span_transposed(0, C)
        straddling = sum_gradients(to_query, dA * overlaps, DTYPE)
        dg = tl.sum(tl.where(chunk_span_transposed(1, C), straddling, 0.0), 1)
        dg += sum_columns(to_query, to_start)
        dg += tl.load(dg_part_ptr + token + rows * heads, mask=inside, other=0.0)
        tl.store(dg_ptr + token + rows * heads, dg.to(dg_ptr.dtype.element_ty), mask=inside)
        dA *= pair_decay(0, load_head_gates(g_ptr, rows, heads, left), C, DTYPE)
    dA += tl.trans(dA)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        k = load_rows(k_ptr, rows, keys, key_stride, left, key_dim)
        dk = load_rows(dk_part_ptr + key_rows, rows, keys, key_stride, left, key_dim)
        if USE_G:
            g = load_gates(g_ptr, rows, keys, key_stride, left, key_dim)
            dg = load_rows(dg_part_ptr + key_rows, rows, keys, key_stride, left, key_dim)
            for level in tl.range(LEVELS, disable_licm=True):
                decayed = decay(level_span(level, C), g, DTYPE)
                pairs = tl.where(level_pairs(level, C), dA, 0.0)
                dx = product(pairs, k.to(tl.float32) * decayed, DTYPE) * decayed
                dk += dx
                dg += sum_gradients(level_span_transposed(level, C), k.to(tl.float32) * dx, DTYPE)
            store_rows(dg_ptr + key_rows, dg, rows, keys, key_stride, left, key_dim)
        else:
            dk += product(dA, k, DTYPE)
        store_rows(dk_ptr + key_rows, dk, rows, keys, key_stride, left, key_dim)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    *,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    tile: Tile,
    output_final_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Outputs and, if asked for, final states.

    Args:
        q, k: `[B, T, H, K]`; v: `[B, T, H, V]`, of one dtype. Strides are free, what is not
            contiguous is copied.
        g: log decay `[B, T, H, K]` or `[B, T, H]`, in that dtype or float32, or None.
        beta: `[B, T, H]` in that dtype or float32.
        scale, initial_state, cu_seqlens: as in `kernels.linear.chunk.forward`.

    Returns:
        `o [B, T, H, V]` in the dtype of v, `final_state [N, H, K, V]` float32 or None.
    """
    q, k, v, g, beta, initial_state = _contiguous(q, k, v, g, beta, initial_state)
    chunks = cut(q.shape[0], q.shape[1], cu_seqlens, tile.tokens)
    w_k, w_v, _ = _system(k, v, g, beta, chunks, tile)
    written = torch.empty_like(w_v)
    states, final = pass_states(
        k, w_v, g, initial_state, chunks,
        factor=1.0, final=output_final_state, reverse=False, tile=tile, delta=(w_k, w_k, written),
    )  # fmt: skip
    o = torch.empty_like(v)
    outputs(q, k, written, g, states, o, chunks, (scale, scale), reverse=False, tile=tile)
    return o, final


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    *,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    tile: Tile,
    do: Tensor,
    dfinal_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor | None]:
    """Gradients of `forward`'s inputs from those of its outputs.

    Returns:
        dq, dk, dv, dg, dbeta in the dtypes of their inputs, dinitial_state float32; dg and
        dinitial_state are None where there is no input.
    """
    q, k, v, g, beta, do = _contiguous(q, k, v, g, beta, do)
    initial_state, dfinal_state = _contiguous(initial_state, dfinal_state)
    chunks = cut(q.shape[0], q.shape[1], cu_seqlens, tile.tokens)
    w_k, w_v, inverse = _system(k, v, g, beta, chunks, tile)
    written = torch.empty_like(w_v)
    states, _ = pass_states(
        k, w_v, g, initial_state, chunks,
        factor=1.0, final=False, reverse=False, tile=tile, delta=(w_k, w_k, written),
    )  # fmt: skip
    dwritten = torch.empty_like(w_v)
    outputs(k, q, do, g, None, dwritten, chunks, (0.0, scale), reverse=True, tile=tile)
    dstates, dinitial = pass_states(
        q, do, g, dfinal_state, chunks,
        factor=scale, final=initial_state is not None, reverse=True, tile=tile,
        delta=(k, w_k, dwritten),
    )  # fmt: skip
    dq, dk_part, dg_part = gradients(
        q, k, written, g, do, states, dstates, chunks, scale=scale, tile=tile, partial=True
    )
    dk, dv, dbeta = torch.empty_like(k), torch.empty_like(v), torch.empty_like(beta)
    dg = None if g is None else torch.empty_like(g)
    heads, key_dim, value_dim = q.shape[2], q.shape[3], v.shape[3]
    narrow = tile.backward_tile()
    BK, BV = blocks(key_dim, value_dim, narrow, q.dtype)
    if chunks.count * heads:
        _prepare_backward[(chunks.count * heads,)](
            k, v, g, beta, w_k, w_v, inverse, states, dwritten,
            dk_part, dg_part, dk, dv, dg, dbeta, chunks.table,
            q.shape[1], heads, key_dim, value_dim,
            C=tile.tokens, BK=BK, BV=BV, LEVELS=tile.tokens.bit_length() - 1,
            **gate_flags(g), PACKED=chunks.table is not None,
            num_warps=narrow.num_warps, num_stages=narrow.num_stages,
        )  # fmt: skip
    return dq, dk, dv, dg, dbeta, dinitial


def _system(
    k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, chunks: Chunks, tile: Tile
) -> tuple[Tensor, Tensor, Tensor]:
    """w_k, w_v and the inverses `[chunks, H, C, C]`; see the top of this file."""
    heads, key_dim, value_dim = k.shape[2], k.shape[3], v.shape[3]
    # A sum of keys may leave the range of float16.
    dtype = torch.bfloat16 if k.dtype == torch.bfloat16 else torch.float32
    w_k, w_v = torch.empty_like(k, dtype=dtype), torch.empty_like(v, dtype=dtype)
    shape = chunks.count, heads, tile.tokens, tile.tokens
    inverse = k.new_empty(shape, dtype=torch.float32)
    BK, BV = blocks(key_dim, value_dim, tile, k.dtype)
    if chunks.count * heads:
        _prepare[(chunks.count * heads,)](
            k, v, g, beta, w_k, w_v, inverse, chunks.table,
            k.shape[1], heads, key_dim, value_dim,
            C=tile.tokens, BK=BK, BV=BV, LEVELS=tile.tokens.bit_length() - 1,
            **gate_flags(g), PACKED=chunks.table is not None,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
    return w_k, w_v, inverse


def _contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(x if x is None else x.contiguous() for x in tensors)
