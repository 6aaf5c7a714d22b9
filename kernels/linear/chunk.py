"""Linear recurrences in chunks: states from chunk to chunk, all else for all chunks at once.

With `S_t = diag(exp g_t) S_{t-1} + k_t v_tᵀ`, `o_t = scale · q_tᵀ S_t` and chunks of C tokens, let
`P_i = Σ_{t <= i} g_t` and `R_j = Σ_{t > j} g_t` be sums over the tokens of one chunk:

    states      S' = diag(exp P_C) S + Σ_j (exp(R_j) ∘ k_j) v_jᵀ
    outputs     o_i = scale · (Sᵀ (exp(P_i) ∘ q_i) + Σ_{j <= i} A_ij v_j)
                A_ij = Σ_k q_ik k_jk exp(Σ_{j < t <= i} g_tk)

and backwards, dS being the gradient of the state after the chunk,

    states      dS' = diag(exp P_C) dS + scale · Σ_i (exp(P_i) ∘ q_i) do_iᵀ
    outputs     dv_j = dSᵀ (exp(R_j) ∘ k_j) + scale · Σ_{i >= j} A_ij do_i

which are the same two kernels with the roles exchanged and time reversed. A third kernel does dq,
dk and dg. States are float32 from chunk to chunk. The copy that `outputs` reads is float32 too,
but bfloat16 for bfloat16 inputs: it would be rounded there anyway (see `primitives.product`).

A separate kernel applies gates per channel before the states, see `kernels.linear.channel_gates`.

Nothing is saved for the backward pass but the inputs: the states are computed again, which costs
less than keeping them.

Source: Yang et al., Gated Linear Attention Transformers with Hardware-Efficient Training,
    arXiv 2312.06635, section 4; the decays within a chunk are halved, see `primitives.decay`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.linear.channel_gates import Rows, rows_of, through_channel_gates, workspace_dtype
from kernels.linear.tiles import blocks, keys_of_delta, tile_of
from kernels.primitives.chunks import Chunks, cut, locate_chunk, locate_section, locate_sequence
from kernels.primitives.decay import (
    chunk_span_transposed,
    decay_of_chunk,
    gate_flags,
    head_decay,
    load_head_gates,
    pair_decay,
    sum_gradients,
)
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows
from kernels.primitives.states import locate_tile, optional
from kernels.tiles import Entry, cdiv


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _pass_states(
    x_ptr, y_ptr, g_ptr, passed_ptr, e_ptr, w_ptr, written_ptr,
    initial_ptr, use_initial, states_ptr, final_ptr, store_final, kept_ptr, cu_seqlens_ptr,
    factor, sequences, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, PARTS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DTYPE: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, DELTA: tl.constexpr,
    SECTION: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program carries one tile of the state of one head through a section of a sequence.

    It stores the state that each chunk starts from, or else `kept`: the factor that all its chunks
    let through of each channel. Forwards x, y are k, v; in reverse they are q, do, the states are
    gradients, and a chunk starts at its end. Gates per channel have decayed x, and a chunk lets
    `passed` of each channel through.

    With a delta rule (see `kernels.delta.chunk`) a program holds all keys, as PARTS tiles: a
    product with all of them at once would take too many registers. Forwards y is u, and
    `written = u - w S` is what goes into the state, e being w. In reverse `written` is the gradient
    of that, the kernel adds to the part from within the chunk, and e is k.
    """
    key_tiles, value_tiles = tl.cdiv(key_dim, PARTS * BK), tl.cdiv(value_dim, BV)
    key_tile, value_tile, head, section = locate_tile(heads, key_tiles, value_tiles)
    values = value_tile * BV + tl.arange(0, BV)
    keys = tl.arange(0, BK)
    first_key = key_tile * PARTS * BK
    first, length, first_chunk = locate_section(
        section, cu_seqlens_ptr, sequences, tokens, C, SECTION, PACKED
    )
    # An empty section has no state to start from. A whole sequence without tokens has one.
    if SECTION != 0 and length <= 0:
        return
    rows = tl.arange(0, C)
    x_ptr += (first * heads + head) * key_dim + first_key
    if USE_G:
        passed_ptr += (first_chunk * heads + head) * key_dim + first_key
    if USE_HEAD_G:
        g_ptr += first * heads + head
    y_ptr += (first * heads + head) * value_dim
    if DELTA:
        e_ptr += (first * heads + head) * key_dim
        w_ptr += (first * heads + head) * key_dim
        written_ptr += (first * heads + head) * value_dim
    states_ptr += ((first_chunk * heads + head) * key_dim + first_key) * value_dim
    state = ((section.to(tl.int64) * heads + head) * key_dim + first_key) * value_dim
    if kept_ptr is not None:
        kept_ptr += (section.to(tl.int64) * heads + head) * key_dim + first_key
        kept = tl.full([BK, 1], 1.0, tl.float32)
    # A tile differs from the next in where it begins, and in nothing that takes registers.
    key_stride = heads * key_dim
    part_size = BK * value_dim
    key_dim -= first_key
    initial_rows = tl.where(use_initial, key_dim, 0)
    final_rows = tl.where(store_final, key_dim, 0)

    S = ()
    for part in tl.static_range(PARTS):
        s = load_rows(
            initial_ptr + state + part * part_size,
            keys, values, value_dim, initial_rows - part * BK, value_dim,
        )  # fmt: skip
        S += (s,)
    chunks = tl.cdiv(length, C)
    for step in tl.range(chunks, disable_licm=DELTA):
        if REVERSE:
            chunk = (chunks - 1 - step).to(tl.int64)
        else:
            chunk = step.to(tl.int64)
        start = chunk * C
        left = (length - start).to(tl.int32)
        x_rows = x_ptr + start * key_stride
        if USE_HEAD_G:
            g = load_head_gates(g_ptr + start * heads, rows, heads, left)
        if kept_ptr is None:
            for part in tl.static_range(PARTS):
                store_rows(
                    states_ptr + chunk * key_stride * value_dim + part * part_size,
                    S[part], keys, values, value_dim, key_dim - part * BK, value_dim,
                )  # fmt: skip
        if DELTA:
            e_rows = e_ptr + start * key_stride
            w_rows = w_ptr + start * key_stride
            written_rows = written_ptr + start * heads * value_dim
            through = tl.zeros([C, BV], tl.float32)
            for part in tl.static_range(PARTS):
                skip = part * BK
                e = load_rows(e_rows + skip, rows, keys, key_stride, left, key_dim - skip)
                through = product(e, S[part], DTYPE, FINE_B=True, acc=through)
            if REVERSE and USE_HEAD_G:
                through *= head_decay(1, g, DTYPE)[:, None]
        y = load_rows(
            y_ptr + start * heads * value_dim, rows, values, heads * value_dim, left, value_dim
        )
        if DELTA:
            if REVERSE:
                written = through + load_rows(
                    written_rows, rows, values, heads * value_dim, left, value_dim
                )
            else:
                y -= through
                written = y
            store_rows(written_rows, written, rows, values, heads * value_dim, left, value_dim)
        if USE_HEAD_G:
            # A decay of the row as well may be one of y, which is one tile where x has PARTS.
            y *= head_decay(0 if REVERSE else 1, g, DTYPE)[:, None] * factor
            passed = decay_of_chunk(g, DTYPE)
        carried = ()
        for part in tl.static_range(PARTS):
            skip = part * BK
            s = S[part]
            x = load_rows(x_rows + skip, rows, keys, key_stride, left, key_dim - skip)
            if USE_G:
                channels = passed_ptr + chunk * key_stride + skip
                passed = load_rows(channels, keys, tl.arange(0, 1), 1, key_dim - skip, 1)
            if USE_G or USE_HEAD_G:
                if kept_ptr is not None:
                    kept *= passed
                s *= passed
                s = product(tl.trans(x), y, DTYPE, FINE_A=True, FINE_B=USE_G or DELTA, acc=s)
            else:
                s += product(tl.trans(x), y, DTYPE, FINE_A=True, FINE_B=True) * factor
            if DELTA and REVERSE:
                w = load_rows(w_rows + skip, rows, keys, key_stride, left, key_dim - skip)
                s = product(tl.trans(w), -written, DTYPE, FINE_B=True, acc=s)
            carried += (s,)
        S = carried
    for part in tl.static_range(PARTS):
        store_rows(
            final_ptr + state + part * part_size,
            S[part], keys, values, value_dim, final_rows - part * BK, value_dim,
        )  # fmt: skip
    if kept_ptr is not None:
        store_rows(
            kept_ptr, kept, keys, tl.arange(0, 1), 1, key_dim, tl.where(value_tile == 0, 1, 0)
        )


