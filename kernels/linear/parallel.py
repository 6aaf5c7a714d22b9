"""Linear attention with a gate per head, all pairs of tokens: no state between queries and keys.

    o_i = scale · Σ_{j <= i} (q_i · k_j) exp(Σ_{j < t <= i} g_t) v_j
        + scale · exp(Σ_{t <= i} g_t) S_0ᵀ q_i

A program walks from its queries to the left, chunk by chunk, and multiplies the decays of the
chunks that it has passed. A pair in different chunks decays by three factors, from the key to the
end of its chunk, over the chunks between, and to the query, none of which is above 1. The work
grows with the square of the tokens; for short sequences there is little to start up.

The gradients are those of `chunk`, and so is the final state.

Source: Dao and Gu, Transformers are SSMs, arXiv 2405.21060, section 5 (the quadratic mode).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.linear import chunk
from kernels.linear.channel_gates import Rows
from kernels.linear.chunk import pass_states
from kernels.linear.tiles import blocks
from kernels.primitives.chunks import cut, locate_chunk
from kernels.primitives.decay import (
    decay_of_chunk,
    gate_flags,
    head_decay,
    load_head_gates,
    pair_decay,
)
from kernels.primitives.layout import contiguous
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows
from kernels.tiles import Entry, cdiv

backward = chunk.backward


@triton.jit
def _scores(
    q_ptr, k_ptr, rows, stride, left_q, left_k, key_dim, C: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """`q kᵀ [C, C]` of the rows from two places on."""
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    scores = tl.zeros([C, C], tl.float32)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        q = load_rows(q_ptr, rows, keys, stride, left_q, key_dim)
        k = load_rows(k_ptr, rows, keys, stride, left_k, key_dim)
        scores += product(q, tl.trans(k), DTYPE)
    return scores


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _all_pairs(
    q_ptr, k_ptr, v_ptr, g_ptr, initial_ptr, o_ptr, cu_seqlens_ptr,
    scale, sequences, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    USE_HEAD_G: tl.constexpr, USE_INITIAL: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes a tile of o for one chunk and head."""
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    value_tiles = tl.cdiv(value_dim, BV)
    program = tl.program_id(0)
    values = (program % value_tiles) * BV + tl.arange(0, BV)
    head = program // value_tiles % heads
    chunk = program // (value_tiles * heads)
    first, left, sequence, before = locate_chunk(
        chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED
    )
    if left <= 0:
        return
    rows = tl.arange(0, C)
    key_stride = heads * key_dim
    value_stride = heads * value_dim
    q_ptr += (first * heads + head) * key_dim
    k_ptr += (first * heads + head) * key_dim
    v_ptr += (first * heads + head) * value_dim
    if USE_HEAD_G:
        g_ptr += first * heads + head

    A = _scores(q_ptr, k_ptr, rows, key_stride, left, left, key_dim, C, BK)
    A = tl.where(rows[None, :] <= rows[:, None], A, 0.0)
    if USE_HEAD_G:
        g = load_head_gates(g_ptr, rows, heads, left)
        A *= pair_decay(0, g, C, DTYPE)
        from_start = head_decay(0, g, DTYPE)
    v = load_rows(v_ptr, rows, values, value_stride, left, value_dim)
    near = product(A, v, DTYPE)

    far = tl.zeros([C, BV], tl.float32)
    passed = 1.0
    for back in range(1, before // C + 1):
        start = -back.to(tl.int64) * C
        A = _scores(
            q_ptr, k_ptr + start * key_stride, rows, key_stride, left, C, key_dim, C, BK
        )  # fmt: skip
        if USE_HEAD_G:
            g = load_head_gates(g_ptr + start * heads, rows, heads, C)
            A *= (head_decay(1, g, DTYPE) * passed)[None, :]
            passed *= decay_of_chunk(g, DTYPE)
        v = load_rows(v_ptr + start * value_stride, rows, values, value_stride, C, value_dim)
        far += product(A, v, DTYPE)
    if USE_INITIAL:
        initial_ptr += (sequence * heads + head) * key_dim * value_dim
        for start in range(0, key_dim, BK):
            keys = start + tl.arange(0, BK)
            q = load_rows(q_ptr, rows, keys, key_stride, left, key_dim)
            S = load_rows(initial_ptr, keys, values, value_dim, key_dim, value_dim)
            far += product(q, S, DTYPE, FINE_B=True) * passed
    if USE_HEAD_G:
        far *= from_start[:, None]
    o_ptr += (first * heads + head) * value_dim
    store_rows(o_ptr, (near + far) * scale, rows, values, value_stride, left, value_dim)


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, *, scale: float,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, tile: Entry, output_final_state: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Outputs and, if asked for, final states; arguments and returns as in `chunk.forward`.

    Gates are of a head, `[B, T, H]`, or None.
    """
    q, k, v, g, initial = contiguous(q, k, v, g, initial_state)
    batch, tokens, heads, key_dim = q.shape
    value_dim = v.shape[3]
    chunks = cut(batch, tokens, cu_seqlens, tile.tokens)
    BK, BV = blocks(key_dim, value_dim, tile, q.dtype)
    o = torch.empty_like(v, dtype=out_dtype)
    grid = chunks.count * heads * cdiv(value_dim, BV)
    _all_pairs[(grid,)](
        q, k, v, g, initial, o, chunks.cu_seqlens,
        scale, chunks.sequences, tokens, heads, key_dim, value_dim,
        C=tile.tokens, BK=BK, BV=BV, USE_HEAD_G=gate_flags(g)["USE_HEAD_G"],
        USE_INITIAL=initial is not None, PACKED=cu_seqlens is not None,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    final = None
    if output_final_state:
        rows = Rows(q, k, g, scale, chunks, q.dtype)
        _, final = pass_states(rows, v, initial, final=True, tile=tile)
    return o, final
