"""The states of a delta rule from chunk to chunk, transposed: values by keys.

The state and each write into it are then the left operand of every product. Hopper's tensor cores
read a left operand from registers, where the product before left it. Only rows of inputs and
workspaces go through shared memory, so no step waits for results of the last one to arrive there.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.linear.channel_gates import Rows, workspace_dtype
from kernels.linear.tiles import blocks, keys_of_delta, tile_of
from kernels.primitives.chunks import locate_sequence
from kernels.primitives.decay import decay_of_chunk, head_decay, load_head_gates, pair_decay
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows
from kernels.primitives.states import optional
from kernels.tiles import Entry, cdiv


@triton.jit
def _read(
    S, e_rows, r_rows, rows, keys, stride, left, key_dim,
    PARTS: tl.constexpr, BK: tl.constexpr, DTYPE: tl.constexpr, READ_R: tl.constexpr,
):  # fmt: skip
    """The reads Sᵀ e of rows e, and if READ_R those of rows r, `[BV, C]` each."""
    through = tl.zeros([S[0].shape[0], rows.shape[0]], tl.float32)
    out = tl.zeros([S[0].shape[0], rows.shape[0]], tl.float32)
    for part in tl.static_range(PARTS):
        skip = part * BK
        e = load_rows(e_rows + skip, rows, keys, stride, left, key_dim - skip)
        through = product(S[part], tl.trans(e), DTYPE, FINE_A=True, acc=through)
        if READ_R:
            r = load_rows(r_rows + skip, rows, keys, stride, left, key_dim - skip)
            out = product(S[part], tl.trans(r), DTYPE, acc=out)
    return through, out


@triton.jit
def _scores(
    x_rows, r_rows, g, rows, keys, stride, left, key_dim,
    C: tl.constexpr, PARTS: tl.constexpr, BK: tl.constexpr, DTYPE: tl.constexpr,
    USE_HEAD_G: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """A within a chunk `[C, C]`, transposed: rows are those of x, columns the readers r."""
    A = tl.zeros([C, C], tl.float32)
    for part in tl.static_range(PARTS):
        skip = part * BK
        x = load_rows(x_rows + skip, rows, keys, stride, left, key_dim - skip)
        r = load_rows(r_rows + skip, rows, keys, stride, left, key_dim - skip)
        A = product(x, tl.trans(r), DTYPE, acc=A)
    if USE_HEAD_G:
        A *= pair_decay(0 if REVERSE else 1, g, C, DTYPE)
    seen = rows[:, None] <= rows[None, :]
    if REVERSE:
        seen = rows[:, None] >= rows[None, :]
    return tl.where(seen, A, 0.0)


@triton.jit
def _carry(
    S, y, written, x_rows, w_rows, passed_rows, g, rows, keys, stride, left, key_dim, factor,
    PARTS: tl.constexpr, BK: tl.constexpr, DTYPE: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The state behind a chunk: what of S passes, and what rows x write of y; in reverse less what
    rows w take of `written`."""
    if USE_HEAD_G:
        # A decay of the row as well may be one of y, which is one tile where x has PARTS.
        y *= head_decay(0 if REVERSE else 1, g, DTYPE)[None, :] * factor
        passed = decay_of_chunk(g, DTYPE)
    carried = ()
    for part in tl.static_range(PARTS):
        skip = part * BK
        s = S[part]
        x = load_rows(x_rows + skip, rows, keys, stride, left, key_dim - skip)
        if USE_G:
            channels = passed_rows + skip
            passed = load_rows(channels, tl.arange(0, 1), keys, 0, 1, key_dim - skip)
        if USE_G or USE_HEAD_G:
            s = product(y, x, DTYPE, FINE_A=True, FINE_B=USE_G, acc=s * passed)
        elif REVERSE:
            s += product(y, x, DTYPE, FINE_A=True) * factor
        else:
            s = product(y, x, DTYPE, FINE_A=True, acc=s)
        if REVERSE:
            w = load_rows(w_rows + skip, rows, keys, stride, left, key_dim - skip)
            s = product(-written, w, DTYPE, FINE_A=True, acc=s)
        carried += (s,)
    return carried


