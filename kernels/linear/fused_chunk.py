"""Linear attention, or with a gate per head: one kernel walks through the chunks with the state in
registers.

    o_i = scale · q_iᵀ (S + Σ_{j <= i} k_j v_jᵀ)

Without gates the gradients are the same sum with the roles exchanged, forwards or in reverse:
one kernel does all four (dS_T is the gradient of the final state, S_0 the initial state).

    o_i  = scale · q_iᵀ  (S_0   + Σ_{j <= i} k_j v_jᵀ)
    dq_i = scale · do_iᵀ (S_0ᵀ  + Σ_{j <= i} v_j k_jᵀ)
    dv_j =         k_jᵀ  (dS_T  + scale · Σ_{i >= j} q_i do_iᵀ)         and dS_0 is its last state
    dk_j =         v_jᵀ  (dS_Tᵀ + scale · Σ_{i >= j} do_i q_iᵀ)

Each has the scale once: on what is read out, or on what is written into the state, next to a state
from outside that has it already. With gates the gradients are those of `chunk`: that of a gate
wants states and their gradients side by side, see `primitives.decay`.

Source: Yang et al., arXiv 2312.06635, section 4 (the form without materialised states).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import count_sequences
from kernels.linear import chunk
from kernels.linear.tiles import blocks, tile_of
from kernels.primitives.chunks import locate_sequence
from kernels.primitives.decay import decay_of_chunk, head_decay, load_head_gates, pair_decay
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.product import TRITON_DTYPES, product
from kernels.primitives.rows import load_rows, store_rows
from kernels.primitives.states import locate_tile, optional
from kernels.tiles import Entry, cdiv


@triton.jit(do_not_specialize=["rows_in_all", "tokens", "heads"])
def _walk(
    q_ptr, k_ptr, v_ptr, g_ptr, initial_ptr, use_initial, out_ptr, final_ptr, store_final,
    cu_seqlens_ptr,
    read_factor, write_factor, rows_in_all, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DTYPE: tl.constexpr,
    USE_HEAD_G: tl.constexpr, TRANSPOSED: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program computes `read_factor · q_iᵀ (initial + write_factor · Σ_j k_j v_jᵀ)` for one tile
    of keys and one of values, through one sequence of one head; j <= i, or j >= i in reverse.

    With more than one tile of keys, `out` holds one part per tile, to be summed. TRANSPOSED states
    lie in memory as `[V, K]`. Gates decay a walk forwards.
    """
    key_tiles, value_tiles = tl.cdiv(key_dim, BK), tl.cdiv(value_dim, BV)
    key_tile, value_tile, head, sequence = locate_tile(heads, key_tiles, value_tiles)
    keys = key_tile * BK + tl.arange(0, BK)
    values = value_tile * BV + tl.arange(0, BV)
    first, length, _ = locate_sequence(sequence, cu_seqlens_ptr, tokens, C, PACKED)
    rows = tl.arange(0, C)
    q_ptr += (first * heads + head) * key_dim
    k_ptr += (first * heads + head) * key_dim
    v_ptr += (first * heads + head) * value_dim
    if USE_HEAD_G:
        g_ptr += first * heads + head
    out_ptr += ((key_tile.to(tl.int64) * rows_in_all + first) * heads + head) * value_dim
    state = (sequence.to(tl.int64) * heads + head) * key_dim * value_dim
    if TRANSPOSED:
        cells = keys[:, None] + values[None, :] * key_dim
    else:
        cells = keys[:, None] * value_dim + values[None, :]
    inside = (keys[:, None] < key_dim) & (values[None, :] < value_dim)

    S = tl.load(initial_ptr + state + cells, mask=inside & use_initial, other=0.0)
    seen = rows[None, :] >= rows[:, None] if REVERSE else rows[None, :] <= rows[:, None]
    chunks = tl.cdiv(length, C)
    for step in range(chunks):
        if REVERSE:
            start = (chunks - 1 - step).to(tl.int64) * C
        else:
            start = step.to(tl.int64) * C
        left = (length - start).to(tl.int32)
        key_start = start * heads * key_dim
        value_start = start * heads * value_dim
        q = load_rows(q_ptr + key_start, rows, keys, heads * key_dim, left, key_dim)
        k = load_rows(k_ptr + key_start, rows, keys, heads * key_dim, left, key_dim)
        v = load_rows(v_ptr + value_start, rows, values, heads * value_dim, left, value_dim)
        # One of q, k, v is do in the backward pass, which may be float32.
        A = product(q, tl.trans(k), DTYPE, FINE_A=True, FINE_B=True)
        A = tl.where(seen, A, 0.0) * write_factor
        # Before the outputs take registers.
        if USE_HEAD_G:
            g = load_head_gates(g_ptr + start * heads, rows, heads, left)
            A *= pair_decay(0, g, C, DTYPE)
        out = product(q, S, DTYPE, FINE_A=True)
        if USE_HEAD_G:
            out *= head_decay(0, g, DTYPE)[:, None]
            S *= decay_of_chunk(g, DTYPE)
        out += product(A, v, DTYPE, FINE_B=True)
        store_rows(
            out_ptr + value_start,
            out * read_factor,
            rows,
            values,
            heads * value_dim,
            left,
            value_dim,
        )
        if USE_HEAD_G:
            v *= head_decay(1, g, DTYPE)[:, None] * write_factor
            S = product(tl.trans(k), v, DTYPE, acc=S)
        else:
            S += product(tl.trans(k), v, DTYPE, FINE_A=True, FINE_B=True) * write_factor
    # Said anew: a mask that is kept through the loop takes registers.
    final_rows = tl.where(store_final, key_dim, 0)
    inside = (keys[:, None] < final_rows) & (values[None, :] < value_dim)
    tl.store(final_ptr + state + cells, S, mask=inside)


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, *, scale: float,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, tile: Entry, output_final_state: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Outputs and, if asked for, final states; arguments and returns as in `chunk.forward`.

    Gates are of a head, `[B, T, H]`, or None.
    """
    return _run(
        q, k, v, initial_state, cu_seqlens, tile, v.dtype, out_dtype,
        g=g, read_factor=scale, final=output_final_state,
    )  # fmt: skip


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, *, scale: float,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, tile: Entry, do: Tensor,
    dfinal_state: Tensor | None, keys_dtype: torch.dtype, values_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of `forward`'s inputs; arguments and returns as in `chunk.backward`."""
    if g is not None:
        return chunk.backward(
            q, k, v, g,
            scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens, tile=tile,
            do=do, dfinal_state=dfinal_state, keys_dtype=keys_dtype, values_dtype=values_dtype,
        )  # fmt: skip
    q, k, v, do = contiguous(q, k, v, do)
    dtype = q.dtype
    dq, _ = _run(
        do, v, k, initial_state, cu_seqlens, tile, dtype, keys_dtype,
        read_factor=scale, transposed=True,
    )  # fmt: skip
    dk, _ = _run(
        v, do, q, dfinal_state, cu_seqlens, tile, dtype, keys_dtype,
        write_factor=scale, transposed=True, reverse=True,
    )  # fmt: skip
    dv, dinitial = _run(
        k, q, do, dfinal_state, cu_seqlens, tile, dtype, values_dtype,
        write_factor=scale, reverse=True, final=initial_state is not None,
    )  # fmt: skip
    return dq, dk, dv, None, dinitial


