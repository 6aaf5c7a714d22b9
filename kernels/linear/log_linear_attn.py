"""Log-linear attention token by token: one kernel walks, with a Fenwick tree of states in memory.

Count tokens from 1. Node e of the tree is the state of the 2^n tokens up to e, where 2^n is the
lowest bit of e, and it is never changed: e is read by the 2^n tokens after it, as level n + 1, and
then becomes a part of node e + 2^n. Before token t + 1 the nodes that live are the bits of t. So

    B_e   = k_e v_eᵀ + Σ exp(g's after c, up to e) B_c      over the nodes c with c + lowbit(c) = e
    S_t^ℓ = exp(g's after e, up to t) B_e,    o_t = scale · Σ_ℓ λ_t^ℓ (S_t^ℓ)ᵀ q_t

and a token writes one node. A program holds all keys of one head and a tile of values.

Backwards, a walk from the first token on finds what states alone decide, dq and dλ. Then the nodes
are taken from the last to the first. D_e, the gradient of B_e, walks back over the life of e:

    D starts from that of the node that e becomes a part of, and at each t of the life, backwards,
    D += scale · λ_t^ℓ q_t do_tᵀ,    dg_t += Σ S_t^ℓ ∘ D,    D *= exp(g_t)
    dk_e = (D_e + scale · λ_e^0 q_e do_eᵀ) v_e,    dv_e = (D_e + scale · λ_e^0 q_e do_eᵀ)ᵀ k_e

As S_t^ℓ decays where D does, `Σ S_t^ℓ ∘ D` is that of the end of the life, plus λ_i^ℓ dλ_i^ℓ of all
tokens i of the life from t on: a sum without cancelling terms, and without a division by decays,
which may be 0. Nodes up to a multiple of `tile.tokens` are kept, one for each such segment; those
within a segment are computed again.
"""

from collections.abc import Mapping
from typing import Any, Literal, Unpack

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import count_sequences
from kernels.differentiable import differentiable
from kernels.linear import log_linear_chunk
from kernels.linear.log_linear_chunk import check_levels, count_bits, trailing_zeros
from kernels.primitives.chunks import cut, locate_sequence
from kernels.primitives.decay import decay_by
from kernels.primitives.groups import keys_gradient_dtype, of_each_group, of_each_head
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.rows import load_number, load_row
from kernels.primitives.states import blocks_of_state
from kernels.recurrence import StatelessOptions, own_modes
from kernels.tiles import Tile, cdiv, next_power_of_2


