"""TTT-Linear by mini-batches: one program walks with the model of a head, which lies in memory.

The layer norm sees all channels of a value, so that a program holds as many, and of keys a tile at
a time. With S = (W; b) the model before a mini-batch, and a one behind each q (times the scale) and
each k,

    z_j = Sᵀ k_j                  u_j = ∇ of the loss at z_j
    y_t = Sᵀ q_t - η_t Σ_{j <= t} (q_t · k_j) u_j          o_t = y_t + w ∘ n(y_t) + b
    S'  = S - η_C Σ_j k_j u_jᵀ

where n(z) = (z - mean) / σ. Backwards, with D what the mini-batch after has handed back of S',

    dy_t = do_t + Nᵀ(y_t) w ∘ do_t                with N the Jacobian of n
    du_j = -Σ_{t >= j} η_t (q_t · k_j) dy_t - η_C Dᵀ k_j
    dq_t = S dy_t - η_t Σ_{j <= t} (dy_t · u_j) k_j
    dk_j = S dz_j - η_C D u_j - Σ_{t >= j} η_t (dy_t · u_j) q_t - dtarget_j
    dη_t = -Σ_{j <= t} (q_t · k_j) (dy_t · u_j),      that of the last token less Σ_j k_jᵀ D u_j too

and `D + Σ q_t dy_tᵀ + Σ k_j dz_jᵀ` is handed back. Only D is passed from one mini-batch to
another: dy and what it gives to du come for all of them at once, and after the walk dq, dk and dη
do. dz, dtarget and the gradients of the norm follow from du by the product rule:

    u = (g - mean(g) - n mean(n g)) / σ,    g = w ∘ r,    r = w ∘ n + b - target
    d = du / σ,    dg = d - mean(d) - n mean(n d),    dtarget = -w ∘ dg
    dn = w² ∘ dg - d mean(n g) - g mean(n d),    dz = Nᵀ dn - n mean(d u)

Mini-batches are cut into blocks of ROWS tokens, and may be of any size. The models before all
mini-batches are kept for the way back. All that is not an input is float32, and multiplied as two
numbers of 16 bits where inputs have 16: a walk rounds at each step.
"""

from typing import Any, Literal, Unpack

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries, check_size, count_sequences
from kernels.differentiable import Given, differentiable
from kernels.norm.l2norm import BAD_EPS, check_eps
from kernels.primitives.chunks import cut, locate_chunk, locate_sequence
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.product import TRITON_DTYPES, product
from kernels.primitives.rows import load_number, load_rows, store_rows
from kernels.primitives.states import optional, output_and_states
from kernels.recurrence import Options, own_modes
from kernels.tiles import next_power_of_2