@triton.jit(do_not_specialize=["tokens", "heads"])
def _pass_states(
    x_ptr, y_ptr, g_ptr, passed_ptr, e_ptr, w_ptr, r_ptr, scores_ptr, written_ptr, out_ptr,
    initial_ptr, use_initial, states_ptr, final_ptr, store_final, cu_seqlens_ptr,
    factor, scale, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, PARTS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DTYPE: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, FUSED: tl.constexpr,
    REVERSE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program carries all keys of the state of one head, and a tile of its values, through one
    sequence. The keys are PARTS tiles: a product with all at once would take too many registers.

    It stores the state that each chunk starts from. Forwards x, y, e are k, u, w, and `written =
    u - w S` goes into the state. In reverse they are q, do, k, the states are gradients, a chunk
    starts at its end, and `written` is the gradient of what was written: the kernel adds to the
    part from within the chunk. Gates per channel have decayed x, and a chunk lets `passed` of each
    channel through.

    FUSED, it does what `kernels.linear.chunk` has another kernel for: forwards it writes o, of
    readers r, and neither states nor `written`, which nothing else reads; in reverse it computes
    the part of `written` from within the chunk.
    """
    value_tiles = tl.cdiv(value_dim, BV)
    program = tl.program_id(0)
    values = (program % value_tiles) * BV + tl.arange(0, BV)
    keys = tl.arange(0, BK)
    head = program // value_tiles % heads
    sequence = program // (value_tiles * heads)
    first, length, first_chunk = locate_sequence(sequence, cu_seqlens_ptr, tokens, C, PACKED)
    rows = tl.arange(0, C)
    STORES: tl.constexpr = REVERSE or not FUSED
    key_stride = heads * key_dim
    value_stride = heads * value_dim
    token = first * heads + head
    cell = first_chunk * heads + head
    x_ptr += token * key_dim
    e_ptr += token * key_dim
    y_ptr += token * value_dim
    if USE_G:
        passed_ptr += cell * key_dim
    if USE_HEAD_G:
        g_ptr += token
    if REVERSE:
        w_ptr += token * key_dim
    if FUSED:
        r_ptr += token * key_dim
        if USE_G:
            scores_ptr += cell * C * C
    if STORES:
        written_ptr += token * value_dim
        states_ptr += cell * key_dim * value_dim
    else:
        out_ptr += token * value_dim
    state = (sequence.to(tl.int64) * heads + head) * key_dim * value_dim
    # A tile differs from the next in where it begins, and in nothing that takes registers.
    part_size = BK * value_dim
    initial_rows = tl.where(use_initial, key_dim, 0)
    final_rows = tl.where(store_final, key_dim, 0)

    S = ()
    for part in tl.static_range(PARTS):
        tile = load_rows(
            initial_ptr + state + part * part_size,
            keys, values, value_dim, initial_rows - part * BK, value_dim,
        )  # fmt: skip
        S += (tl.trans(tile),)
    chunks = tl.cdiv(length, C)
    for step in tl.range(chunks, disable_licm=True):
        if REVERSE:
            chunk = (chunks - 1 - step).to(tl.int64)
        else:
            chunk = step.to(tl.int64)
        start = chunk * C
        left = (length - start).to(tl.int32)
        x_rows = x_ptr + start * key_stride
        e_rows = e_ptr + start * key_stride
        w_rows = None
        if REVERSE:
            w_rows = w_ptr + start * key_stride
        r_rows = r_ptr + start * key_stride
        if STORES:
            written_rows = written_ptr + start * value_stride
            for part in tl.static_range(PARTS):
                store_rows(
                    states_ptr + chunk * key_stride * value_dim + part * part_size,
                    tl.trans(S[part]), keys, values, value_dim, key_dim - part * BK, value_dim,
                )  # fmt: skip
        g = None
        if USE_HEAD_G:
            g = load_head_gates(g_ptr + start * heads, rows, heads, left)
        through, out = _read(
            S, e_rows, r_rows, rows, keys, key_stride, left, key_dim, PARTS, BK, DTYPE, not STORES
        )
        y = tl.trans(
            load_rows(y_ptr + start * value_stride, rows, values, value_stride, left, value_dim)
        )
        if REVERSE:
            if USE_HEAD_G:
                through *= head_decay(1, g, DTYPE)[None, :]
        else:
            y -= through
        written = y
        if FUSED:
            if USE_G:
                scores = scores_ptr + chunk * heads * C * C
                A = tl.trans(load_rows(scores, rows, rows, C, C, C))
            else:
                A = _scores(
                    x_rows, r_rows, g, rows, keys, key_stride, left, key_dim, C, PARTS, BK, DTYPE,
                    USE_HEAD_G, REVERSE,
                )  # fmt: skip
            A *= scale
            if REVERSE:
                # do may be float32.
                written = product(y, A, DTYPE, FINE_A=True, acc=through)
            else:
                if USE_HEAD_G:
                    out *= head_decay(0, g, DTYPE)[None, :]
                out = product(y, A, DTYPE, FINE_B=USE_G, acc=out * scale)
                out_rows = out_ptr + start * value_stride
                store_rows(out_rows, tl.trans(out), rows, values, value_stride, left, value_dim)
        elif REVERSE:
            inner = load_rows(written_rows, rows, values, value_stride, left, value_dim)
            written = through + tl.trans(inner)
        if STORES:
            store_rows(written_rows, tl.trans(written), rows, values, value_stride, left, value_dim)
        passed_rows = None
        if USE_G:
            passed_rows = passed_ptr + chunk * key_stride
        S = _carry(
            S, y, written, x_rows, w_rows, passed_rows, g, rows, keys, key_stride, left, key_dim,
            factor, PARTS, BK, DTYPE, USE_G, USE_HEAD_G, REVERSE,
        )  # fmt: skip
    for part in tl.static_range(PARTS):
        store_rows(
            final_ptr + state + part * part_size,
            tl.trans(S[part]), keys, values, value_dim, final_rows - part * BK, value_dim,
        )  # fmt: skip


def pass_states(
    rows: Rows,
    y: Tensor,
    initial: Tensor | None,
    *,
    e: Tensor,
    written: Tensor | None = None,
    o: Tensor | None = None,
    w: Tensor | None = None,
    final: bool = False,
    tile: Entry,
) -> tuple[Tensor | None, Tensor | None]:
    """The states before each chunk, and the final one if asked for, with a "fused" tile.

    Args:
        y, e, w: see `_pass_states`, which goes in reverse if there is a w.
        written: what it writes; in reverse, with gates per channel, a part of it is there already.
        o: the outputs, which it writes in place of states and `written`.
    """
    x, r, factor = (rows.k, rows.q, 1.0) if w is None else (rows.q, rows.k, rows.scale)
    fused = o is not None or (w is not None and rows.scores is None)
    chunks = rows.chunks
    heads, key_dim, value_dim = x.shape[2], x.shape[3], y.shape[3]
    states = None
    if o is None:
        shape = chunks.count, heads, key_dim, value_dim
        states = x.new_empty(shape, dtype=workspace_dtype(rows.dtype))
    shape = chunks.sequences, heads, key_dim, value_dim
    last = x.new_empty(shape, dtype=torch.float32) if final else None
    own = tile_of("fused" if fused else "states", tile, key_dim, value_dim)
    _, BV = blocks(key_dim, value_dim, own, rows.dtype)
    # Values are the rows of products here. Two groups of warps side by side would get wrong
    # operands, as would keys of less than 128 bytes: see `Tile.narrowest`.
    warps, BK = own.num_warps, keys_of_delta(key_dim, rows.dtype)
    if rows.dtype.itemsize == 2 and BV >= 64:
        warps, BK = min(warps, BV // 16), max(BK, 64)
    _pass_states[(chunks.sequences * heads * cdiv(value_dim, BV),)](
        x, y, rows.g, rows.passed, e, w, r, rows.scores, written, o,
        *optional(initial, x), states, *optional(last, x), chunks.cu_seqlens,
        factor, rows.scale, x.shape[1], heads, key_dim, value_dim,
        C=tile.tokens, PARTS=cdiv(key_dim, BK), BK=BK, BV=BV,
        **rows.flags(), FUSED=fused, REVERSE=w is not None,
        num_warps=warps, num_stages=own.num_stages,
    )  # fmt: skip
    return states, last