@triton.jit(do_not_specialize=["tokens", "heads", "levels", "bits"])
def _forward(
    q_ptr, k_ptr, v_ptr, level_scales_ptr, g_ptr, cu_seqlens_ptr, o_ptr, nodes_ptr,
    scale, tokens, heads, levels, bits, key_dim: tl.int32, value_dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, BL: tl.constexpr,
    USE_G: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program walks the tokens of one sequence with a tile of the values of one head, and writes
    o. `nodes` has the living nodes of its tree.
    """
    value_tiles = tl.cdiv(value_dim, BV)
    state = (tl.program_id(0) // value_tiles).to(tl.int64)
    head = state % heads
    first, length, _ = locate_sequence(state // heads, cu_seqlens_ptr, tokens, 1, PACKED)
    keys = tl.arange(0, BK)
    values = (tl.program_id(0) % value_tiles) * BV + tl.arange(0, BV)
    in_k = keys < key_dim
    in_v = values < value_dim
    numbers = tl.arange(0, BL)
    # `left` is how far the node of each slot has decayed: a factor, as sums of log decays that are
    # alike at every token would add their rounding errors up.
    # A slot for each number of zeros that a node may end with: the last such node is the one alive.
    SIZE: tl.constexpr = BK * BV
    tile = keys[:, None] * BV + tl.arange(0, BV)[None, :]
    nodes_ptr += tl.program_id(0).to(tl.int64) * bits * SIZE
    left = tl.full((BL,), 1.0, dtype=tl.float32)

    for t in range(length):
        row = (first + t) * heads + head
        q = load_row(q_ptr, row, key_dim, keys, in_k)
        k = load_row(k_ptr, row, key_dim, keys, in_k)
        v = load_row(v_ptr, row, value_dim, values, in_v)
        if USE_G:
            left = decay_by(left, load_number(g_ptr, row))
        # The leaf of the tree that belongs to this token.
        B = k[:, None] * v[None, :]
        o = load_number(level_scales_ptr, row * levels) * tl.sum(B * q[:, None], 0)
        for bit in range(bits):
            if (t >> bit) & 1 == 1:
                S = tl.load(nodes_ptr + bit * SIZE + tile)
                if USE_G:
                    S *= tl.sum(tl.where(numbers == bit, left, 0.0), 0)
                level_scale = load_number(level_scales_ptr, row * levels + bit + 1)
                o += level_scale * tl.sum(S * q[:, None], 0)
                B += tl.where((t + 1) % (2 << bit) == 0, S, 0.0)
        tl.store(o_ptr + row * value_dim + values, o * scale, mask=in_v)
        slot = trailing_zeros(t + 1, bits)
        if t + 1 < length:
            tl.store(nodes_ptr + slot.to(tl.int64) * SIZE + tile, B)
        left = tl.where(numbers == slot, 1.0, left)
        # A cell may be read by another thread than the one that wrote it.
        tl.debug_barrier()


@triton.jit
def _place(e, kept, stride, SEGMENT: tl.constexpr, SIZE: tl.constexpr):
    """The place of node e: among a segment's own, or among the kept ones behind all programs."""
    segment = (e // SEGMENT - 1).to(tl.int64)
    return tl.where(e % SEGMENT == 0, kept + segment * stride, (e % SEGMENT).to(tl.int64) * SIZE)


@triton.jit
def _read_nodes(
    q_ptr, k_ptr, v_ptr, level_scales_ptr, g_ptr, do_ptr, dq_ptr, dlevel_scales_ptr, nodes_ptr,
    reads_ptr, kept, stride, first, head, first_part, length,
    scale, heads, levels, bits, key_dim, value_dim, keys, in_k, values, in_v, tile,
    BL: tl.constexpr, SEGMENT: tl.constexpr, SIZE: tl.constexpr, USE_G: tl.constexpr,
):  # fmt: skip
    """Walk from the first token on: store the nodes, dq, dλ, and λ dλ of what a token reads."""
    numbers = tl.arange(0, BL)
    left = tl.full((BL,), 1.0, dtype=tl.float32)
    for t in range(length):
        row = (first + t) * heads + head
        own = first_part + row
        q = load_row(q_ptr, row, key_dim, keys, in_k)
        k = load_row(k_ptr, row, key_dim, keys, in_k)
        v = load_row(v_ptr, row, value_dim, values, in_v)
        do = load_row(do_ptr, row, value_dim, values, in_v)
        if USE_G:
            left = decay_by(left, load_number(g_ptr, row))
        B = k[:, None] * v[None, :]
        read = tl.sum(B * do[None, :], 1)
        dq = load_number(level_scales_ptr, row * levels) * read
        dlevel_scales = tl.where(numbers == 0, tl.sum(q * read, 0) * scale, 0.0)
        for bit in range(bits):
            if (t >> bit) & 1 == 1:
                place = _place((t >> bit) << bit, kept, stride, SEGMENT, SIZE)
                S = tl.load(nodes_ptr + place + tile)
                if USE_G:
                    S *= tl.sum(tl.where(numbers == bit, left, 0.0), 0)
                level_scale = load_number(level_scales_ptr, row * levels + bit + 1)
                read = tl.sum(S * do[None, :], 1)
                dq += level_scale * read
                found = tl.sum(q * read, 0) * scale
                dlevel_scales = tl.where(numbers == bit + 1, found, dlevel_scales)
                if USE_G:
                    tl.store(reads_ptr + own * BL + bit, level_scale * found)
                B += tl.where((t + 1) % (2 << bit) == 0, S, 0.0)
        tl.store(dq_ptr + own * key_dim + keys, dq * scale, mask=in_k)
        tl.store(dlevel_scales_ptr + own * levels + numbers, dlevel_scales, mask=numbers < levels)
        if t + 1 < length:
            tl.store(nodes_ptr + _place(t + 1, kept, stride, SEGMENT, SIZE) + tile, B)
        left = tl.where(numbers == trailing_zeros(t + 1, bits), 1.0, left)
        # A cell may be read by another thread than the one that wrote it.
        tl.debug_barrier()


@triton.jit
def _nodes_of_segment(
    k_ptr, v_ptr, g_ptr, nodes_ptr, start, stop, first, head, heads, key_dim, value_dim,
    keys, in_k, values, in_v, tile,
    BL: tl.constexpr, SEGMENT: tl.constexpr, SEGMENT_BITS: tl.constexpr, SIZE: tl.constexpr,
    USE_G: tl.constexpr,
):  # fmt: skip
    """Store the nodes within a segment again."""
    numbers = tl.arange(0, BL)
    left = tl.full((BL,), 1.0, dtype=tl.float32)
    for t in range(start, stop):
        row = (first + t) * heads + head
        k = load_row(k_ptr, row, key_dim, keys, in_k)
        v = load_row(v_ptr, row, value_dim, values, in_v)
        if USE_G:
            left = decay_by(left, load_number(g_ptr, row))
        B = k[:, None] * v[None, :]
        for bit in range(SEGMENT_BITS):
            if ((t >> bit) & 1 == 1) & ((t + 1) % (2 << bit) == 0):
                S = tl.load(nodes_ptr + (((t >> bit) << bit) % SEGMENT) * SIZE + tile)
                if USE_G:
                    S *= tl.sum(tl.where(numbers == bit, left, 0.0), 0)
                B += S
        if (t + 1) % SEGMENT != 0:
            tl.store(nodes_ptr + ((t + 1) % SEGMENT) * SIZE + tile, B)
        left = tl.where(numbers == trailing_zeros(t + 1, SEGMENT_BITS), 1.0, left)
        tl.debug_barrier()


@triton.jit
def _node_backward(
    q_ptr, k_ptr, v_ptr, level_scales_ptr, g_ptr, do_ptr, dk_ptr, dv_ptr, nodes_ptr, slots_ptr,
    reads_ptr, sums_ptr, kept, stride, e, first, head, first_part, length,
    scale, heads, levels, bits, key_dim, value_dim, keys, in_k, values, in_v, tile,
    BK: tl.constexpr, BV: tl.constexpr, BL: tl.constexpr, SEGMENT: tl.constexpr,
    SIZE: tl.constexpr, USE_G: tl.constexpr,
):  # fmt: skip
    """Walk back over the life of node e: store D_e in its slot, dk, dv, and the terms of dg."""
    zeros = trailing_zeros(e, bits)
    # The life of e, and that of the node it becomes a part of, if it lives so long.
    end = tl.minimum(e + (e & -e), length)
    up = e + (e & -e)
    D = tl.zeros((BK, BV), dtype=tl.float32)
    total = 0.0
    if up < length:
        D = tl.load(slots_ptr + trailing_zeros(up, bits).to(tl.int64) * SIZE + tile)
        if USE_G:
            decay = 1.0
            for i in range(e, end):
                decay = decay_by(decay, load_number(g_ptr, (first + i) * heads + head))
            B = tl.load(nodes_ptr + _place(e, kept, stride, SEGMENT, SIZE) + tile)
            total = tl.sum(tl.sum(B * D, 1), 0) * decay
    for from_back in range(end - e):
        row = (first + end - 1 - from_back) * heads + head
        q = load_row(q_ptr, row, key_dim, keys, in_k)
        do = load_row(do_ptr, row, value_dim, values, in_v)
        level_scale = load_number(level_scales_ptr, row * levels + zeros + 1)
        D += (q * scale * level_scale)[:, None] * do[None, :]
        if USE_G:
            own = first_part + row
            total += tl.load(reads_ptr + own * BL + zeros)
            tl.store(sums_ptr + own * BL + zeros, total)
            D = decay_by(D, load_number(g_ptr, row))
    if e < length:
        tl.store(slots_ptr + zeros.to(tl.int64) * SIZE + tile, D)
    row = (first + e - 1) * heads + head
    q = load_row(q_ptr, row, key_dim, keys, in_k)
    k = load_row(k_ptr, row, key_dim, keys, in_k)
    v = load_row(v_ptr, row, value_dim, values, in_v)
    do = load_row(do_ptr, row, value_dim, values, in_v)
    D += (q * scale * load_number(level_scales_ptr, row * levels))[:, None] * do[None, :]
    dk = tl.sum(D * v[None, :], 1)
    tl.store(dk_ptr + (first_part + row) * key_dim + keys, dk, mask=in_k)
    tl.store(dv_ptr + row * value_dim + values, tl.sum(D * k[:, None], 0), mask=in_v)


@triton.jit(do_not_specialize=["rows", "tokens", "heads", "levels", "bits"])
def _backward(
    q_ptr, k_ptr, v_ptr, level_scales_ptr, g_ptr, cu_seqlens_ptr, do_ptr,
    dq_ptr, dk_ptr, dv_ptr, dlevel_scales_ptr, dg_ptr, nodes_ptr, slots_ptr, reads_ptr, sums_ptr,
    scale, rows, tokens, heads, levels, bits, key_dim: tl.int32, value_dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, BL: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENT_BITS: tl.constexpr,
    USE_G: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Each tile of values writes its part of the gradients of what all values share."""
    value_tiles = tl.cdiv(value_dim, BV)
    program = tl.program_id(0).to(tl.int64)
    part = (tl.program_id(0) % value_tiles).to(tl.int64)
    state = (tl.program_id(0) // value_tiles).to(tl.int64)
    head = state % heads
    first, length, first_segment = locate_sequence(
        state // heads, cu_seqlens_ptr, tokens, SEGMENT, PACKED
    )
    keys = tl.arange(0, BK)
    values = part * BV + tl.arange(0, BV)
    in_k = keys < key_dim
    in_v = values < value_dim
    numbers = tl.arange(0, BL)
    # Workspaces are cut by program; all cells of a node are written before they are read.
    SIZE: tl.constexpr = BK * BV
    tile = keys[:, None] * BV + tl.arange(0, BV)[None, :]
    parts = heads * value_tiles
    stride = parts.to(tl.int64) * SIZE
    own_nodes = program * (SEGMENT * SIZE)
    kept = tl.num_programs(0).to(tl.int64) * (SEGMENT * SIZE) - own_nodes
    kept += (first_segment * parts + head * value_tiles + part) * SIZE
    nodes_ptr += own_nodes
    slots_ptr += program * bits * SIZE
    first_part = part * rows

    _read_nodes(
        q_ptr, k_ptr, v_ptr, level_scales_ptr, g_ptr, do_ptr, dq_ptr, dlevel_scales_ptr, nodes_ptr,
        reads_ptr, kept, stride, first, head, first_part, length,
        scale, heads, levels, bits, key_dim, value_dim, keys, in_k, values, in_v, tile,
        BL, SEGMENT, SIZE, USE_G,
    )  # fmt: skip
    segments = tl.cdiv(length, SEGMENT)
    for from_end in range(segments):
        start = (segments - 1 - from_end) * SEGMENT
        stop = tl.minimum(start + SEGMENT, length)
        _nodes_of_segment(
            k_ptr, v_ptr, g_ptr, nodes_ptr, start, stop, first, head, heads, key_dim, value_dim,
            keys, in_k, values, in_v, tile, BL, SEGMENT, SEGMENT_BITS, SIZE, USE_G,
        )  # fmt: skip
        for from_last in range(stop - start):
            _node_backward(
                q_ptr, k_ptr, v_ptr, level_scales_ptr, g_ptr, do_ptr, dk_ptr, dv_ptr, nodes_ptr,
                slots_ptr, reads_ptr, sums_ptr, kept, stride, stop - from_last, first, head,
                first_part, length, scale, heads, levels, bits, key_dim, value_dim,
                keys, in_k, values, in_v, tile, BK, BV, BL, SEGMENT, SIZE, USE_G,
            )  # fmt: skip
            tl.debug_barrier()

    if USE_G:
        for t in range(length):
            own = first_part + (first + t) * heads + head
            lives = ((t >> tl.minimum(numbers, 31)) & 1 == 1) & (numbers < bits)
            dg = tl.sum(tl.load(sums_ptr + own * BL + numbers, mask=lives, other=0.0), 0)
            tl.store(dg_ptr + own, dg)


def _blocks(tile: Tile, key_dim: int, value_dim: int, levels: int) -> dict[str, int]:
    return {
        **blocks_of_state(tile, key_dim, value_dim),
        "BL": max(32, next_power_of_2(levels)),
        "num_warps": tile.num_warps,
    }


def _forward_of(
    *, q: Tensor, k: Tensor, v: Tensor, level_scales: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    batch, tokens, heads, value_dim = v.shape
    bits, levels = count_bits(check_levels(level_scales, cu_seqlens)), level_scales.shape[3]
    entry = tiles.TABLE["log_linear_attn", "fused_recurrent"][tile]
    blocks = _blocks(entry, q.shape[3], value_dim, levels)
    grid = count_sequences(batch, cu_seqlens) * heads * cdiv(value_dim, blocks["BV"])
    o = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    nodes = v.new_empty(grid * bits * blocks["BK"] * blocks["BV"], dtype=torch.float32)
    q, k = (of_each_head(x, heads) for x in (q, k))
    _forward[(grid,)](
        *contiguous(q, k, v, level_scales, g), cu_seqlens, o, nodes,
        scale, tokens, heads, levels, bits, q.shape[3], value_dim,
        USE_G=g is not None, PACKED=cu_seqlens is not None, **blocks,
    )  # fmt: skip
    return [o]


def _backward_of(
    *, q: Tensor, k: Tensor, v: Tensor, level_scales: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, tile: int, d0: Tensor,
) -> list[Tensor | None]:  # fmt: skip
    (batch, tokens, heads, value_dim), (groups, key_dim) = v.shape, q.shape[2:]
    bits, levels = count_bits(check_levels(level_scales, cu_seqlens)), level_scales.shape[3]
    entry = tiles.TABLE["log_linear_attn", "fused_recurrent"][tile].of("backward")
    blocks = _blocks(entry, key_dim, value_dim, levels)
    parts, size = cdiv(value_dim, blocks["BV"]), blocks["BK"] * blocks["BV"]
    grid = count_sequences(batch, cu_seqlens) * heads * parts
    keys_dtype, dtype = keys_gradient_dtype(q, heads), q.dtype
    q, k = (of_each_head(x, heads) for x in (q, k))
    shared = {"q": q, "k": k, "level_scales": level_scales, "g": g}
    dtypes = [keys_dtype, keys_dtype, level_scales.dtype, None if g is None else g.dtype]
    in_parts = [
        None if x is None else empty_parts(parts, x.shape, dtype, x.device)
        for x, dtype in zip(shared.values(), dtypes, strict=True)
    ]
    dq, dk, dlevel_scales, dg = in_parts
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    kept = cut(batch, tokens, cu_seqlens, entry.tokens).count * heads * parts
    nodes = v.new_empty((grid * entry.tokens + kept) * size, dtype=torch.float32)
    slots = v.new_empty(grid * bits * size, dtype=torch.float32)
    of_levels = parts * batch * tokens * heads * blocks["BL"] if g is not None else 0
    reads, sums = (v.new_empty(of_levels, dtype=torch.float32) for _ in range(2))
    _backward[(grid,)](
        *contiguous(q, k, v, level_scales, g), cu_seqlens, d0.contiguous(),
        dq, dk, dv, dlevel_scales, dg, nodes, slots, reads, sums,
        scale, batch * tokens * heads, tokens, heads, levels, bits, key_dim, value_dim,
        SEGMENT=entry.tokens, SEGMENT_BITS=entry.tokens.bit_length() - 1,
        USE_G=g is not None, PACKED=cu_seqlens is not None, **blocks,
    )  # fmt: skip
    dq, dk, dlevel_scales, dg = (
        None if dx is None else add_parts(dx, dtype)
        for dx, dtype in zip(in_parts, dtypes, strict=True)
    )
    dq, dk = (of_each_group(dx, groups).to(dtype) for dx in (dq, dk))
    return [dq, dk, dv, dlevel_scales, dg, None]


def _like_v(given: Mapping[str, Any]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(given["v"].shape, given["v"].dtype)]


_modes = [
    differentiable(f"log_linear_attn_{mode}", forward, backward, _like_v, outputs=1)
    for mode, forward, backward in (
        ("chunk", log_linear_chunk.forward, log_linear_chunk.backward),
        ("fused_recurrent", _forward_of, _backward_of),
    )
]


@own_modes(*_modes, outputs=("o",), raises=["fewer levels than a sequence needs"])
def log_linear_attn(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    level_scales: Float[Tensor, "B T H L"],
    g: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Log-linear attention, `reference.log_linear_attn`."""
