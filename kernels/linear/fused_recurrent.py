"""The recurrence of linear attention as it is written, token by token, in two kernels.

A program owns a tile `[BK, BV]` of the state of one head of one sequence and walks its tokens with
the tile in registers. Each program stores its part of a sum over the other dim of the state (o, dv,
dgv over K; dq, dk, dg over V); the parts are added afterwards in a fixed order. All arithmetic is
float32 whatever the inputs are.

Backward, with `A_t = exp(g_t) ⊗ exp(gv_t)` and `D_t` the gradient of S_t,

    D_t  = scale · q_t do_t^T + A_{t+1} ∘ D_{t+1},      D_T starts from dfinal_state
    dq_t = scale · S_t do_t,    dk_t = D_t v_t,    dv_t = D_t^T k_t
    dg_t = rowsum(A_t ∘ S_{t-1} ∘ D_t),    dgv_t = colsum(A_t ∘ S_{t-1} ∘ D_t)

The last line needs S_{t-1} while t runs backward. Two shortcuts avoid that and neither is taken:
`dg = reverse_cumsum(q ∘ dq - k ∘ dk)` is a difference of sums over the whole rest of the sequence,
whose rounding remains where a strong gate leaves a gradient of nothing; and the walk back by
`A_t ∘ S_{t-1} = S_t - k_t v_t^T` loses what is small beside the newest token and divides by A_t,
which may be 0. Here S_{t-1} itself is kept: the states before every SEGMENT tokens by a first walk,
those within one segment by a second. dg is then a plain sum of products, as accurate as dk, and 0
where a gate is -inf.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kernels.arguments import count_sequences
from kernels.primitives.chunks import cut, locate_in_batch, locate_sequence
from kernels.primitives.decay import decay_by, gate_flags
from kernels.primitives.layout import dense_rows, outer_strides
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.rows import store_row
from kernels.primitives.states import optional
from kernels.tiles import Entry, Tile, cdiv, next_power_of_2


@triton.jit
def _token(step, length, REVERSE: tl.constexpr):
    """The token of a sequence (int64) that the walk comes to at a step."""
    return (length - 1 - step if REVERSE else step).to(tl.int64)


@triton.jit
def _row(ptr, t, stride, cols, inside):
    """Row t of a sequence in float32, 0 outside."""
    return tl.load(ptr + t * stride + cols, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _decay(
    S, t, g_ptr, g_stride, cols_k, in_k, gv_ptr, gv_stride, cols_v, in_v,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, USE_GV: tl.constexpr,
):  # fmt: skip
    """`diag(exp g_t) S diag(exp gv_t)`; g_t is one number with USE_HEAD_G."""
    if USE_G:
        S *= tl.exp(_row(g_ptr, t, g_stride, cols_k, in_k))[:, None]
    elif USE_HEAD_G:
        S = decay_by(S, tl.load(g_ptr + t * g_stride).to(tl.float32))
    if USE_GV:
        S *= tl.exp(_row(gv_ptr, t, gv_stride, cols_v, in_v))[None, :]
    return S


@triton.jit
def _step(
    S, t, k_ptr, k_stride, v_ptr, v_stride, g_ptr, g_stride, gv_ptr, gv_stride,
    cols_k, in_k, cols_v, in_v,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, USE_GV: tl.constexpr,
):  # fmt: skip
    """S_t from S_{t-1}."""
    k = _row(k_ptr, t, k_stride, cols_k, in_k)
    v = _row(v_ptr, t, v_stride, cols_v, in_v)
    S = _decay(
        S, t, g_ptr, g_stride, cols_k, in_k, gv_ptr, gv_stride, cols_v, in_v,
        USE_G, USE_HEAD_G, USE_GV,
    )  # fmt: skip
    return S + k[:, None] * v[None, :]


@triton.jit(do_not_specialize=["rows", "tokens", "heads"])
def _forward(
    q_ptr, k_ptr, v_ptr, g_ptr, gv_ptr, cu_seqlens_ptr, initial_ptr, use_initial,
    o_ptr, final_ptr, store_final,
    scale, rows, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    v_stride_b, v_stride_t, v_stride_h, g_stride_b, g_stride_t, g_stride_h,
    gv_stride_b, gv_stride_t, gv_stride_h,
    BK: tl.constexpr, BV: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, USE_GV: tl.constexpr,
    REVERSE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program walks the tokens of one sequence with a tile of the state of one head, and writes
    the part of o from its keys, and the final state.
    """
    num_k = tl.cdiv(key_dim, BK)
    num_v = tl.cdiv(value_dim, BV)
    program = tl.program_id(0)
    part_k = program // num_v % num_k
    state = (program // (num_v * num_k)).to(tl.int64)
    head = state % heads
    batch, start, length = locate_in_batch(state // heads, cu_seqlens_ptr, tokens, PACKED)
    # The pointers have the place of the tile: the compiler joins loads of columns that it knows.
    first_k = part_k * BK
    first_v = (program % num_v) * BV
    cols_k = tl.arange(0, BK)
    cols_v = tl.arange(0, BV)
    in_k = cols_k < key_dim - first_k
    in_v = cols_v < value_dim - first_v
    in_state = in_k[:, None] & in_v[None, :]
    cell = cols_k[:, None] * value_dim + cols_v[None, :]
    first_cell = (state * key_dim + first_k) * value_dim + first_v

    q_ptr += batch * q_stride_b + start * q_stride_t + head * q_stride_h + first_k
    k_ptr += batch * k_stride_b + start * k_stride_t + head * k_stride_h + first_k
    v_ptr += batch * v_stride_b + start * v_stride_t + head * v_stride_h + first_v
    if USE_G or USE_HEAD_G:
        g_ptr += batch * g_stride_b + start * g_stride_t + head * g_stride_h
    if USE_G:
        g_ptr += first_k
    if USE_GV:
        gv_ptr += batch * gv_stride_b + start * gv_stride_t + head * gv_stride_h + first_v
    o_ptr += first_v
    first_token = batch * tokens + start

    S = tl.load(initial_ptr + first_cell + cell, mask=in_state & use_initial, other=0.0)
    for step in range(length):
        t = _token(step, length, REVERSE)
        q = _row(q_ptr, t, q_stride_t, cols_k, in_k)
        S = _step(
            S, t, k_ptr, k_stride_t, v_ptr, v_stride_t, g_ptr, g_stride_t, gv_ptr, gv_stride_t,
            cols_k, in_k, cols_v, in_v, USE_G, USE_HEAD_G, USE_GV,
        )  # fmt: skip
        o = tl.sum(S * q[:, None], axis=0) * scale
        row = part_k.to(tl.int64) * rows + (first_token + t) * heads + head
        store_row(o_ptr, o, row, value_dim, cols_v, in_v)
    tl.store(final_ptr + first_cell + cell, S, mask=in_state & store_final)


@triton.jit(do_not_specialize=["rows", "tokens", "heads"])
def _backward(
    q_ptr, k_ptr, v_ptr, g_ptr, gv_ptr, cu_seqlens_ptr, initial_ptr, use_initial,
    do_ptr, dfinal_ptr, use_dfinal, dq_ptr, dk_ptr, dv_ptr, dg_ptr, dgv_ptr,
    dinitial_ptr, store_dinitial, segments_ptr, states_ptr,
    scale, rows, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    v_stride_b, v_stride_t, v_stride_h, g_stride_b, g_stride_t, g_stride_h,
    gv_stride_b, gv_stride_t, gv_stride_h, do_stride_b, do_stride_t, do_stride_h,
    BK: tl.constexpr, BV: tl.constexpr, SEGMENT: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, USE_GV: tl.constexpr,
    REVERSE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program walks one sequence twice with a tile of the state of one head: to the last token
    for dq, and back with D, the gradient of the state, for dk, dv, dg and dgv. It writes the part
    of each from its keys or values.

    A gate needs the state before its token. The first walk keeps every SEGMENT-th state in
    `segments`; before it walks a segment back, a program computes the others again, into `states`.
    """
    num_k = tl.cdiv(key_dim, BK)
    num_v = tl.cdiv(value_dim, BV)
    program = tl.program_id(0)
    part_v = program % num_v
    part_k = program // num_v % num_k
    state = (program // (num_v * num_k)).to(tl.int64)
    head = state % heads
    batch, start, length = locate_in_batch(state // heads, cu_seqlens_ptr, tokens, PACKED)
    first_k = part_k * BK
    first_v = part_v * BV
    cols_k = tl.arange(0, BK)
    cols_v = tl.arange(0, BV)
    in_k = cols_k < key_dim - first_k
    in_v = cols_v < value_dim - first_v
    in_state = in_k[:, None] & in_v[None, :]
    cell = cols_k[:, None] * value_dim + cols_v[None, :]
    first_cell = (state * key_dim + first_k) * value_dim + first_v
    GATED: tl.constexpr = USE_G or USE_HEAD_G or USE_GV

    if GATED:
        # Workspaces are cut by program; all BK · BV cells are written before they are read.
        tile = tl.arange(0, BK)[:, None] * BV + tl.arange(0, BV)[None, :]
        states_ptr += program.to(tl.int64) * (SEGMENT * BK * BV)
        _, _, first_segment = locate_sequence(
            state // heads, cu_seqlens_ptr, tokens, SEGMENT, PACKED
        )
        parts = heads * num_k * num_v
        segments_ptr += (first_segment * parts + program % parts) * BK * BV

    q_ptr += batch * q_stride_b + start * q_stride_t + head * q_stride_h + first_k
    k_ptr += batch * k_stride_b + start * k_stride_t + head * k_stride_h + first_k
    v_ptr += batch * v_stride_b + start * v_stride_t + head * v_stride_h + first_v
    if USE_G or USE_HEAD_G:
        g_ptr += batch * g_stride_b + start * g_stride_t + head * g_stride_h
    if USE_G:
        g_ptr += first_k
    if USE_GV:
        gv_ptr += batch * gv_stride_b + start * gv_stride_t + head * gv_stride_h + first_v
    do_ptr += batch * do_stride_b + start * do_stride_t + head * do_stride_h + first_v
    dq_ptr += first_k
    dk_ptr += first_k
    dv_ptr += first_v
    if USE_G:
        dg_ptr += first_k
    if USE_GV:
        dgv_ptr += first_v
    first_token = batch * tokens + start

    S = tl.load(initial_ptr + first_cell + cell, mask=in_state & use_initial, other=0.0)
    for step in range(length):
        if GATED:  # noqa: SIM102 (one test is made by the compiler)
            if step % SEGMENT == 0:
                tl.store(segments_ptr + (step // SEGMENT).to(tl.int64) * parts * BK * BV + tile, S)
        t = _token(step, length, REVERSE)
        do = _row(do_ptr, t, do_stride_t, cols_v, in_v)
        S = _step(
            S, t, k_ptr, k_stride_t, v_ptr, v_stride_t, g_ptr, g_stride_t, gv_ptr, gv_stride_t,
            cols_k, in_k, cols_v, in_v, USE_G, USE_HEAD_G, USE_GV,
        )  # fmt: skip
        dq = tl.sum(S * do[None, :], axis=1) * scale
        row = part_v.to(tl.int64) * rows + (first_token + t) * heads + head
        store_row(dq_ptr, dq, row, key_dim, cols_k, in_k)

    D = tl.load(dfinal_ptr + first_cell + cell, mask=in_state & use_dfinal, other=0.0)
    num_segments = tl.cdiv(length, SEGMENT)
    for from_end in range(num_segments):
        segment = num_segments - 1 - from_end
        first = segment * SEGMENT
        last = tl.minimum(first + SEGMENT, length)
        if GATED:
            # A cell may be read by another thread than the one that wrote it.
            tl.debug_barrier()
            S = tl.load(segments_ptr + segment.to(tl.int64) * parts * BK * BV + tile)
            for again in range(first, last):
                tl.store(states_ptr + (again - first) * BK * BV + tile, S)
                S = _step(
                    S, _token(again, length, REVERSE), k_ptr, k_stride_t, v_ptr, v_stride_t,
                    g_ptr, g_stride_t, gv_ptr, gv_stride_t,
                    cols_k, in_k, cols_v, in_v, USE_G, USE_HEAD_G, USE_GV,
                )  # fmt: skip
            tl.debug_barrier()
        for from_last in range(last - first):
            back = last - 1 - from_last
            t = _token(back, length, REVERSE)
            q = _row(q_ptr, t, q_stride_t, cols_k, in_k)
            k = _row(k_ptr, t, k_stride_t, cols_k, in_k)
            v = _row(v_ptr, t, v_stride_t, cols_v, in_v)
            do = _row(do_ptr, t, do_stride_t, cols_v, in_v)
            D += (q * scale)[:, None] * do[None, :]
            row_k = part_v.to(tl.int64) * rows + (first_token + t) * heads + head
            row_v = part_k.to(tl.int64) * rows + (first_token + t) * heads + head
            store_row(dk_ptr, tl.sum(D * v[None, :], axis=1), row_k, key_dim, cols_k, in_k)
            store_row(dv_ptr, tl.sum(D * k[:, None], axis=0), row_v, value_dim, cols_v, in_v)
            D = _decay(
                D, t, g_ptr, g_stride_t, cols_k, in_k, gv_ptr, gv_stride_t, cols_v, in_v,
                USE_G, USE_HEAD_G, USE_GV,
            )  # fmt: skip
            if GATED:
                # D is now A_t ∘ D_t, also what the token before is handed.
                before = tl.load(states_ptr + (back - first) * BK * BV + tile)
                if USE_G:
                    dg = tl.sum(before * D, axis=1)
                    store_row(dg_ptr, dg, row_k, key_dim, cols_k, in_k)
                if USE_HEAD_G:
                    dg = tl.sum(tl.sum(before * D, axis=1), axis=0)
                    row = (part_k * num_v + part_v).to(tl.int64) * rows
                    row += (first_token + t) * heads + head
                    tl.store(dg_ptr + row, dg)
                if USE_GV:
                    dgv = tl.sum(before * D, axis=0)
                    store_row(dgv_ptr, dgv, row_v, value_dim, cols_v, in_v)
    tl.store(dinitial_ptr + first_cell + cell, D, mask=in_state & store_dinitial)


def forward(
    q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None, gv: Float[Tensor, "B T H V"] | None, *, scale: float,
    initial_state: Float[Tensor, "N H K V"] | None, cu_seqlens: Int[Tensor, " N+1"] | None,
    tile: Entry, output_final_state: bool, out_dtype: torch.dtype, reverse: bool,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:  # fmt: skip
    """See `kernels.linear`; every mode has this function."""
    batch, tokens, heads, key_dim, value_dim = *q.shape, v.shape[-1]
    sequences = count_sequences(batch, cu_seqlens)
    BK, BV = _width(key_dim, tile), _width(value_dim, tile)
    num_k, num_v = cdiv(key_dim, BK), cdiv(value_dim, BV)
    o = empty_parts(num_k, (batch, tokens, heads, value_dim), out_dtype, q.device)
    final_state = None
    if output_final_state:
        final_state = torch.empty(
            sequences, heads, key_dim, value_dim, dtype=torch.float32, device=q.device
        )
    rows = dense_rows(q, k, v, g, gv)
    _forward[(sequences * heads * num_k * num_v,)](
        *rows, cu_seqlens, *optional(initial_state, q), o, *optional(final_state, q),
        scale, batch * tokens * heads, tokens, heads, key_dim, value_dim,
        *outer_strides(*rows),
        BK=BK,
        BV=BV,
        **gate_flags(g),
        USE_GV=gv is not None,
        REVERSE=reverse,
        PACKED=cu_seqlens is not None,
        num_warps=tile.num_warps,
    )  # fmt: skip
    return add_parts(o, out_dtype), final_state


def backward(
    q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None, gv: Float[Tensor, "B T H V"] | None, *, scale: float,
    initial_state: Float[Tensor, "N H K V"] | None, cu_seqlens: Int[Tensor, " N+1"] | None,
    tile: Entry, do: Float[Tensor, "B T H V"], dfinal_state: Float[Tensor, "N H K V"] | None,
    keys_dtype: torch.dtype, values_dtype: torch.dtype, reverse: bool,
) -> tuple[
    Float[Tensor, "B T H K"],
    Float[Tensor, "B T H K"],
    Float[Tensor, "B T H V"],
    Float[Tensor, "B T H K"] | None,
    Float[Tensor, "B T H V"] | None,
    Float[Tensor, "N H K V"] | None,
]:  # fmt: skip
    """See `kernels.linear`; every mode has this function."""
    batch, tokens, heads, key_dim, value_dim = *q.shape, v.shape[-1]
    sequences = count_sequences(batch, cu_seqlens)
    tile = tile.of("backward")
    BK, BV = _width(key_dim, tile), _width(value_dim, tile)
    num_k, num_v = cdiv(key_dim, BK), cdiv(value_dim, BV)
    programs = sequences * heads * num_k * num_v
    dq, dk = (empty_parts(num_v, x.shape, keys_dtype, x.device) for x in (q, k))
    dv = empty_parts(num_k, v.shape, values_dtype, v.device)
    dg = None
    if g is not None:
        dg = empty_parts(num_v if g.dim() == 4 else num_k * num_v, g.shape, g.dtype, g.device)
    dgv = None if gv is None else empty_parts(num_k, gv.shape, gv.dtype, gv.device)
    dinitial_state = None
    if initial_state is not None:
        dinitial_state = torch.empty_like(initial_state, memory_format=torch.contiguous_format)
    segments = states = None
    if g is not None or gv is not None:
        count = cut(batch, tokens, cu_seqlens, tile.tokens).count
        workspace = {"dtype": torch.float32, "device": q.device}
        segments = torch.empty(count * heads * num_k * num_v * BK * BV, **workspace)
        states = torch.empty(programs * tile.tokens * BK * BV, **workspace)
    *rows, do = dense_rows(q, k, v, g, gv, do)
    _backward[(programs,)](
        *rows, cu_seqlens, *optional(initial_state, q),
        do, *optional(dfinal_state, q), dq, dk, dv, dg, dgv,
        *optional(dinitial_state, q), segments, states,
        scale, batch * tokens * heads, tokens, heads, key_dim, value_dim,
        *outer_strides(*rows, do),
        BK=BK,
        BV=BV,
        SEGMENT=tile.tokens,
        **gate_flags(g),
        USE_GV=gv is not None,
        REVERSE=reverse,
        PACKED=cu_seqlens is not None,
        num_warps=tile.num_warps,
    )  # fmt: skip
    return (
        add_parts(dq, keys_dtype),
        add_parts(dk, keys_dtype),
        add_parts(dv, values_dtype),
        None if g is None else add_parts(dg, g.dtype),
        None if gv is None else add_parts(dgv, gv.dtype),
        dinitial_state,
    )


def _width(dim: int, tile: Tile) -> int:
    """The width of a tile of the state along K or V."""
    return min(tile.features, max(16, next_power_of_2(dim)))