def _run(
    q: Tensor, k: Tensor, v: Tensor, initial: Tensor | None, cu_seqlens: Tensor | None, tile: Entry,
    dtype: torch.dtype, out_dtype: torch.dtype, *, g: Tensor | None = None,
    read_factor: float = 1.0, write_factor: float = 1.0, final: bool = False,
    transposed: bool = False, reverse: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The sums of one walk in `out_dtype`, and its last state if `final`; see `_walk`.

    Args:
        dtype: of the operands of products.
    """
    q, k, v, g = contiguous(q, k, v, g)
    batch, tokens, heads, key_dim = k.shape
    value_dim = v.shape[3]
    sequences = count_sequences(batch, cu_seqlens)
    own = tile_of("walk", tile, key_dim, value_dim)
    BK, BV = blocks(key_dim, value_dim, own, dtype)
    parts = cdiv(key_dim, BK)
    shape = batch, tokens, heads, value_dim
    out = empty_parts(parts, shape, out_dtype, v.device)
    last = None
    if final:
        last = v.new_empty(sequences, heads, key_dim, value_dim, dtype=torch.float32)
    grid = sequences * heads * parts * cdiv(value_dim, BV)
    _walk[(grid,)](
        q, k, v, g, *optional(initial, q), out, *optional(last, q), cu_seqlens,
        read_factor, write_factor, batch * tokens, tokens, heads, key_dim, value_dim,
        C=tile.tokens, BK=BK, BV=BV,
        DTYPE=TRITON_DTYPES[dtype], USE_HEAD_G=g is not None,
        TRANSPOSED=transposed, REVERSE=reverse, PACKED=cu_seqlens is not None,
        num_warps=own.num_warps, num_stages=own.num_stages,
    )  # fmt: skip
    return add_parts(out, out_dtype), last
