"""Log-linear attention in chunks: a Fenwick tree of chunks, and all pairs of tokens within one.

Two tokens of one chunk of C = 2^c differ in the last c bits of their numbers. So levels up to c are
those of pairs within chunks, and the others are a tree like that of `log_linear_attn` whose leaves
are chunks: before chunk n its nodes that live are the bits of n. Bit b is node e = ⌊n / 2^b⌋ 2^b,
the state of the 2^b chunks before chunk e, which is read as level c + b + 1.

Let P_i = Σ_{t <= i} g_t and R_j = Σ_{t > j} g_t be sums over the tokens of one chunk, and d(e, n)
the decay of the chunks from e up to n - 1, a product of those of single chunks:

    nodes    B_{n+1} = Σ_j exp(R_j) k_j v_jᵀ + Σ_e d(e, n + 1) B_e,    e + lowbit(e) = n + 1
    outputs  o_i = scale · exp(P_i) Σ_b λ_i^{c+b+1} d(e, n) B_eᵀ q_i
                 + scale · Σ_{j <= i} λ_i^ℓ A_ij v_j,    ℓ the level of the pair i, j
             A_ij = (q_i · k_j) exp(Σ_{j < t <= i} g_t)

and backwards, D_e being the gradient of B_e, which starts from that of the node that e becomes a
part of, and walks back over the chunks of the life of e,

    nodes    D' = exp(P_C) D + scale · Σ_i λ_i^{c+b+1} exp(P_i) q_i do_iᵀ
    outputs  dv_j = exp(R_j) D_{n+1}ᵀ k_j + scale · Σ_{i >= j} λ_i^ℓ A_ij do_i

A third kernel does the other gradients. Nothing is saved but the inputs: the nodes are computed
again.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries
from kernels.linear.tiles import blocks, tile_of
from kernels.primitives.chunks import Chunks, cut, locate_chunk, locate_sequence
from kernels.primitives.decay import (
    chunk_span_transposed,
    decay_of_chunk,
    head_decay,
    load_head_gates,
    pair_decay,
    sum_columns,
    sum_gradients,
)
from kernels.primitives.groups import keys_gradient_dtype, of_each_group, of_each_head
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.product import product
from kernels.primitives.rows import load_number, load_rows, store_rows
from kernels.primitives.states import locate_tile
from kernels.tiles import Entry, cdiv

# Bits in the number of a chunk: a slot for each in the decays of the nodes that live.
_SLOTS = 32


def count_bits(longest: int) -> int:
    """Count the bits of the largest number of a node that is read, of so many leaves."""
    return max(longest - 1, 0).bit_length()


def check_levels(level_scales: Tensor, cu_seqlens: Tensor | None) -> int:
    """Return the length of the longest sequence.

    Raises:
        ValueError: its tokens need more levels, or `cu_seqlens` is bad.
    """
    tokens, levels = level_scales.shape[1], level_scales.shape[3]
    longest = check_boundaries("cu_seqlens", cu_seqlens, tokens)
    needed = count_bits(longest) + 1
    if levels < needed:
        raise ValueError(
            f"level_scales: L={levels}, expected at least {needed} levels for T={longest}"
        )
    return longest


@triton.jit
def trailing_zeros(e, bits):
    """How many zeros the binary number e ends with, at most `bits`."""
    count = 0
    for bit in range(bits):
        count += tl.where(e % (2 << bit) == 0, 1, 0)
    return count


@triton.jit
def _of_level(ptr, rows, level, heads, levels):
    """`[C]`, where a level is for the tokens of a chunk of a head."""
    return ptr + rows * (heads.to(tl.int64) * levels) + level


@triton.jit
def _level_scale(ptr, rows, level, heads, levels, reading):
    """`[C]` in float32: λ of a level for the tokens of a chunk of a head that read it."""
    here = _of_level(ptr, rows, level, heads, levels)
    return tl.load(here, mask=reading, other=0.0).to(tl.float32)


@triton.jit
def _reading(level, left, C: tl.constexpr):
    """`[C]`, true for the tokens that read this level within their chunk."""
    rows = tl.arange(0, C)
    return (rows < left) & (((rows * 2 + 1) >> level) & 1 == 1)


@triton.jit
def _pairs(level, C: tl.constexpr):
    """`[C, C]`, true for the pairs of tokens of this level, in either order."""
    r = tl.arange(0, C)
    # Level 0 is the token itself; others are blocks of `distance` tokens, each with its neighbour.
    distance = (1 << level) >> 1
    size = tl.maximum(distance, 1)
    start = ((r & -size) ^ distance)[:, None]
    return (r[None, :] >= start) & (r[None, :] < start + size)


@triton.jit(do_not_specialize=["tokens", "heads", "bits"])
def _pass_nodes(
    k_ptr, v_ptr, g_ptr, nodes_ptr, decays_ptr, cu_seqlens_ptr,
    tokens, heads, bits, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, SLOTS: tl.constexpr,
    USE_HEAD_G: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program carries one tile of the nodes of one head through one sequence.

    It stores node e where chunk e is, if there is one, and d(e, n) in slot b of chunk n.
    """
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    value_tiles = tl.cdiv(value_dim, BV)
    key_tile, value_tile, head, sequence = locate_tile(heads, tl.cdiv(key_dim, BK), value_tiles)
    keys = key_tile * BK + tl.arange(0, BK)
    values = value_tile * BV + tl.arange(0, BV)
    tile = key_tile * value_tiles + value_tile
    first, length, first_chunk = locate_sequence(sequence, cu_seqlens_ptr, tokens, C, PACKED)
    rows = tl.arange(0, C)
    slots = tl.arange(0, SLOTS)
    k_ptr += (first * heads + head) * key_dim
    v_ptr += (first * heads + head) * value_dim
    nodes_ptr += (first_chunk * heads + head) * key_dim * value_dim
    stride = heads.to(tl.int64) * key_dim * value_dim
    if USE_HEAD_G:
        g_ptr += first * heads + head
        decays_ptr += (first_chunk * heads + head) * SLOTS

    d = tl.full((SLOTS,), 1.0, dtype=tl.float32)
    chunks = tl.cdiv(length, C)
    for chunk in range(chunks):
        start = chunk.to(tl.int64) * C
        left = (length - start).to(tl.int32)
        k = load_rows(k_ptr + start * heads * key_dim, rows, keys, heads * key_dim, left, key_dim)
        v = load_rows(
            v_ptr + start * heads * value_dim, rows, values, heads * value_dim, left, value_dim
        )
        if USE_HEAD_G:
            if tile == 0:
                tl.store(decays_ptr + chunk.to(tl.int64) * heads * SLOTS + slots, d)
            g = load_head_gates(g_ptr + start * heads, rows, heads, left)
            v *= head_decay(1, g, DTYPE)[:, None]
            d *= decay_of_chunk(g, DTYPE)
        B = product(tl.trans(k), v, DTYPE, FINE_B=True)
        e = chunk + 1
        for bit in range(bits):
            if e % (2 << bit) == 0:
                part = nodes_ptr + (e - (1 << bit)) * stride
                S = load_rows(part, keys, values, value_dim, key_dim, value_dim)
                if USE_HEAD_G:
                    S *= tl.sum(tl.where(slots == bit, d, 0.0), 0)
                B += S
        stored = tl.where(e < chunks, key_dim, 0)
        store_rows(nodes_ptr + e * stride, B, keys, values, value_dim, stored, value_dim)
        d = tl.where((e & -e) >> slots == 1, 1.0, d)
        # A cell may be read by another thread than the one that wrote it.
        tl.debug_barrier()


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "levels", "bits"])
def _outputs(
    r_ptr, c_ptr, y_ptr, level_scales_ptr, g_ptr, states_ptr, decays_ptr, out_ptr, cu_seqlens_ptr,
    scale, sequences, tokens, heads, levels, bits, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LEVELS: tl.constexpr, SLOTS: tl.constexpr,
    USE_HEAD_G: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes a tile of o for one chunk and head; in reverse, of dv.

    Forwards r, c, y are q, k, v, and states are nodes; in reverse they are k, q, do, and the
    gradients of the nodes that chunks are the last of.
    """
    DTYPE: tl.constexpr = r_ptr.dtype.element_ty
    SIDE: tl.constexpr = 1 if REVERSE else 0
    value_tiles = tl.cdiv(value_dim, BV)
    program = tl.program_id(0)
    values = (program % value_tiles) * BV + tl.arange(0, BV)
    head = program // value_tiles % heads
    chunk = program // (value_tiles * heads)
    first, left, _, before = locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    r_ptr += (first * heads + head) * key_dim
    c_ptr += (first * heads + head) * key_dim
    y_ptr += (first * heads + head) * value_dim
    out_ptr += (first * heads + head) * value_dim
    level_scales_ptr += (first * heads + head) * levels
    cell = chunk.to(tl.int64) * heads + head
    states_ptr += cell * key_dim * value_dim
    stride = heads.to(tl.int64) * key_dim * value_dim
    n = before // C

    out = tl.zeros([C, BV], tl.float32)
    if REVERSE:
        for start in range(0, key_dim, BK):
            keys = start + tl.arange(0, BK)
            r = load_rows(r_ptr, rows, keys, heads * key_dim, left, key_dim)
            S = load_rows(states_ptr, keys, values, value_dim, key_dim, value_dim)
            out += product(r, S, DTYPE)
    else:
        for bit in range(bits):
            if (n >> bit) & 1 == 1:
                node = states_ptr - (n & ((1 << bit) - 1)) * stride
                read = tl.zeros([C, BV], tl.float32)
                for start in range(0, key_dim, BK):
                    keys = start + tl.arange(0, BK)
                    r = load_rows(r_ptr, rows, keys, heads * key_dim, left, key_dim)
                    S = load_rows(node, keys, values, value_dim, key_dim, value_dim)
                    read += product(r, S, DTYPE)
                weight = _level_scale(
                    level_scales_ptr, rows, LEVELS + bit + 1, heads, levels, rows < left
                ) * scale  # fmt: skip
                if USE_HEAD_G:
                    weight *= load_number(decays_ptr + cell * SLOTS, bit)
                out += read * weight[:, None]
    A = tl.zeros([C, C], tl.float32)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        r = load_rows(r_ptr, rows, keys, heads * key_dim, left, key_dim)
        c = load_rows(c_ptr, rows, keys, heads * key_dim, left, key_dim)
        A += product(r, tl.trans(c), DTYPE)
    if USE_HEAD_G:
        g = load_head_gates(g_ptr + first * heads + head, rows, heads, left)
        out *= head_decay(SIDE, g, DTYPE)[:, None]
        A *= pair_decay(SIDE, g, C, DTYPE)
    for level in tl.range(LEVELS + 1, disable_licm=True):
        reading = _reading(level, left, C)
        weight = _level_scale(level_scales_ptr, rows, level, heads, levels, reading)
        weight = weight[None, :] if REVERSE else weight[:, None]
        A = tl.where(_pairs(level, C), A * weight, A)
    seen = rows[None, :] >= rows[:, None] if REVERSE else rows[None, :] <= rows[:, None]
    A = tl.where(seen, A * scale, 0.0)
    y = load_rows(y_ptr, rows, values, heads * value_dim, left, value_dim)
    out += product(A, y, DTYPE)
    store_rows(out_ptr, out, rows, values, heads * value_dim, left, value_dim)


@triton.jit(do_not_specialize=["cells", "tokens", "heads", "levels", "bits"])
def _pass_gradients(
    q_ptr, do_ptr, level_scales_ptr, g_ptr, nodes_ptr, decays_ptr, dnodes_ptr, passing_ptr,
    cu_seqlens_ptr,
    scale, cells, tokens, heads, levels, bits, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LEVELS: tl.constexpr, SLOTS: tl.constexpr,
    USE_HEAD_G: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program takes one tile of the nodes of one head, from the last node to the first.

    It stores D_e in the place of the last chunk of node e. A state that passes chunk n as a part of
    node e has the same gradient for each gate of the chunk: slot b of the part of each tile.
    """
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    value_tiles = tl.cdiv(value_dim, BV)
    key_tile, value_tile, head, sequence = locate_tile(heads, tl.cdiv(key_dim, BK), value_tiles)
    keys = key_tile * BK + tl.arange(0, BK)
    values = value_tile * BV + tl.arange(0, BV)
    tile = key_tile * value_tiles + value_tile
    first, length, first_chunk = locate_sequence(sequence, cu_seqlens_ptr, tokens, C, PACKED)
    rows = tl.arange(0, C)
    q_ptr += (first * heads + head) * key_dim
    do_ptr += (first * heads + head) * value_dim
    level_scales_ptr += (first * heads + head) * levels
    cell = first_chunk * heads + head
    nodes_ptr += cell * key_dim * value_dim
    dnodes_ptr += cell * key_dim * value_dim
    stride = heads.to(tl.int64) * key_dim * value_dim
    if USE_HEAD_G:
        g_ptr += first * heads + head
        decays_ptr += cell * SLOTS
        passing_ptr += (tile.to(tl.int64) * cells + cell) * SLOTS

    chunks = tl.cdiv(length, C)
    for from_last in range(chunks):
        e = chunks - from_last
        bit = trailing_zeros(e, bits)
        # The life of e, and the node it becomes a part of, if that is read or becomes a part.
        up = e + (e & -e)
        end = tl.minimum(up, chunks)
        there = tl.where(up < chunks, key_dim, 0)
        D = load_rows(dnodes_ptr + (up - 1) * stride, keys, values, value_dim, there, value_dim)
        if USE_HEAD_G:
            alive = tl.where(e < chunks, key_dim, 0)
            B = load_rows(nodes_ptr + e * stride, keys, values, value_dim, alive, value_dim)
        for from_end in range(end - e):
            n = (end - 1 - from_end).to(tl.int64)
            start = n * C
            left = (length - start).to(tl.int32)
            weight = _level_scale(
                level_scales_ptr + start * heads * levels,
                rows, LEVELS + bit + 1, heads, levels, rows < left,
            ) * scale  # fmt: skip
            if USE_HEAD_G:
                g = load_head_gates(g_ptr + start * heads, rows, heads, left)
                passed = decay_of_chunk(g, DTYPE)
                slot = n * heads * SLOTS + bit
                passing = tl.sum(tl.sum(B * D, 1), 0) * load_number(decays_ptr, slot) * passed
                tl.store(passing_ptr + slot, passing)
                D *= passed
                weight *= head_decay(0, g, DTYPE)
            q = load_rows(
                q_ptr + start * heads * key_dim, rows, keys, heads * key_dim, left, key_dim
            )
            do = load_rows(
                do_ptr + start * heads * value_dim, rows, values, heads * value_dim, left, value_dim
            )
            D = product(tl.trans(q), do * weight[:, None], DTYPE, acc=D)
        store_rows(dnodes_ptr + (e - 1) * stride, D, keys, values, value_dim, key_dim, value_dim)
        # A cell may be read by another thread than the one that wrote it.
        tl.debug_barrier()


@triton.jit(do_not_specialize=["rows_in_all", "sequences", "tokens", "heads", "levels", "bits"])
def _gradients(
    q_ptr, k_ptr, v_ptr, level_scales_ptr, g_ptr, do_ptr, nodes_ptr, decays_ptr, dnodes_ptr,
    passing_ptr, dq_ptr, dk_ptr, dlevel_scales_ptr, dg_ptr, cu_seqlens_ptr,
    scale, rows_in_all, sequences, tokens, heads, levels, bits,
    key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LEVELS: tl.constexpr, SLOTS: tl.constexpr,
    USE_HEAD_G: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes a tile of dq and dk for one chunk and head, and its part of dλ and dg.

    A gate gets the gradients of all exponents that it is in, as in `chunk._gradients`.
    """
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    key_tiles = tl.cdiv(key_dim, BK)
    program = tl.program_id(0)
    tile = program % key_tiles
    keys = tile * BK + tl.arange(0, BK)
    head = program // key_tiles % heads
    chunk = program // (key_tiles * heads)
    first, left, _, before = locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    row = first * heads + head
    v_ptr += row * value_dim
    do_ptr += row * value_dim
    level_scales_ptr += row * levels
    part = tile.to(tl.int64) * rows_in_all * heads + row
    dlevel_scales_ptr += part * levels
    cell = chunk.to(tl.int64) * heads + head
    nodes_ptr += cell * key_dim * value_dim
    dnodes_ptr += cell * key_dim * value_dim
    stride = heads.to(tl.int64) * key_dim * value_dim
    n = before // C

    q_ptr += row * key_dim
    k_ptr += row * key_dim
    if USE_HEAD_G:
        g = load_head_gates(g_ptr + row, rows, heads, left)

    dA = tl.zeros([C, C], tl.float32)
    for start in range(0, value_dim, BV):
        values = start + tl.arange(0, BV)
        v = load_rows(v_ptr, rows, values, heads * value_dim, left, value_dim)
        do = load_rows(do_ptr, rows, values, heads * value_dim, left, value_dim)
        dA += product(do, tl.trans(v), DTYPE)
    dA = tl.where(rows[None, :] <= rows[:, None], dA, 0.0) * scale
    if USE_HEAD_G:
        dA *= pair_decay(0, g, C, DTYPE)
    q = load_rows(q_ptr, rows, keys, heads * key_dim, left, key_dim)
    k = load_rows(k_ptr, rows, keys, heads * key_dim, left, key_dim)
    terms = dA * product(q, tl.trans(k), DTYPE)
    for level in tl.range(LEVELS + 1, disable_licm=True):
        pairs = _pairs(level, C)
        reading = _reading(level, left, C)
        here = _of_level(dlevel_scales_ptr, rows, level, heads, levels)
        found = tl.sum(tl.where(pairs, terms, 0.0), 1)
        tl.store(here, found, mask=reading)
        weight = _level_scale(level_scales_ptr, rows, level, heads, levels, reading)[:, None]
        dA = tl.where(pairs, dA * weight, dA)
        if USE_HEAD_G:
            terms = tl.where(pairs, terms * weight, terms)
    if USE_HEAD_G:
        # The gate at t gets those of pairs i >= t > j, of queries from t on, of keys before.
        straddling = sum_gradients(chunk_span_transposed(0, C), terms, DTYPE)
        dg = tl.sum(tl.where(chunk_span_transposed(1, C), straddling, 0.0), 1)
        passing = tl.load(passing_ptr + cell * SLOTS + tl.arange(0, SLOTS))
        dg += tl.where(tile == 0, tl.sum(passing, 0), 0.0)

    dk = tl.zeros([C, BK], tl.float32)
    for start in range(0, value_dim, BV):
        values = start + tl.arange(0, BV)
        v = load_rows(v_ptr, rows, values, heads * value_dim, left, value_dim)
        dS = load_rows(dnodes_ptr, keys, values, value_dim, key_dim, value_dim)
        dk += product(v, tl.trans(dS), DTYPE)
    if USE_HEAD_G:
        dk *= head_decay(1, g, DTYPE)[:, None]
        dg += sum_columns(chunk_span_transposed(1, C), tl.sum(k * dk, 1))
    dk += product(tl.trans(dA), q, DTYPE)
    store_rows(dk_ptr + row * key_dim, dk, rows, keys, heads * key_dim, left, key_dim)

    dq = tl.zeros([C, BK], tl.float32)
    for bit in range(bits):
        if (n >> bit) & 1 == 1:
            node = nodes_ptr - (n & ((1 << bit) - 1)) * stride
            read = tl.zeros([C, BK], tl.float32)
            for start in range(0, value_dim, BV):
                values = start + tl.arange(0, BV)
                do = load_rows(do_ptr, rows, values, heads * value_dim, left, value_dim)
                S = load_rows(node, keys, values, value_dim, key_dim, value_dim)
                read += product(do, tl.trans(S), DTYPE)
            factor = tl.full([C], scale, tl.float32)
            if USE_HEAD_G:
                factor *= head_decay(0, g, DTYPE) * load_number(decays_ptr + cell * SLOTS, bit)
            read *= factor[:, None]
            level = LEVELS + bit + 1
            here = _of_level(dlevel_scales_ptr, rows, level, heads, levels)
            tl.store(here, tl.sum(q * read, 1), mask=rows < left)
            weight = _level_scale(level_scales_ptr, rows, level, heads, levels, rows < left)
            dq += read * weight[:, None]
    if USE_HEAD_G:
        dg += tl.cumsum(tl.sum(q * dq, 1), 0, reverse=True)
        tl.store(dg_ptr + part + rows * heads, dg, mask=rows < left)
    dq += product(dA, k, DTYPE)
    store_rows(dq_ptr + row * key_dim, dq, rows, keys, heads * key_dim, left, key_dim)


@dataclass(frozen=True)
class _Call:
    """The inputs of a call, contiguous, with q and k of each head."""

    q: Tensor
    k: Tensor
    v: Tensor
    level_scales: Tensor
    g: Tensor | None
    scale: float
    chunks: Chunks
    bits: int
    entry: Entry

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, level_scales: Tensor, g: Tensor | None,
        cu_seqlens: Tensor | None, scale: float, tile: int,
    ) -> "_Call":  # fmt: skip
        batch, tokens, heads = v.shape[:3]
        entry = tiles.TABLE["log_linear_attn", "chunk"][tile]
        bits = count_bits(cdiv(check_levels(level_scales, cu_seqlens), entry.tokens))
        q, k = (of_each_head(x, heads) for x in (q, k))
        inputs = contiguous(q, k, v, level_scales, g)
        return cls(*inputs, scale, cut(batch, tokens, cu_seqlens, entry.tokens), bits, entry)

    def sizes(self) -> tuple[int, ...]:
        """Tokens of a sequence in a dense batch, heads, levels."""
        return self.v.shape[1], *self.level_scales.shape[2:]

    def constants(self, kernel: str) -> dict[str, Any]:
        """The arguments of a kernel by name: of its tile, and what there is."""
        key_dim, value_dim = self.q.shape[3], self.v.shape[3]
        own = tile_of(kernel, self.entry, key_dim, value_dim)
        BK, BV = blocks(key_dim, value_dim, own, self.q.dtype)
        return {
            "bits": self.bits,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "C": self.entry.tokens,
            "BK": BK,
            "BV": BV,
            "SLOTS": _SLOTS,
            "USE_HEAD_G": self.g is not None,
            "PACKED": self.chunks.cu_seqlens is not None,
            "num_warps": own.num_warps,
            "num_stages": own.num_stages,
        }

    def tiles_of_a_node(self, constants: dict[str, Any]) -> int:
        return cdiv(self.q.shape[3], constants["BK"]) * cdiv(self.v.shape[3], constants["BV"])

    def workspace(self, *shape: int) -> Tensor:
        """Numbers for each chunk and head."""
        heads = self.v.shape[2]
        return self.v.new_empty(self.chunks.count, heads, *shape, dtype=torch.float32)

    def pass_nodes(self) -> tuple[Tensor, Tensor | None]:
        """The nodes `[chunks, H, K, V]`, and the decays `[chunks, H, slots]` if there are any."""
        tokens, heads, _ = self.sizes()
        constants = self.constants("states")
        nodes = self.workspace(self.q.shape[3], self.v.shape[3])
        decays = None if self.g is None else self.workspace(_SLOTS)
        _pass_nodes[(self.chunks.sequences * heads * self.tiles_of_a_node(constants),)](
            self.k, self.v, self.g, nodes, decays, self.chunks.cu_seqlens,
            tokens, heads, **constants,
        )  # fmt: skip
        return nodes, decays

    def outputs(
        self, y: Tensor, states: Tensor, decays: Tensor | None, *, reverse: bool = False
    ) -> Tensor:
        """o, or in reverse dv."""
        r, c = (self.k, self.q) if reverse else (self.q, self.k)
        constants = self.constants("outputs")
        out = torch.empty_like(self.v)
        grid = self.chunks.count * self.v.shape[2] * cdiv(self.v.shape[3], constants["BV"])
        _outputs[(grid,)](
            r, c, y, self.level_scales, self.g, states, decays, out, self.chunks.cu_seqlens,
            self.scale, self.chunks.sequences, *self.sizes(),
            LEVELS=self.levels_of_a_chunk, REVERSE=reverse, **constants,
        )  # fmt: skip
        return out

    def pass_gradients(
        self, do: Tensor, nodes: Tensor, decays: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of nodes, and those of gates `[chunks, H, slots]` that nodes pass."""
        heads = self.v.shape[2]
        constants = self.constants("states")
        count = self.tiles_of_a_node(constants)
        dnodes, passing = torch.empty_like(nodes), None
        if decays is not None:
            # Nodes that do not live pass nothing.
            passing = empty_parts(count, decays.shape, torch.float32, decays.device).zero_()
        _pass_gradients[(self.chunks.sequences * heads * count,)](
            self.q, do, self.level_scales, self.g, nodes, decays, dnodes, passing,
            self.chunks.cu_seqlens, self.scale, self.chunks.count * heads, *self.sizes(),
            LEVELS=self.levels_of_a_chunk, **constants,
        )  # fmt: skip
        return dnodes, None if passing is None else add_parts(passing, torch.float32)

    @property
    def levels_of_a_chunk(self) -> int:
        """Besides that of the token itself."""
        return self.entry.tokens.bit_length() - 1


def forward(
    *, q: Tensor, k: Tensor, v: Tensor, level_scales: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    call = _Call.of(q, k, v, level_scales, g, cu_seqlens, scale, tile)
    return [call.outputs(call.v, *call.pass_nodes())]


def backward(
    *, q: Tensor, k: Tensor, v: Tensor, level_scales: Tensor, g: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, tile: int, d0: Tensor,
) -> list[Tensor | None]:  # fmt: skip
    call = _Call.of(q, k, v, level_scales, g, cu_seqlens, scale, tile)
    do = d0.contiguous()
    nodes, decays = call.pass_nodes()
    dnodes, passing = call.pass_gradients(do, nodes, decays)
    dv = call.outputs(do, dnodes, None, reverse=True)

    (batch, tokens, heads, _), groups = v.shape, q.shape[2]
    constants = call.constants("gradients")
    count = cdiv(q.shape[3], constants["BK"])
    dtype = keys_gradient_dtype(q, heads)
    dq, dk = (torch.empty_like(x, dtype=dtype) for x in (call.q, call.k))
    # Levels that a chunk does not read have no gradient.
    dlevel_scales = empty_parts(count, level_scales.shape, level_scales.dtype, q.device).zero_()
    dg = None if g is None else empty_parts(count, g.shape, g.dtype, q.device)
    _gradients[(call.chunks.count * heads * count,)](
        call.q, call.k, call.v, call.level_scales, call.g, do, nodes, decays, dnodes, passing,
        dq, dk, dlevel_scales, dg, cu_seqlens,
        scale, batch * tokens, call.chunks.sequences, *call.sizes(),
        LEVELS=call.levels_of_a_chunk, **constants,
    )  # fmt: skip
    dq, dk = (of_each_group(dx, groups).to(q.dtype) for dx in (dq, dk))
    dlevel_scales = add_parts(dlevel_scales, level_scales.dtype)
    return [dq, dk, dv, dlevel_scales, None if g is None else add_parts(dg, g.dtype), None]