@triton.jit(do_not_specialize=["tokens"])
def _link_sections(
    added_ptr, kept_ptr, initial_ptr, use_initial, starts_ptr, final_ptr, store_final,
    cu_seqlens_ptr, tokens, size, value_dim,
    BLOCK: tl.constexpr, SECTION: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program carries BLOCK of the `size` numbers of a sequence's states from section to section.

    It stores the state that each section starts from, and the final one.
    """
    blocks = tl.cdiv(size, BLOCK)
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    cells = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = cells < size
    _, length, first = locate_sequence(sequence, cu_seqlens_ptr, tokens, SECTION, PACKED)
    S = tl.load(initial_ptr + sequence * size + cells, mask=inside & use_initial, other=0.0)
    sections = tl.cdiv(length, SECTION)
    for step in range(sections):
        section = first + (sections - 1 - step if REVERSE else step)
        state = section * size + cells
        tl.store(starts_ptr + state, S, mask=inside)
        kept = tl.load(kept_ptr + state // value_dim, mask=inside, other=0.0)
        S = S * kept + tl.load(added_ptr + state, mask=inside, other=0.0)
    tl.store(final_ptr + sequence * size + cells, S, mask=inside & store_final)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _outputs(
    r_ptr, c_ptr, y_ptr, g_ptr, scores_ptr, states_ptr, out_ptr, cu_seqlens_ptr,
    state_factor, score_factor, sequences, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DTYPE: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, USE_STATES: tl.constexpr,
    REVERSE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes a tile of o for one chunk and head; in reverse, of dv.

    Forwards r, c, y are q, k, v and a row sees the columns up to itself; in reverse they are
    k, q, do, and a row sees the columns from itself on. Gates per channel have decayed r, and the
    scores are there already. Without states it is the part from within the chunk.
    """
    value_tiles = tl.cdiv(value_dim, BV)
    program = tl.program_id(0)
    values = (program % value_tiles) * BV + tl.arange(0, BV)
    head = program // value_tiles % heads
    chunk = program // (value_tiles * heads)
    first, left, _, _ = locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    r_ptr += (first * heads + head) * key_dim
    y_ptr += (first * heads + head) * value_dim
    out_ptr += (first * heads + head) * value_dim
    cell = chunk.to(tl.int64) * heads + head
    if USE_STATES:
        states_ptr += cell * key_dim * value_dim

    out = tl.zeros([C, BV], tl.float32)
    if USE_G:
        A = load_rows(scores_ptr + cell * C * C, rows, rows, C, C, C)
        if REVERSE:
            A = tl.trans(A)
    else:
        A = tl.zeros([C, C], tl.float32)
        c_ptr += (first * heads + head) * key_dim
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        r = load_rows(r_ptr, rows, keys, heads * key_dim, left, key_dim)
        if USE_STATES:
            S = load_rows(states_ptr, keys, values, value_dim, key_dim, value_dim)
            out += product(r, S, DTYPE)
        if not USE_G:
            c = load_rows(c_ptr, rows, keys, heads * key_dim, left, key_dim)
            A += product(r, tl.trans(c), DTYPE)
    if USE_HEAD_G:
        g = load_head_gates(g_ptr + first * heads + head, rows, heads, left)
        out *= head_decay(1 if REVERSE else 0, g, DTYPE)[:, None]
        A *= pair_decay(1 if REVERSE else 0, g, C, DTYPE)
    if not USE_G:
        seen = rows[None, :] >= rows[:, None] if REVERSE else rows[None, :] <= rows[:, None]
        A = tl.where(seen, A, 0.0)
    y = load_rows(y_ptr, rows, values, heads * value_dim, left, value_dim)
    # A with gates comes of two roundings already; do may be float32.
    A *= score_factor
    out = out * state_factor + product(A, y, DTYPE, FINE_A=USE_G, FINE_B=True)
    store_rows(out_ptr, out, rows, values, heads * value_dim, left, value_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _gradients(
    q_ptr, k_ptr, v_ptr, g_ptr, do_ptr, states_ptr, dstates_ptr, e_ptr, de_decayed_ptr,
    doverlaps_ptr, dq_ptr, dk_ptr, dg_ptr, de_ptr, cu_seqlens_ptr,
    scale, rows_in_all, sequences, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LEVELS: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr,
    DELTA: tl.constexpr, EXCLUSIVE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program writes a tile of dq, dk and dg for one chunk and head.

        dA_ij = scale · do_i · v_j                                        (j <= i)
        dq_i = scale · exp(P_i) ∘ (S do_i) + Σ_{j <= i} dA_ij exp(Σ_{j < t <= i} g_t) ∘ k_j
        dk_j = exp(R_j) ∘ (dS v_j) + Σ_{i >= j} dA_ij exp(Σ_{j < t <= i} g_t) ∘ q_i

    A gate gets from each exponent that it is in the gradient of that exponent, which is
    q ∘ dq or k ∘ dk of the part of dq, dk that came through it, and exp(P_C) ∘ Σ_v S ∘ dS from
    what passes the chunk untouched. A gate that a head shares gets the sum over the channels; with
    more than one tile of keys, `dg` holds one part per tile.

    Gates per channel of a delta rule decay its readers e and their overlaps as well, see
    `through_channel_gates`. The gradient of e is `de` with EXCLUSIVE readers, else a part of dk.
    """
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    key_tiles = tl.cdiv(key_dim, BK)
    program = tl.program_id(0)
    keys = (program % key_tiles) * BK + tl.arange(0, BK)
    head = program // key_tiles % heads
    chunk = program // (key_tiles * heads)
    first, left, _, _ = locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    key_rows = (first * heads + head) * key_dim
    v_ptr += (first * heads + head) * value_dim
    do_ptr += (first * heads + head) * value_dim
    states_ptr += (chunk.to(tl.int64) * heads + head) * key_dim * value_dim
    dstates_ptr += (chunk.to(tl.int64) * heads + head) * key_dim * value_dim

    if USE_HEAD_G:
        g = load_head_gates(g_ptr + first * heads + head, rows, heads, left)
    dA = tl.zeros([C, C], tl.float32)
    dq = tl.zeros([C, BK], tl.float32)
    dk = tl.zeros([C, BK], tl.float32)
    through = tl.zeros([BK], tl.float32)
    for start in range(0, value_dim, BV):
        values = start + tl.arange(0, BV)
        v = load_rows(v_ptr, rows, values, heads * value_dim, left, value_dim)
        do = load_rows(do_ptr, rows, values, heads * value_dim, left, value_dim)
        S = load_rows(states_ptr, keys, values, value_dim, key_dim, value_dim)
        dS = load_rows(dstates_ptr, keys, values, value_dim, key_dim, value_dim)
        dA += product(do, tl.trans(v), DTYPE, FINE_A=True)
        dq += product(do, tl.trans(S), DTYPE, FINE_A=True)
        dk += product(v, tl.trans(dS), DTYPE)
        if USE_G or USE_HEAD_G:
            through += tl.sum(S.to(tl.float32) * dS, 1)
    dq *= scale
    dA = tl.where(rows[None, :] <= rows[:, None], dA, 0.0) * scale
    q_ptr += key_rows
    k_ptr += key_rows
    if USE_G:
        if DELTA:
            e_ptr += key_rows
            de_decayed_ptr += key_rows
            doverlaps_ptr += (chunk.to(tl.int64) * heads + head) * C * C
        dq, dk, dg, de = through_channel_gates(
            q_ptr, k_ptr, g_ptr + key_rows, e_ptr, de_decayed_ptr, doverlaps_ptr, dq, dk, dA,
            through, rows, keys, heads * key_dim, left, key_dim, C, BK, LEVELS, DELTA, EXCLUSIVE,
            DTYPE,
        )  # fmt: skip
        if EXCLUSIVE:
            store_rows(de_ptr + key_rows, de, rows, keys, heads * key_dim, left, key_dim)
        store_rows(dg_ptr + key_rows, dg, rows, keys, heads * key_dim, left, key_dim)
    else:
        q = load_rows(q_ptr, rows, keys, heads * key_dim, left, key_dim)
        k = load_rows(k_ptr, rows, keys, heads * key_dim, left, key_dim)
        if USE_HEAD_G:
            dq *= head_decay(0, g, DTYPE)[:, None]
            dk *= head_decay(1, g, DTYPE)[:, None]
            dA *= pair_decay(0, g, C, DTYPE)
            # The gate at t gets those of pairs i >= t > j, of queries from t on, of keys before.
            terms = dA * product(q, tl.trans(k), DTYPE)
            straddling = sum_gradients(chunk_span_transposed(0, C), terms, DTYPE)
            straddling += tl.sum(k * dk, 1)[None, :]
            dg = tl.sum(tl.where(chunk_span_transposed(1, C), straddling, 0.0), 1)
            dg += tl.cumsum(tl.sum(q * dq, 1), 0, reverse=True)
            dg += tl.sum(through, 0) * decay_of_chunk(g, DTYPE)
            dg_ptr += ((program % key_tiles).to(tl.int64) * rows_in_all + first) * heads + head
            tl.store(dg_ptr + rows * heads, dg, mask=rows < left)
        dq += product(dA, k, DTYPE)
        dk += product(tl.trans(dA), q, DTYPE)
    store_rows(dq_ptr + key_rows, dq, rows, keys, heads * key_dim, left, key_dim)
    store_rows(dk_ptr + key_rows, dk, rows, keys, heads * key_dim, left, key_dim)


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, *, scale: float,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, tile: Entry, output_final_state: bool,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Outputs and, if asked for, final states.

    Args:
        q, k: `[B, T, H, K]`; v: `[B, T, H, V]`, of one dtype. Strides are free, what is not
            contiguous is copied.
        g: log decay of the keys `[B, T, H, K]`, or of the heads `[B, T, H]`, in that dtype or
            float32, or None.
        scale: factor of `q · k`, a literal.
        initial_state: `[N, H, K, V]` float32, or None for zero.
        cu_seqlens: `[N+1]`, checked; None for a dense batch.

    Returns:
        `o [B, T, H, V]` in `out_dtype`, `final_state [N, H, K, V]` float32 or None.
    """
    q, k, v, g = contiguous(q, k, v, g)
    chunks = cut(q.shape[0], q.shape[1], cu_seqlens, tile.tokens)
    rows = rows_of(q, k, g, chunks, scale=scale, tile=tile, reads_only=True)
    states, final = pass_states(rows, v, initial_state, final=output_final_state, tile=tile)
    o = torch.empty_like(v, dtype=out_dtype)
    outputs(rows, v, states, o, tile=tile)
    return o, final


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, *, scale: float,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, tile: Entry, do: Tensor,
    dfinal_state: Tensor | None, keys_dtype: torch.dtype, values_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of `forward`'s inputs from those of its outputs.

    Args:
        do: `[B, T, H, V]` in the dtype of q or float32.
        dfinal_state: `[N, H, K, V]` float32, or None for zero.
        keys_dtype: of dq and dk; float32 where they are summed over heads afterwards.
        values_dtype: of dv; float32 where a wrapper computes v, see `kernels.recurrence.compute`.

    Returns:
        dq, dk, dv; dg in the dtype of g, dinitial_state float32; dg and dinitial_state are None
        where there is no input.
    """
    q, k, v, g, do = contiguous(q, k, v, g, do)
    chunks = cut(q.shape[0], q.shape[1], cu_seqlens, tile.tokens)
    rows = rows_of(q, k, g, chunks, scale=scale, tile=tile)
    states, _ = pass_states(rows, v, initial_state, tile=tile)
    dstates, dinitial = pass_states(
        rows, do, dfinal_state, final=initial_state is not None, reverse=True, tile=tile
    )
    dv = torch.empty_like(v, dtype=values_dtype)
    outputs(rows, do, dstates, dv, reverse=True, tile=tile)
    del rows  # before `gradients` wants memory
    dq, dk, dg, _ = gradients(
        q, k, v, g, do, states, dstates, chunks, scale=scale, tile=tile, keys_dtype=keys_dtype
    )
    return dq, dk, dv, dg, dinitial


def gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    do: Tensor,
    states: Tensor,
    dstates: Tensor,
    chunks: Chunks,
    *,
    scale: float,
    tile: Entry,
    keys_dtype: torch.dtype,
    partial: bool = False,
    delta: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """dq, dk and dg of `outputs` and `pass_states`, and de.

    Args:
        partial: dk and dg are not all there is to their inputs; they come in float32.
        delta: readers e of a delta rule with gates per channel, the gradient of what they are
            decayed, and that of their overlaps. Where e is not k it has a gradient, in float32.
    """
    e, de_decayed, doverlaps = delta or (None, None, None)
    exclusive = e is not None and e is not k
    de = torch.empty_like(e, dtype=torch.float32) if exclusive else None
    dq = torch.empty_like(q, dtype=keys_dtype)
    dk = torch.empty_like(k, dtype=torch.float32 if partial else keys_dtype)
    heads, key_dim, value_dim = q.shape[2], q.shape[3], v.shape[3]
    own = tile_of("gradients", tile, key_dim, value_dim)
    BK, BV = blocks(key_dim, value_dim, own, q.dtype)
    key_tiles = cdiv(key_dim, BK)
    dg = None
    if g is not None:
        dtype_g = torch.float32 if partial else g.dtype
        dg = empty_parts(1 if g.dim() == 4 else key_tiles, g.shape, dtype_g, g.device)
    grid = chunks.count * heads * key_tiles
    _gradients[(grid,)](
        q, k, v, g, do, states, dstates, e, de_decayed, doverlaps, dq, dk, dg, de,
        chunks.cu_seqlens, scale, q.shape[0] * q.shape[1], chunks.sequences, q.shape[1],
        heads, key_dim, value_dim,
        C=tile.tokens, BK=BK, BV=BV, LEVELS=tile.tokens.bit_length() - 1,
        **gate_flags(g), DELTA=delta is not None, EXCLUSIVE=exclusive,
        PACKED=chunks.cu_seqlens is not None, num_warps=own.num_warps, num_stages=own.num_stages,
    )  # fmt: skip
    return dq, dk, None if dg is None else add_parts(dg, dtype_g), de


def pass_states(
    rows: Rows,
    y: Tensor,
    initial: Tensor | None,
    *,
    final: bool = False,
    reverse: bool = False,
    tile: Entry,
    delta: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The state that each chunk starts from, `[chunks, H, K, V]`, and the final one if asked for.

    Forwards y is v. In reverse it is do, states are gradients, and a chunk starts at its end.

    A state is linear in the one before it. Where the tile has sections, what each of them adds to
    a state, and keeps of it, is computed side by side; then the states that they start from; and
    then those of the chunks, side by side again.

    Args:
        delta: w and `written` of a delta rule, see `_pass_states`.
    """
    x, factor = (rows.q, rows.scale) if reverse else (rows.k, 1.0)
    chunks = rows.chunks
    heads, key_dim, value_dim = x.shape[2], x.shape[3], y.shape[3]
    dtype = workspace_dtype(rows.dtype)
    states = x.new_empty(chunks.count, heads, key_dim, value_dim, dtype=dtype)
    shape = chunks.sequences, heads, key_dim, value_dim
    last = x.new_empty(shape, dtype=torch.float32) if final else None
    tokens = x.shape[1]
    # Two sections would take two walks of half the length.
    section = tile.section if tile.section is not None and tokens > 2 * tile.section else 0
    own = tile_of("sections" if section else "states", tile, key_dim, value_dim)
    BK, BV = blocks(key_dim, value_dim, own, rows.dtype)
    parts, e, w, written = 1, None, None, None
    if delta is not None:
        BK = keys_of_delta(key_dim, rows.dtype)
        parts = cdiv(key_dim, BK)
        w, written = delta
        e = rows.k if reverse else w
    sections = chunks.sequences
    if section:
        sections = cut(x.shape[0], tokens, chunks.cu_seqlens, section).count
    grid = sections * heads * cdiv(key_dim, parts * BK) * cdiv(value_dim, BV)

    def carry(initial: Tensor | None, final: Tensor | None, kept: Tensor | None = None) -> None:
        _pass_states[(grid,)](
            x, y, rows.g, rows.passed, e, w, written,
            *optional(initial, x), states, *optional(final, x), kept, chunks.cu_seqlens,
            factor, chunks.sequences, tokens, heads, key_dim, value_dim,
            C=tile.tokens, PARTS=parts, BK=BK, BV=BV,
            **rows.flags(), DELTA=delta is not None, SECTION=section, REVERSE=reverse,
            num_warps=own.num_warps, num_stages=own.num_stages,
        )  # fmt: skip

    if not section:
        carry(initial, last)
    else:
        size = heads * key_dim * value_dim
        added = x.new_empty(sections, size, dtype=torch.float32)
        starts = torch.empty_like(added)
        kept = x.new_empty(sections, heads * key_dim, dtype=torch.float32)
        carry(None, added, kept)
        _link_sections[(chunks.sequences * cdiv(size, 1024),)](
            added, kept, *optional(initial, x), starts, *optional(last, x),
            chunks.cu_seqlens, tokens, size, value_dim,
            BLOCK=1024, SECTION=section, REVERSE=reverse, PACKED=chunks.cu_seqlens is not None,
        )  # fmt: skip
        carry(starts, None)
    return states, last


def outputs(
    rows: Rows,
    y: Tensor,
    states: Tensor | None,
    out: Tensor,
    *,
    reverse: bool = False,
    tile: Entry,
) -> None:
    """Write o, of values y; in reverse dv, of `do` for y and gradients of states. Without states it
    is the part from within the chunks."""
    r, c, factor = (rows.k, rows.q, 1.0) if reverse else (rows.q, rows.k, rows.scale)
    chunks = rows.chunks
    heads, key_dim, value_dim = r.shape[2], r.shape[3], y.shape[3]
    own = tile_of("outputs", tile, key_dim, value_dim)
    BK, BV = blocks(key_dim, value_dim, own, rows.dtype)
    grid = chunks.count * heads * cdiv(value_dim, BV)
    _outputs[(grid,)](
        r, c, y, rows.g, rows.scores, states, out, chunks.cu_seqlens,
        factor, rows.scale, chunks.sequences, r.shape[1], heads, key_dim, value_dim,
        C=tile.tokens, BK=BK, BV=BV,
        **rows.flags(), USE_STATES=states is not None, REVERSE=reverse,
        num_warps=own.num_warps, num_stages=own.num_stages,
    )  # fmt: skip
