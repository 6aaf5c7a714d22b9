"""Delta rules token by token: one kernel walks through a sequence with the state in registers.

A program holds all keys of one head and a tile of values: each column of the state is a recurrence
of its own. One kernel serves two rules, with `S' = diag(exp g_t) S_{t-1}`:

    delta       S_t = S' + k_t u_tᵀ                 u_t = β_t (v_t - S'ᵀ k_t)
    DPLR        S_t = S' + b_t r_tᵀ + k_t v_tᵀ      r_t = S_{t-1}ᵀ a_t

Backwards, with `D_t = D + scale · q_t do_tᵀ` where D is what the token after has handed back,

    delta       dk_t = D_t u_t - β_t S' du_t, dv_t = β_t du_t, dβ_t = du_t · (v_t - S'ᵀ k_t)
                where du_t = D_tᵀ k_t, and D' = D_t - β_t k_t du_tᵀ is the gradient of S'
    DPLR        dk_t = D_t v_t, dv_t = D_tᵀ k_t, db_t = D_t r_t, da_t = S_{t-1} dr_t
                where dr_t = D_tᵀ b_t, and D' = D_t is the gradient of S'

dg_t is the sum over the values of `exp(g_t) ∘ S_{t-1} ∘ D'`, and `exp(g_t) ∘ D'` (of DPLR
`+ a_t dr_tᵀ`) is handed back. The states are computed again, from one kept every `tile.tokens`
tokens: the rule cannot be run backwards, as a decay of 0 or a strength of 1 forgets.

Source: Schlag et al., Linear Transformers Are Secretly Fast Weight Programmers, arXiv 2102.11174
    (delta); Peng et al., RWKV-7, arXiv 2503.14456 (DPLR).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import count_sequences
from kernels.primitives.chunks import cut, locate_sequence
from kernels.primitives.decay import gate_flags
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.rows import load_row, store_row
from kernels.primitives.states import blocks_of_state, optional
from kernels.tiles import Entry, cdiv


@triton.jit
def _decayed(
    S, row, g_ptr, key_dim, keys, in_k, USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr
):  # fmt: skip
    """`diag(exp g_t) S`; g_t is one number with USE_HEAD_G."""
    if USE_G:
        S *= tl.exp(load_row(g_ptr, row, key_dim, keys, in_k))[:, None]
    if USE_HEAD_G:
        S *= tl.exp(tl.load(g_ptr + row).to(tl.float32))
    return S


@triton.jit
def _step(
    S, row, k_ptr, v_ptr, g_ptr, beta_ptr, a_ptr, b_ptr,
    key_dim, value_dim, keys, in_k, values, in_v,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, DPLR: tl.constexpr,
):  # fmt: skip
    """S_t from S_{t-1}."""
    k = load_row(k_ptr, row, key_dim, keys, in_k)
    v = load_row(v_ptr, row, value_dim, values, in_v)
    decayed = _decayed(S, row, g_ptr, key_dim, keys, in_k, USE_G, USE_HEAD_G)
    if DPLR:
        r = tl.sum(load_row(a_ptr, row, key_dim, keys, in_k)[:, None] * S, 0)
        b = load_row(b_ptr, row, key_dim, keys, in_k)
        S = decayed + b[:, None] * r[None, :] + k[:, None] * v[None, :]
    else:
        u = tl.load(beta_ptr + row) * (v - tl.sum(k[:, None] * decayed, 0))
        S = decayed + k[:, None] * u[None, :]
    return S


@triton.jit(do_not_specialize=["tokens", "heads"])
def _forward(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, a_ptr, b_ptr, cu_seqlens_ptr, initial_ptr, use_initial,
    o_ptr, final_ptr, store_final, scale, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr,
    DPLR: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program walks the tokens of one sequence with a tile of the values of one head's state, and
    writes o and the final state.
    """
    value_tiles = tl.cdiv(value_dim, BV)
    state = (tl.program_id(0) // value_tiles).to(tl.int64)
    head = state % heads
    first, length, _ = locate_sequence(state // heads, cu_seqlens_ptr, tokens, 1, PACKED)
    keys = tl.arange(0, BK)
    values = (tl.program_id(0) % value_tiles) * BV + tl.arange(0, BV)
    in_k = keys < key_dim
    in_v = values < value_dim
    cells = state * key_dim * value_dim + keys[:, None] * value_dim + values[None, :]
    in_state = in_k[:, None] & in_v[None, :]

    S = tl.load(initial_ptr + cells, mask=in_state & use_initial, other=0.0)
    for t in range(length):
        row = (first + t) * heads + head
        S = _step(
            S, row, k_ptr, v_ptr, g_ptr, beta_ptr, a_ptr, b_ptr,
            key_dim, value_dim, keys, in_k, values, in_v, USE_G, USE_HEAD_G, DPLR,
        )  # fmt: skip
        q = load_row(q_ptr, row, key_dim, keys, in_k)
        o = tl.sum(S * q[:, None], 0) * scale
        store_row(o_ptr, o, row, value_dim, values, in_v)
    tl.store(final_ptr + cells, S, mask=in_state & store_final)


@triton.jit(do_not_specialize=["rows", "tokens", "heads"])
def _backward(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, a_ptr, b_ptr, cu_seqlens_ptr, initial_ptr, use_initial,
    do_ptr, dfinal_ptr, use_dfinal, dq_ptr, dk_ptr, dv_ptr, dg_ptr, dbeta_ptr, da_ptr, db_ptr,
    dinitial_ptr, store_dinitial, segments_ptr, states_ptr,
    scale, rows, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, SEGMENT: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, DPLR: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Each tile of values writes its part of the gradients of what all values share."""
    value_tiles = tl.cdiv(value_dim, BV)
    part = (tl.program_id(0) % value_tiles).to(tl.int64)
    state = (tl.program_id(0) // value_tiles).to(tl.int64)
    head = state % heads
    sequence = state // heads
    first, length, first_segment = locate_sequence(
        sequence, cu_seqlens_ptr, tokens, SEGMENT, PACKED
    )
    keys = tl.arange(0, BK)
    values = part * BV + tl.arange(0, BV)
    in_k = keys < key_dim
    in_v = values < value_dim
    cells = state * key_dim * value_dim + keys[:, None] * value_dim + values[None, :]
    in_state = in_k[:, None] & in_v[None, :]
    # Workspaces are cut by program; all BK · BV cells are written before they are read.
    tile = keys[:, None] * BV + tl.arange(0, BV)[None, :]
    states_ptr += tl.program_id(0).to(tl.int64) * (SEGMENT * BK * BV)
    parts = heads * value_tiles
    segments_ptr += (first_segment * parts + head * value_tiles + part) * BK * BV

    S = tl.load(initial_ptr + cells, mask=in_state & use_initial, other=0.0)
    for t in range(length):
        if t % SEGMENT == 0:
            tl.store(segments_ptr + (t // SEGMENT).to(tl.int64) * parts * BK * BV + tile, S)
        S = _step(
            S, (first + t) * heads + head, k_ptr, v_ptr, g_ptr, beta_ptr, a_ptr, b_ptr,
            key_dim, value_dim, keys, in_k, values, in_v, USE_G, USE_HEAD_G, DPLR,
        )  # fmt: skip

    D = tl.load(dfinal_ptr + cells, mask=in_state & use_dfinal, other=0.0)
    segments = tl.cdiv(length, SEGMENT)
    for from_end in range(segments):
        segment = segments - 1 - from_end
        start = segment * SEGMENT
        stop = tl.minimum(start + SEGMENT, length)
        # A cell may be read by another thread than the one that wrote it.
        tl.debug_barrier()
        S = tl.load(segments_ptr + segment.to(tl.int64) * parts * BK * BV + tile)
        for t in range(start, stop):
            tl.store(states_ptr + (t - start) * BK * BV + tile, S)
            S = _step(
                S, (first + t) * heads + head, k_ptr, v_ptr, g_ptr, beta_ptr, a_ptr, b_ptr,
                key_dim, value_dim, keys, in_k, values, in_v, USE_G, USE_HEAD_G, DPLR,
            )  # fmt: skip
        tl.debug_barrier()
        for from_last in range(stop - start):
            t = stop - 1 - from_last
            row = (first + t) * heads + head
            own = part * rows + row
            q = load_row(q_ptr, row, key_dim, keys, in_k)
            k = load_row(k_ptr, row, key_dim, keys, in_k)
            v = load_row(v_ptr, row, value_dim, values, in_v)
            do = load_row(do_ptr, row, value_dim, values, in_v)
            before = tl.load(states_ptr + (t - start) * BK * BV + tile)
            decayed = _decayed(before, row, g_ptr, key_dim, keys, in_k, USE_G, USE_HEAD_G)
            D += (q * scale)[:, None] * do[None, :]
            if DPLR:
                a = load_row(a_ptr, row, key_dim, keys, in_k)
                b = load_row(b_ptr, row, key_dim, keys, in_k)
                r = tl.sum(a[:, None] * before, 0)
                S = decayed + b[:, None] * r[None, :] + k[:, None] * v[None, :]
                dr = tl.sum(D * b[:, None], 0)
                dk = tl.sum(D * v[None, :], 1)
                dv = tl.sum(D * k[:, None], 0)
                store_row(da_ptr, tl.sum(before * dr[None, :], 1), own, key_dim, keys, in_k)
                store_row(db_ptr, tl.sum(D * r[None, :], 1), own, key_dim, keys, in_k)
            else:
                beta = tl.load(beta_ptr + row)
                lack = v - tl.sum(k[:, None] * decayed, 0)
                S = decayed + k[:, None] * (beta * lack)[None, :]
                du = tl.sum(D * k[:, None], 0)
                dv = beta * du
                dk = tl.sum(D * (beta * lack)[None, :], 1) - tl.sum(decayed * dv[None, :], 1)
                dbeta = tl.sum(du * lack, 0)
                tl.store(dbeta_ptr + own, dbeta)
                D -= k[:, None] * dv[None, :]
            store_row(dq_ptr, tl.sum(S * do[None, :], 1) * scale, own, key_dim, keys, in_k)
            store_row(dk_ptr, dk, own, key_dim, keys, in_k)
            store_row(dv_ptr, dv, row, value_dim, values, in_v)
            D = _decayed(D, row, g_ptr, key_dim, keys, in_k, USE_G, USE_HEAD_G)
            if USE_G:
                store_row(dg_ptr, tl.sum(before * D, 1), own, key_dim, keys, in_k)
            if USE_HEAD_G:
                dg = tl.sum(tl.sum(before * D, 1), 0)
                tl.store(dg_ptr + own, dg)
            if DPLR:
                D += a[:, None] * dr[None, :]
    tl.store(dinitial_ptr + cells, D, mask=in_state & store_dinitial)


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, a: Tensor | None,
    b: Tensor | None, *, scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    tile: Entry, output_final_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Outputs and, if asked for, final states.

    Args:
        q, k: `[B, T, H, K]`; v: `[B, T, H, V]`, of one dtype. Strides are free, what is not
            contiguous is copied.
        g: log decay `[B, T, H, K]` or `[B, T, H]`, in that dtype or float32, or None.
        beta: `[B, T, H]` in that dtype or float32, of a delta rule; None for DPLR.
        a, b: `[B, T, H, K]` of DPLR; None for a delta rule.
        scale, initial_state, cu_seqlens: as in `kernels.linear.chunk.forward`.

    Returns:
        `o [B, T, H, V]` in the dtype of v, `final_state [N, H, K, V]` float32 or None.
    """
    batch, tokens, heads, key_dim, value_dim = *q.shape, v.shape[3]
    sequences = count_sequences(batch, cu_seqlens)
    blocks = blocks_of_state(tile, key_dim, value_dim)
    o = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    final_state = None
    if output_final_state:
        final_state = v.new_empty(sequences, heads, key_dim, value_dim, dtype=torch.float32)
    grid = sequences * heads * cdiv(value_dim, blocks["BV"])
    _forward[(grid,)](
        *contiguous(q, k, v, g, beta, a, b), cu_seqlens, *optional(initial_state, q),
        o, *optional(final_state, q),
        scale, tokens, heads, key_dim, value_dim,
        **blocks, **gate_flags(g), DPLR=a is not None,
        PACKED=cu_seqlens is not None, num_warps=tile.num_warps,
    )  # fmt: skip
    return o, final_state


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, a: Tensor | None,
    b: Tensor | None, *, scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    tile: Entry, do: Tensor, dfinal_state: Tensor | None, keys_dtype: torch.dtype,
    values_dtype: torch.dtype,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of `forward`'s inputs from those of its outputs.

    Args:
        keys_dtype: of dq and dk; float32 where they are summed over heads afterwards.
        values_dtype: of dv, da and db; float32 where a wrapper computes their inputs, see
            `kernels.recurrence.compute`.

    Returns:
        dq, dk, dv; dg, dbeta in the dtypes of their inputs; da, db; dinitial_state float32. None
        where there is no input.
    """
    batch, tokens, heads, key_dim, value_dim = *q.shape, v.shape[3]
    sequences = count_sequences(batch, cu_seqlens)
    tile = tile.of("backward")
    blocks = blocks_of_state(tile, key_dim, value_dim)
    parts = cdiv(value_dim, blocks["BV"])
    inputs = q, k, g, beta, a, b
    dtypes = (
        keys_dtype, keys_dtype, *(None if x is None else x.dtype for x in (g, beta)),
        values_dtype, values_dtype,
    )  # fmt: skip
    shared = [
        None if x is None else empty_parts(parts, x.shape, dtype, x.device)
        for x, dtype in zip(inputs, dtypes, strict=True)
    ]
    dq, dk, dg, dbeta, da, db = shared
    dv = torch.empty(v.shape, dtype=values_dtype, device=v.device)
    dinitial = None
    if initial_state is not None:
        dinitial = v.new_empty(sequences, heads, key_dim, value_dim, dtype=torch.float32)
    grid = sequences * heads * parts
    cells = blocks["BK"] * blocks["BV"]
    count = cut(batch, tokens, cu_seqlens, tile.tokens).count
    segments = v.new_empty(count * heads * parts * cells, dtype=torch.float32)
    states = v.new_empty(grid * tile.tokens * cells, dtype=torch.float32)
    _backward[(grid,)](
        *contiguous(q, k, v, g, beta, a, b), cu_seqlens, *optional(initial_state, q),
        do.contiguous(), *optional(dfinal_state, q),
        dq, dk, dv, dg, dbeta, da, db, *optional(dinitial, q), segments, states,
        scale, batch * tokens * heads, tokens, heads, key_dim, value_dim,
        **blocks, SEGMENT=tile.tokens, **gate_flags(g), DPLR=a is not None,
        PACKED=cu_seqlens is not None, num_warps=tile.num_warps,
    )  # fmt: skip
    dq, dk, dg, dbeta, da, db = (
        None if dx is None else add_parts(dx, dtype)
        for dx, dtype in zip(shared, dtypes, strict=True)
    )
    return dq, dk, dv, dg, dbeta, da, db, dinitial