@triton.jit
def _model(
    x_ptr, S_ptr, rows, left, stride, dim, factor,
    DTYPE: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The outputs of a model for rows of inputs times a factor, `[ROWS, BV]`."""
    cols = tl.arange(0, BV)
    made = tl.zeros((rows.shape[0], BV), dtype=tl.float32)
    for at in range(0, dim, BK):
        keys = at + tl.arange(0, BK)
        x = load_rows(x_ptr, rows, keys, stride, left, dim)
        made = product(x, load_rows(S_ptr, keys, cols, dim, dim, dim), DTYPE, FINE_B=True, acc=made)
    bias = tl.load(S_ptr + dim.to(tl.int64) * dim + cols, mask=cols < dim, other=0.0)
    return made * factor + bias[None, :]


@triton.jit
def _cross(
    x_ptr, y_ptr, x_rows, y_rows, x_count, y_count, x_stride, y_stride, dim,
    DTYPE: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Products of rows x with rows y, from slices of both."""
    total = tl.zeros((x_rows.shape[0], y_rows.shape[0]), dtype=tl.float32)
    for at in range(0, dim, BK):
        cols = at + tl.arange(0, BK)
        x = load_rows(x_ptr, x_rows, cols, x_stride, x_count, dim)
        y = load_rows(y_ptr, y_rows, cols, y_stride, y_count, dim)
        total = product(x, tl.trans(y), DTYPE, FINE_A=True, FINE_B=True, acc=total)
    return total


@triton.jit
def _pairs(
    q_ptr, k_ptr, rows, queries, keys, count, stride, dim, scale,
    DTYPE: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """q · k + 1 of two blocks of a mini-batch, `[ROWS, ROWS]`, 0 where the key is later."""
    scores = _cross(
        q_ptr, k_ptr, queries + rows, keys + rows, count, count, stride, stride, dim, DTYPE, BK
    )
    return _seen(scores * scale + 1.0, rows, queries, keys, count)


@triton.jit
def _seen(x, rows, queries, keys, count):
    """Pairs of a query and a key that is no later, both of the mini-batch; 0 for others."""
    earlier = (queries + rows)[:, None] >= (keys + rows)[None, :]
    return tl.where(earlier & ((queries + rows) < count)[:, None], x, 0.0)


@triton.jit
def _mean(x, dim):
    return (tl.sum(x, 1) / dim)[:, None]


@triton.jit
def _normalized(x, inside, dim, eps):
    """Rows by their mean and deviation, and 1 / deviation `[ROWS, 1]`."""
    centered = tl.where(inside, x - _mean(tl.where(inside, x, 0.0), dim), 0.0)
    inverse = 1.0 / tl.sqrt(_mean(centered * centered, dim) + eps)
    return centered * inverse, inverse


@triton.jit
def _through_norm(dn, n, inverse, inside, dim):
    """The gradient of what was normalized."""
    dx = (dn - _mean(dn, dim) - n * _mean(dn * n, dim)) * inverse
    return tl.where(inside, dx, 0.0)


@triton.jit
def _error(k_ptr, v_ptr, z, w, bias, rows, left, stride, dim, eps, BV: tl.constexpr):
    """n, 1 / σ, r, and which of all cells there are, for outputs z of the model."""
    cols = tl.arange(0, BV)
    inside = (rows < left)[:, None] & (cols < dim)[None, :]
    n, inverse = _normalized(z, inside, dim, eps)
    v = load_rows(v_ptr, rows, cols, stride, left, dim).to(tl.float32)
    k = load_rows(k_ptr, rows, cols, stride, left, dim).to(tl.float32)
    r = w[None, :] * n + bias[None, :] - (v - k)
    return n, inverse, tl.where(inside, r, 0.0), inside


@triton.jit
def _outputs(
    q_ptr, k_ptr, eta_ptr, S_ptr, errors_ptr, rows, block, count, stride, heads, dim, scale,
    DTYPE: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y of a block of a mini-batch."""
    y = _model(
        q_ptr + block * stride, S_ptr, rows, count - block, stride, dim, scale, DTYPE, BK, BV
    )
    eta = _rates(eta_ptr, rows, block, count, heads)
    for keys in range(0, block + 1, ROWS):
        a = _pairs(q_ptr, k_ptr, rows, block, keys, count, stride, dim, scale, DTYPE, BK)
        u = load_rows(errors_ptr, keys + rows, tl.arange(0, BV), stride, count, dim)
        y = product(-eta[:, None] * a, u, DTYPE, FINE_A=True, FINE_B=True, acc=y)
    return y


@triton.jit
def _rates(eta_ptr, rows, block, count, heads):
    """The rates η `[ROWS]` of the tokens of a block; 0 past the last of its mini-batch."""
    at = eta_ptr + (block + rows) * heads
    return tl.load(at, mask=block + rows < count, other=0.0).to(tl.float32)


@triton.jit
def _copy(from_ptr, to_ptr, copied, stored, dim, BK: tl.constexpr, BV: tl.constexpr):
    """Store a model if `stored`: a copy if `copied`, else zeros."""
    cols = tl.arange(0, BV)
    for at in range(0, dim + 1, BK):
        keys = at + tl.arange(0, BK)
        cells = keys[:, None] * dim + cols[None, :]
        inside = (keys <= dim)[:, None] & (cols < dim)[None, :]
        x = tl.load(from_ptr + cells, mask=inside & copied, other=0.0)
        tl.store(to_ptr + cells, x, mask=inside & stored)


@triton.jit(do_not_specialize=["tokens", "heads", "size"])
def _forward(
    q_ptr, k_ptr, v_ptr, weight_ptr, bias_ptr, eta_ptr, cu_seqlens_ptr,
    initial_ptr, use_initial, o_ptr, final_ptr, store_final, states_ptr, errors_ptr,
    scale, eps, tokens, heads, size, dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr, KEEP: tl.constexpr,
    PACKED: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Outputs and final states; with KEEP the models before all mini-batches in their place."""
    state = tl.program_id(0).to(tl.int64)
    head = state % heads
    sequence = state // heads
    first, length, _ = locate_sequence(sequence, cu_seqlens_ptr, tokens, 1, PACKED)
    cells = (dim.to(tl.int64) + 1) * dim
    if KEEP:
        first_batch = first // size + sequence if PACKED else sequence * tl.cdiv(tokens, size)
        S_ptr = states_ptr + (first_batch * heads + head) * cells
        to_next = heads * cells
    else:
        S_ptr = states_ptr + state * cells
        to_next = cells * 0
    cols = tl.arange(0, BV)
    rows = tl.arange(0, ROWS)
    w = tl.load(weight_ptr + head * dim + cols, mask=cols < dim, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + head * dim + cols, mask=cols < dim, other=0.0).to(tl.float32)
    stride = heads * dim

    _copy(initial_ptr + state * cells, S_ptr, use_initial, length > 0, dim, BK, BV)
    if length == 0:
        _copy(initial_ptr + state * cells, final_ptr + state * cells, use_initial, store_final,
              dim, BK, BV)  # fmt: skip
    for start in range(0, length, size):
        count = tl.minimum(size, length - start)
        here = (first + start) * heads + head
        q, k, v, errors = (
            q_ptr + here * dim, k_ptr + here * dim, v_ptr + here * dim, errors_ptr + here * dim
        )  # fmt: skip
        tl.debug_barrier()
        for block in range(0, count, ROWS):
            left = count - block
            on = block * stride
            z = _model(k + on, S_ptr, rows, left, stride, dim, 1.0, DTYPE, BK, BV)
            n, inverse, r, inside = _error(
                k + on, v + on, z, w, bias, rows, left, stride, dim, eps, BV
            )
            u = _through_norm(w[None, :] * r, n, inverse, inside, dim)
            store_rows(errors + on, u, rows, cols, stride, left, dim)
        tl.debug_barrier()
        if not KEEP:
            for block in range(0, count, ROWS):
                y = _outputs(
                    q, k, eta_ptr + here, S_ptr, errors, rows, block, count, stride, heads, dim,
                    scale, DTYPE, BK, BV, ROWS,
                )  # fmt: skip
                n, inverse = _normalized(y, (cols < dim)[None, :], dim, eps)
                o = y + w[None, :] * n + bias[None, :]
                store_rows(o_ptr + here * dim, o, block + rows, cols, stride, count, dim)
            tl.debug_barrier()
        last = load_number(eta_ptr, here + (count - 1) * heads)
        if not KEEP or start + size < length:
            for at in range(0, dim, BK):
                keys = at + tl.arange(0, BK)
                change = tl.zeros((BK, BV), dtype=tl.float32)
                for block in range(0, count, ROWS):
                    x = load_rows(k, block + rows, keys, stride, count, dim)
                    u = load_rows(errors, block + rows, cols, stride, count, dim)
                    change = product(tl.trans(x), u, DTYPE, FINE_B=True, acc=change)
                W = load_rows(S_ptr, keys, cols, dim, dim, dim)
                store_rows(S_ptr + to_next, W - last * change, keys, cols, dim, dim, dim)
            total = tl.zeros((BV,), dtype=tl.float32)
            for block in range(0, count, ROWS):
                total += tl.sum(load_rows(errors, block + rows, cols, stride, count, dim), 0)
            b = tl.load(S_ptr + dim.to(tl.int64) * dim + cols, mask=cols < dim, other=0.0)
            S_ptr += to_next
            tl.store(S_ptr + dim.to(tl.int64) * dim + cols, b - last * total, mask=cols < dim)
    if not KEEP:
        tl.debug_barrier()
        _copy(
            S_ptr, final_ptr + state * cells, length > 0, store_final & (length > 0), dim, BK, BV
        )  # fmt: skip


@triton.jit
def _locate_mini_batch(
    cu_seqlens_ptr, sequences, tokens, heads, size, PACKED: tl.constexpr
):  # fmt: skip
    """Where the mini-batch and head of a program are.

    Returns:
        The first row (int64), the number of tokens, the index of the model (int64) and the head.
    """
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    first, left, _, _ = locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, size, PACKED)
    return first * heads + head, tl.minimum(size, left), chunk.to(tl.int64) * heads + head, head


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "size"])
def _outputs_backward(
    q_ptr, k_ptr, weight_ptr, eta_ptr, cu_seqlens_ptr, do_ptr, states_ptr, errors_ptr,
    dy_ptr, z_ptr, du_ptr, dweight_ptr, dbias_ptr,
    scale, eps, sequences, tokens, heads, size, dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """dy and z of a mini-batch, the part of du through dy, and the gradients of the norm of its
    outputs."""
    here, count, part, head = _locate_mini_batch(
        cu_seqlens_ptr, sequences, tokens, heads, size, PACKED
    )
    stride = heads * dim
    S_ptr = states_ptr + part * (dim.to(tl.int64) + 1) * dim
    q, k, errors = q_ptr + here * dim, k_ptr + here * dim, errors_ptr + here * dim
    do, dy = do_ptr + here * dim, dy_ptr + here * dim
    eta = eta_ptr + here
    rows = tl.arange(0, ROWS)
    cols = tl.arange(0, BV)
    w = tl.load(weight_ptr + head * dim + cols, mask=cols < dim, other=0.0).to(tl.float32)
    dweight = tl.zeros((BV,), dtype=tl.float32)
    dbias = tl.zeros((BV,), dtype=tl.float32)
    for block in range(0, count, ROWS):
        y = _outputs(
            q, k, eta, S_ptr, errors, rows, block, count, stride, heads, dim, scale,
            DTYPE, BK, BV, ROWS,
        )  # fmt: skip
        inside = (block + rows < count)[:, None] & (cols < dim)[None, :]
        n, inverse = _normalized(y, inside, dim, eps)
        do_rows = load_rows(do, block + rows, cols, stride, count, dim).to(tl.float32)
        dweight += tl.sum(do_rows * n, 0)
        dbias += tl.sum(do_rows, 0)
        dy_rows = do_rows + _through_norm(w[None, :] * do_rows, n, inverse, inside, dim)
        store_rows(dy, dy_rows, block + rows, cols, stride, count, dim)
    # An empty mini-batch has parts too.
    tl.store(dweight_ptr + part * dim + cols, dweight, mask=cols < dim)
    tl.store(dbias_ptr + part * dim + cols, dbias, mask=cols < dim)
    tl.debug_barrier()
    for block in range(0, count, ROWS):
        left = count - block
        z = _model(k + block * stride, S_ptr, rows, left, stride, dim, 1.0, DTYPE, BK, BV)
        store_rows(z_ptr + here * dim, z, block + rows, cols, stride, count, dim)
        du = tl.zeros((ROWS, BV), dtype=tl.float32)
        for queries in range(block, count, ROWS):
            a = _pairs(q, k, rows, queries, block, count, stride, dim, scale, DTYPE, BK)
            rates = _rates(eta, rows, queries, count, heads)
            dy_rows = load_rows(dy, queries + rows, cols, stride, count, dim)
            du = product(
                tl.trans(-rates[:, None] * a), dy_rows, DTYPE, FINE_A=True, FINE_B=True, acc=du
            )
        store_rows(du_ptr + here * dim, du, block + rows, cols, stride, count, dim)


@triton.jit
def _errors_backward(
    k_ptr, v_ptr, D_ptr, errors_ptr, direct_ptr, dz_ptr, dv_ptr, w, bias, dweight, dbias,
    last, count, stride, dim, eps,
    DTYPE: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write dv of a mini-batch, dz over a part of du, and over z the part of dk through targets
    and D.

    Returns:
        The gradients of the norm, to which this adds those through errors, and the part of the
        gradient of the last token's rate through D.
    """
    rows = tl.arange(0, ROWS)
    cols = tl.arange(0, BV)
    dlast = 0.0
    for block in range(0, count, ROWS):
        left = count - block
        on = block * stride
        u = load_rows(errors_ptr, block + rows, cols, stride, count, dim)
        du = _model(k_ptr + on, D_ptr, rows, left, stride, dim, 1.0, DTYPE, BK, BV)
        dlast -= tl.sum(tl.sum(du * u, 1), 0)
        du = load_rows(dz_ptr, block + rows, cols, stride, count, dim) - last * du
        z = load_rows(direct_ptr, block + rows, cols, stride, count, dim)
        n, inverse, r, inside = _error(
            k_ptr + on, v_ptr + on, z, w, bias, rows, left, stride, dim, eps, BV
        )
        d = tl.where(inside, du * inverse, 0.0)
        along = _mean(d * n, dim)
        dg = tl.where(inside, d - _mean(d, dim) - n * along, 0.0)
        dr = w[None, :] * dg
        dweight += tl.sum(dg * r + dr * n, 0)
        dbias += tl.sum(dr, 0)
        store_rows(dv_ptr, -dr, block + rows, cols, stride, count, dim)
        g = w[None, :] * r
        dn = w[None, :] * dr - d * _mean(g * n, dim) - g * along
        dz = _through_norm(dn, n, inverse, inside, dim) - n * _mean(d * u, dim)
        store_rows(dz_ptr, dz, block + rows, cols, stride, count, dim)
        direct = dr - last * _cross(
            errors_ptr, D_ptr, block + rows, cols, count, dim, stride, dim, dim, DTYPE, BK
        )
        store_rows(direct_ptr, direct, block + rows, cols, stride, count, dim)
    return dweight, dbias, dlast


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "size"])
def _inputs_backward(
    q_ptr, k_ptr, eta_ptr, cu_seqlens_ptr, states_ptr, errors_ptr,
    dy_ptr, dz_ptr, direct_ptr, dlast_ptr, dq_ptr, dk_ptr, deta_ptr,
    scale, sequences, tokens, heads, size, dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """dq, dk and deta of a mini-batch."""
    here, count, part, _ = _locate_mini_batch(
        cu_seqlens_ptr, sequences, tokens, heads, size, PACKED
    )
    if count <= 0:
        return
    stride = heads * dim
    S_ptr = states_ptr + part * (dim.to(tl.int64) + 1) * dim
    dlast = tl.load(dlast_ptr + part)
    q, k, errors = q_ptr + here * dim, k_ptr + here * dim, errors_ptr + here * dim
    dy, dz, direct = dy_ptr + here * dim, dz_ptr + here * dim, direct_ptr + here * dim
    eta = eta_ptr + here
    rows = tl.arange(0, ROWS)
    cols = tl.arange(0, BV)
    for block in range(0, count, ROWS):
        rates = _rates(eta, rows, block, count, heads)
        drates = tl.where(block + rows == count - 1, dlast, 0.0)
        dq = _cross(dy, S_ptr, block + rows, cols, count, dim, stride, dim, dim, DTYPE, BK)
        for keys in range(0, block + 1, ROWS):
            a = _pairs(q, k, rows, block, keys, count, stride, dim, scale, DTYPE, BK)
            b = _cross(
                dy, errors, block + rows, keys + rows, count, count, stride, stride, dim, DTYPE, BK
            )
            drates -= tl.sum(a * b, 1)
            b = -rates[:, None] * _seen(b, rows, block, keys, count)
            x = load_rows(k, keys + rows, cols, stride, count, dim)
            dq = product(b, x, DTYPE, FINE_A=True, acc=dq)
        tl.store(deta_ptr + here + (block + rows) * heads, drates, mask=block + rows < count)
        store_rows(dq_ptr + here * dim, dq * scale, block + rows, cols, stride, count, dim)
        dk = _cross(dz, S_ptr, block + rows, cols, count, dim, stride, dim, dim, DTYPE, BK)
        dk += load_rows(direct, block + rows, cols, stride, count, dim)
        for queries in range(block, count, ROWS):
            b = _cross(
                dy, errors, queries + rows, block + rows, count, count, stride, stride, dim,
                DTYPE, BK,
            )  # fmt: skip
            later = -scale * _rates(eta, rows, queries, count, heads)
            b = later[:, None] * _seen(b, rows, queries, block, count)
            x = load_rows(q, queries + rows, cols, stride, count, dim)
            dk = product(tl.trans(b), x, DTYPE, FINE_A=True, acc=dk)
        store_rows(dk_ptr + here * dim, dk, block + rows, cols, stride, count, dim)


@triton.jit
def _model_backward(
    q_ptr, k_ptr, dy_ptr, dz_ptr, D_ptr, count, stride, dim, scale,
    DTYPE: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add to D what a mini-batch hands back."""
    rows = tl.arange(0, ROWS)
    cols = tl.arange(0, BV)
    for at in range(0, dim, BK):
        channels = at + tl.arange(0, BK)
        D = load_rows(D_ptr, channels, cols, dim, dim, dim)
        for block in range(0, count, ROWS):
            x = load_rows(q_ptr, block + rows, channels, stride, count, dim)
            dy = load_rows(dy_ptr, block + rows, cols, stride, count, dim) * scale
            D = product(tl.trans(x), dy, DTYPE, FINE_B=True, acc=D)
            x = load_rows(k_ptr, block + rows, channels, stride, count, dim)
            dz = load_rows(dz_ptr, block + rows, cols, stride, count, dim)
            D = product(tl.trans(x), dz, DTYPE, FINE_B=True, acc=D)
        store_rows(D_ptr, D, channels, cols, dim, dim, dim)
    total = tl.zeros((BV,), dtype=tl.float32)
    for block in range(0, count, ROWS):
        dy = load_rows(dy_ptr, block + rows, cols, stride, count, dim)
        total += tl.sum(dy + load_rows(dz_ptr, block + rows, cols, stride, count, dim), 0)
    of_bias = D_ptr + dim.to(tl.int64) * dim + cols
    b = tl.load(of_bias, mask=cols < dim, other=0.0)
    tl.store(of_bias, b + total, mask=cols < dim)


@triton.jit(do_not_specialize=["tokens", "heads", "size", "parts"])
def _walk_back(
    q_ptr, k_ptr, v_ptr, weight_ptr, bias_ptr, eta_ptr, cu_seqlens_ptr,
    dfinal_ptr, use_dfinal, errors_ptr, dy_ptr, dz_ptr, direct_ptr, dv_ptr, dlast_ptr,
    dweight_ptr, dbias_ptr, dinitial_ptr, store_dinitial, D_ptr,
    scale, eps, tokens, heads, size, parts, dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The gradients that need D, from the last mini-batch of a sequence to its first. Those of the
    norm are parts after the parts of the mini-batches."""
    state = tl.program_id(0).to(tl.int64)
    head = state % heads
    sequence = state // heads
    first, length, first_chunk = locate_sequence(sequence, cu_seqlens_ptr, tokens, size, PACKED)
    D_ptr += state * (dim.to(tl.int64) + 1) * dim
    cols = tl.arange(0, BV)
    w = tl.load(weight_ptr + head * dim + cols, mask=cols < dim, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + head * dim + cols, mask=cols < dim, other=0.0).to(tl.float32)
    stride = heads * dim
    dweight = tl.zeros((BV,), dtype=tl.float32)
    dbias = tl.zeros((BV,), dtype=tl.float32)

    _copy(dfinal_ptr + state * (dim.to(tl.int64) + 1) * dim, D_ptr, use_dfinal, True, dim, BK, BV)
    batches = tl.cdiv(length, size)
    for from_end in range(batches):
        batch = batches - 1 - from_end
        count = tl.minimum(size, length - batch * size)
        here = (first + batch * size) * heads + head
        base = here * dim
        k, dz = k_ptr + base, dz_ptr + base
        last = load_number(eta_ptr, here + (count - 1) * heads)
        tl.debug_barrier()
        dweight, dbias, dlast = _errors_backward(
            k, v_ptr + base, D_ptr, errors_ptr + base, direct_ptr + base, dz, dv_ptr + base,
            w, bias, dweight, dbias, last, count, stride, dim, eps, DTYPE, BK, BV, ROWS,
        )  # fmt: skip
        tl.store(dlast_ptr + (first_chunk + batch) * heads + head, dlast)
        tl.debug_barrier()
        _model_backward(
            q_ptr + base, k, dy_ptr + base, dz, D_ptr, count, stride, dim, scale,
            DTYPE, BK, BV, ROWS,
        )  # fmt: skip

    part = (parts.to(tl.int64) * heads + state) * dim + cols
    tl.store(dweight_ptr + part, dweight, mask=cols < dim)
    tl.store(dbias_ptr + part, dbias, mask=cols < dim)
    tl.debug_barrier()
    _copy(
        D_ptr, dinitial_ptr + state * (dim.to(tl.int64) + 1) * dim, True, store_dinitial,
        dim, BK, BV,
    )  # fmt: skip


def _constants(q: Tensor, tile: tiles.Tile, cu_seqlens: Tensor | None) -> dict[str, Any]:
    width = max(16, next_power_of_2(q.shape[3]))
    return {
        "BK": min(width, tile.keys),
        "BV": width,
        "ROWS": tile.tokens,
        "PACKED": cu_seqlens is not None,
        "DTYPE": TRITON_DTYPES[q.dtype],
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def _shapes(given: Given) -> Any:
    v = given["v"]
    state = (v.shape[2], v.shape[3] + 1, v.shape[3])
    return output_and_states(given, v, v.dtype, state)


def _forward_of(
    *, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor, eta: Tensor,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float, eps: float,
    mini_batch_size: int, output_final_state: bool, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    batch, tokens, heads, dim = q.shape
    check_boundaries("cu_seqlens", cu_seqlens, tokens)
    # A mini-batch that no sequence fills is cut nowhere.
    size = min(mini_batch_size, max(tokens, 1))
    entry = tiles.TABLE["ttt_linear", "fused_chunk"][tile]
    sequences = count_sequences(batch, cu_seqlens)
    o = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    models = sequences, heads, dim + 1, dim
    final_state = None
    if output_final_state:
        final_state = v.new_empty(models, dtype=torch.float32)
    states = v.new_empty(models, dtype=torch.float32)
    errors = v.new_empty(v.shape, dtype=torch.float32)
    _forward[(sequences * heads,)](
        *contiguous(q, k, v, weight, bias, eta), cu_seqlens, *optional(initial_state, q), o,
        *optional(final_state, q), states, errors,
        scale, eps, tokens, heads, size, dim,
        KEEP=False, **_constants(q, entry, cu_seqlens),
    )  # fmt: skip
    return [o, final_state]


def _backward_of(
    *, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor, eta: Tensor,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float, eps: float,
    mini_batch_size: int, output_final_state: bool, tile: int, d0: Tensor, d1: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    batch, tokens, heads, dim = q.shape
    size = min(mini_batch_size, max(tokens, 1))
    entry = tiles.TABLE["ttt_linear", "fused_chunk"][tile]
    sequences = count_sequences(batch, cu_seqlens)
    inputs = contiguous(q, k, v, weight, bias, eta)
    chunks = cut(batch, tokens, cu_seqlens, size).count
    models = heads, dim + 1, dim
    states = v.new_empty(chunks, *models, dtype=torch.float32)
    # z and du are overwritten by the part of dk that errors give, and by dz.
    errors, dy, z, du = (v.new_empty(v.shape, dtype=torch.float32) for _ in range(4))
    _forward[(sequences * heads,)](
        *inputs, cu_seqlens, *optional(initial_state, q), errors, *optional(None, q),
        states, errors, scale, eps, tokens, heads, size, dim,
        KEEP=True, **_constants(q, entry, cu_seqlens),
    )  # fmt: skip
    q, k, v, weight, bias, eta = inputs
    dq, dk, dv, deta = (torch.empty_like(x) for x in (q, k, v, eta))
    dweight, dbias = (
        empty_parts(chunks + sequences, x.shape, x.dtype, x.device) for x in (weight, bias)
    )
    D = v.new_empty(sequences, *models, dtype=torch.float32)
    dlast = v.new_empty(chunks, heads, dtype=torch.float32)
    dinitial = None if initial_state is None else torch.empty_like(D)
    of_batch = _constants(q, entry.of("mini_batch"), cu_seqlens)
    _outputs_backward[(chunks, heads)](
        q, k, weight, eta, cu_seqlens, d0.contiguous(), states, errors, dy, z, du, dweight, dbias,
        scale, eps, sequences, tokens, heads, size, dim, **of_batch,
    )  # fmt: skip
    _walk_back[(sequences * heads,)](
        *inputs, cu_seqlens, *optional(d1, q), errors, dy, du, z, dv, dlast,
        dweight, dbias, *optional(dinitial, q), D,
        scale, eps, tokens, heads, size, chunks, dim,
        **_constants(q, entry.of("walk_back"), cu_seqlens),
    )  # fmt: skip
    _inputs_backward[(chunks, heads)](
        q, k, eta, cu_seqlens, states, errors, dy, du, z, dlast, dq, dk, deta,
        scale, sequences, tokens, heads, size, dim, **of_batch,
    )  # fmt: skip
    dweight, dbias = add_parts(dweight, weight.dtype), add_parts(dbias, bias.dtype)
    return [dq, dk, dv, dweight, dbias, deta, dinitial, None]


_ttt_linear = differentiable(
    "ttt_linear_fused_chunk",
    _forward_of,
    _backward_of,
    _shapes,
    outputs=2,
)


def _compute(
    *, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor, eta: Tensor,
    scale: float, eps: float, mini_batch_size: int, initial_state: Tensor | None,
    output_final_state: bool, cu_seqlens: Tensor | None, tile: int,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    check_eps(eps)
    check_size("mini_batch_size", mini_batch_size)
    o, final_state = _ttt_linear(
        q, k, v, weight, bias, eta, initial_state, cu_seqlens,
        scale, float(eps), mini_batch_size, output_final_state, tile,
    )  # fmt: skip
    return o, final_state if output_final_state else None


@own_modes(
    _compute,
    raises=[BAD_EPS, "a mini_batch_size below 1"],
)
def ttt_linear(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H K"],
    weight: Float[Tensor, "H K"],
    bias: Float[Tensor, "H K"],
    eta: Float[Tensor, "B T H"],
    *,
    eps: float = 1e-6,
    mini_batch_size: int = 16,
    mode: Literal["auto", "fused_chunk"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H K"], Float[Tensor, "N H K+1 K"] | None]:
    """TTT-Linear, `reference.ttt_linear`."""
