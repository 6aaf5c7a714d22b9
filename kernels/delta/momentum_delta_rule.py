"""The momentum delta rule token by token: one kernel walks with S and M in registers.

A program holds all keys of one head and a tile of values: each column of S and M is a recurrence of
its own:

    u_t = η_t (v_t - S_{t-1}ᵀ p_t)
    M_t = exp(log_mu_t) M_{t-1} + k_t u_tᵀ
    S_t = exp(log_alpha_t) S_{t-1} + β_t M_t

Backwards, with D and E the gradients of S_t and M_t through later tokens,

    D_t = D + scale · q_t do_tᵀ,    dq_t = scale · S_t do_t,    dβ_t = Σ M_t ∘ D_t
    E_t = E + β_t D_t,              dk_t = E_t u_t
    du_t = E_tᵀ k_t,                dv_t = η_t du_t,    dη_t = du_t · (v_t - S_{t-1}ᵀ p_t)
    dp_t = -S_{t-1} dv_t
    dlog_alpha_t = exp(log_alpha_t) Σ S_{t-1} ∘ D_t,    dlog_mu_t = exp(log_mu_t) Σ M_{t-1} ∘ E_t

and the token before gets D = `exp(log_alpha_t) D_t - p_t dv_tᵀ`, E = `exp(log_mu_t) E_t`. S and M
are computed again, from copies kept every `tile.tokens` tokens: a walk backwards would divide by
decays, which may be 0.
"""

from typing import Literal, Unpack

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels.arguments import count_sequences
from kernels.passes import ModeFunctions
from kernels.primitives.chunks import cut, locate_sequence
from kernels.primitives.decay import decay_of_token
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts, empty_parts
from kernels.primitives.rows import load_number, load_row
from kernels.primitives.states import blocks_of_state, optional
from kernels.recurrence import Options, recurrence
from kernels.tiles import Entry, cdiv


@triton.jit
def _step(
    S, M, row, k_ptr, v_ptr, p_ptr, alpha_ptr, mu_ptr, beta_ptr, eta_ptr,
    key_dim, value_dim, keys, in_k, values, in_v,
):  # fmt: skip
    """S_t and M_t from those of the token before."""
    k = load_row(k_ptr, row, key_dim, keys, in_k)
    p = load_row(p_ptr, row, key_dim, keys, in_k)
    v = load_row(v_ptr, row, value_dim, values, in_v)
    u = load_number(eta_ptr, row) * (v - tl.sum(p[:, None] * S, 0))
    M = decay_of_token(load_number(mu_ptr, row)) * M + k[:, None] * u[None, :]
    S = decay_of_token(load_number(alpha_ptr, row)) * S + load_number(beta_ptr, row) * M
    return S, M


@triton.jit(do_not_specialize=["tokens", "heads"])
def _forward(
    q_ptr, k_ptr, v_ptr, p_ptr, alpha_ptr, mu_ptr, beta_ptr, eta_ptr, cu_seqlens_ptr,
    initial_ptr, use_initial, o_ptr, final_ptr, store_final,
    scale, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program walks the tokens of one sequence with a tile of the values of S and M of one head,
    and writes o and the final state.
    """
    value_tiles = tl.cdiv(value_dim, BV)
    state = (tl.program_id(0) // value_tiles).to(tl.int64)
    head = state % heads
    first, length, _ = locate_sequence(state // heads, cu_seqlens_ptr, tokens, 1, PACKED)
    keys = tl.arange(0, BK)
    values = (tl.program_id(0) % value_tiles) * BV + tl.arange(0, BV)
    in_k = keys < key_dim
    in_v = values < value_dim
    # M lies behind S.
    size = key_dim * value_dim
    cells = state * 2 * size + keys[:, None] * value_dim + values[None, :]
    in_state = in_k[:, None] & in_v[None, :]

    S = tl.load(initial_ptr + cells, mask=in_state & use_initial, other=0.0)
    M = tl.load(initial_ptr + size + cells, mask=in_state & use_initial, other=0.0)
    for t in range(length):
        row = (first + t) * heads + head
        S, M = _step(
            S, M, row, k_ptr, v_ptr, p_ptr, alpha_ptr, mu_ptr, beta_ptr, eta_ptr,
            key_dim, value_dim, keys, in_k, values, in_v,
        )  # fmt: skip
        q = load_row(q_ptr, row, key_dim, keys, in_k)
        o = tl.sum(S * q[:, None], 0) * scale
        tl.store(o_ptr + row * value_dim + values, o, mask=in_v)
    tl.store(final_ptr + cells, S, mask=in_state & store_final)
    tl.store(final_ptr + size + cells, M, mask=in_state & store_final)


@triton.jit(do_not_specialize=["rows", "tokens", "heads"])
def _backward(
    q_ptr, k_ptr, v_ptr, p_ptr, alpha_ptr, mu_ptr, beta_ptr, eta_ptr, cu_seqlens_ptr,
    initial_ptr, use_initial, do_ptr, dfinal_ptr, use_dfinal,
    dq_ptr, dk_ptr, dv_ptr, dp_ptr, dalpha_ptr, dmu_ptr, dbeta_ptr, deta_ptr,
    dinitial_ptr, store_dinitial, segments_ptr, states_ptr,
    scale, rows, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    BK: tl.constexpr, BV: tl.constexpr, SEGMENT: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Each tile of values writes its part of the gradients of what all values share."""
    value_tiles = tl.cdiv(value_dim, BV)
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
    size = key_dim * value_dim
    cells = state * 2 * size + keys[:, None] * value_dim + values[None, :]
    in_state = in_k[:, None] & in_v[None, :]
    # Workspaces are cut by program; all cells of S and M are written before they are read.
    SIZE: tl.constexpr = BK * BV
    tile = keys[:, None] * BV + tl.arange(0, BV)[None, :]
    states_ptr += tl.program_id(0).to(tl.int64) * (SEGMENT * 2 * SIZE)
    parts = heads * value_tiles
    segments_ptr += (first_segment * parts + head * value_tiles + part) * 2 * SIZE

    S = tl.load(initial_ptr + cells, mask=in_state & use_initial, other=0.0)
    M = tl.load(initial_ptr + size + cells, mask=in_state & use_initial, other=0.0)
    for t in range(length):
        if t % SEGMENT == 0:
            kept_ptr = segments_ptr + (t // SEGMENT).to(tl.int64) * parts * 2 * SIZE
            tl.store(kept_ptr + tile, S)
            tl.store(kept_ptr + SIZE + tile, M)
        S, M = _step(
            S, M, (first + t) * heads + head, k_ptr, v_ptr, p_ptr, alpha_ptr, mu_ptr,
            beta_ptr, eta_ptr, key_dim, value_dim, keys, in_k, values, in_v,
        )  # fmt: skip

    D = tl.load(dfinal_ptr + cells, mask=in_state & use_dfinal, other=0.0)
    E = tl.load(dfinal_ptr + size + cells, mask=in_state & use_dfinal, other=0.0)
    segments = tl.cdiv(length, SEGMENT)
    for from_end in range(segments):
        segment = segments - 1 - from_end
        start = segment * SEGMENT
        stop = tl.minimum(start + SEGMENT, length)
        # A cell may be read by another thread than the one that wrote it.
        tl.debug_barrier()
        kept_ptr = segments_ptr + segment.to(tl.int64) * parts * 2 * SIZE
        S = tl.load(kept_ptr + tile)
        M = tl.load(kept_ptr + SIZE + tile)
        for t in range(start, stop):
            here_ptr = states_ptr + (t - start).to(tl.int64) * 2 * SIZE
            tl.store(here_ptr + tile, S)
            tl.store(here_ptr + SIZE + tile, M)
            S, M = _step(
                S, M, (first + t) * heads + head, k_ptr, v_ptr, p_ptr, alpha_ptr, mu_ptr,
                beta_ptr, eta_ptr, key_dim, value_dim, keys, in_k, values, in_v,
            )  # fmt: skip
        tl.debug_barrier()
        for from_last in range(stop - start):
            t = stop - 1 - from_last
            row = (first + t) * heads + head
            own = part * rows + row
            q = load_row(q_ptr, row, key_dim, keys, in_k)
            k = load_row(k_ptr, row, key_dim, keys, in_k)
            p = load_row(p_ptr, row, key_dim, keys, in_k)
            v = load_row(v_ptr, row, value_dim, values, in_v)
            do = load_row(do_ptr, row, value_dim, values, in_v)
            alpha = decay_of_token(load_number(alpha_ptr, row))
            mu = decay_of_token(load_number(mu_ptr, row))
            beta = load_number(beta_ptr, row)
            eta = load_number(eta_ptr, row)
            here_ptr = states_ptr + (t - start).to(tl.int64) * 2 * SIZE
            S = tl.load(here_ptr + tile)
            M = tl.load(here_ptr + SIZE + tile)
            lack = v - tl.sum(p[:, None] * S, 0)
            u = eta * lack
            after = mu * M + k[:, None] * u[None, :]
            D += (q * scale)[:, None] * do[None, :]
            dq = tl.sum((alpha * S + beta * after) * do[None, :], 1) * scale
            tl.store(dq_ptr + own * key_dim + keys, dq, mask=in_k)
            tl.store(dbeta_ptr + own, tl.sum(tl.sum(after * D, 1), 0))
            E += beta * D
            tl.store(dk_ptr + own * key_dim + keys, tl.sum(E * u[None, :], 1), mask=in_k)
            du = tl.sum(E * k[:, None], 0)
            tl.store(deta_ptr + own, tl.sum(du * lack, 0))
            dv = eta * du
            tl.store(dv_ptr + row * value_dim + values, dv, mask=in_v)
            tl.store(dp_ptr + own * key_dim + keys, -tl.sum(S * dv[None, :], 1), mask=in_k)
            D *= alpha
            E *= mu
            tl.store(dalpha_ptr + own, tl.sum(tl.sum(S * D, 1), 0))
            tl.store(dmu_ptr + own, tl.sum(tl.sum(M * E, 1), 0))
            D -= p[:, None] * dv[None, :]
    tl.store(dinitial_ptr + cells, D, mask=in_state & store_dinitial)
    tl.store(dinitial_ptr + size + cells, E, mask=in_state & store_dinitial)


def forward(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, log_alpha: Tensor, log_mu: Tensor, beta: Tensor,
    eta: Tensor, *, scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    tile: Entry, output_final_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Outputs and, if asked for, final states.

    Args:
        q, k, p: `[B, T, H, K]`; v: `[B, T, H, V]`, of one dtype. Strides are free, what is not
            contiguous is copied.
        log_alpha, log_mu, beta, eta: `[B, T, H]` in that dtype or float32.
        initial_state: `[N, H, 2, K, V]` float32, or None for zeros.
        scale, cu_seqlens: as in `kernels.linear.chunk.forward`.

    Returns:
        `o [B, T, H, V]` in the dtype of v, `final_state [N, H, 2, K, V]` float32 or None.
    """
    batch, tokens, heads, key_dim, value_dim = *q.shape, v.shape[3]
    sequences = count_sequences(batch, cu_seqlens)
    blocks = blocks_of_state(tile, key_dim, value_dim)
    o = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    final_state = None
    if output_final_state:
        final_state = v.new_empty(sequences, heads, 2, key_dim, value_dim, dtype=torch.float32)
    _forward[(sequences * heads * cdiv(value_dim, blocks["BV"]),)](
        *contiguous(q, k, v, p, log_alpha, log_mu, beta, eta), cu_seqlens,
        *optional(initial_state, q), o, *optional(final_state, q),
        scale, tokens, heads, key_dim, value_dim,
        **blocks, PACKED=cu_seqlens is not None, num_warps=tile.num_warps,
    )  # fmt: skip
    return o, final_state


def backward(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, log_alpha: Tensor, log_mu: Tensor, beta: Tensor,
    eta: Tensor, *, scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    tile: Entry, do: Tensor, dfinal_state: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of `forward`'s inputs from those of its outputs.

    Returns:
        dq, dk, dv, dp, dlog_alpha, dlog_mu, dbeta, deta in the dtypes of their inputs;
        dinitial_state float32, or None where there is no initial state.
    """
    batch, tokens, heads, key_dim, value_dim = *q.shape, v.shape[3]
    sequences = count_sequences(batch, cu_seqlens)
    tile = tile.of("backward")
    blocks = blocks_of_state(tile, key_dim, value_dim)
    parts = cdiv(value_dim, blocks["BV"])
    shared = q, k, p, log_alpha, log_mu, beta, eta
    in_parts = [empty_parts(parts, x.shape, x.dtype, x.device) for x in shared]
    dq, dk, *others = in_parts
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    dinitial = None
    if initial_state is not None:
        dinitial = v.new_empty(sequences, heads, 2, key_dim, value_dim, dtype=torch.float32)
    grid = sequences * heads * parts
    cells = 2 * blocks["BK"] * blocks["BV"]
    count = cut(batch, tokens, cu_seqlens, tile.tokens).count
    segments = v.new_empty(count * heads * parts * cells, dtype=torch.float32)
    states = v.new_empty(grid * tile.tokens * cells, dtype=torch.float32)
    _backward[(grid,)](
        *contiguous(q, k, v, p, log_alpha, log_mu, beta, eta), cu_seqlens,
        *optional(initial_state, q), do.contiguous(), *optional(dfinal_state, q),
        dq, dk, dv, *others, *optional(dinitial, q), segments, states,
        scale, batch * tokens * heads, tokens, heads, key_dim, value_dim,
        **blocks, SEGMENT=tile.tokens, PACKED=cu_seqlens is not None, num_warps=tile.num_warps,
    )  # fmt: skip
    dq, dk, *others = (add_parts(dx, x.dtype) for dx, x in zip(in_parts, shared, strict=True))
    return dq, dk, dv, *others, dinitial


@recurrence(
    ModeFunctions("fused_recurrent", forward, backward),
    same_dtype=("q", "k", "v", "p"),
    neutral={"log_alpha": 0.0, "log_mu": 0.0, "beta": 1.0, "eta": 1.0},
)
def momentum_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    p: Float[Tensor, "B T H K"],
    log_alpha: Float[Tensor, "B T H"] | None = None,
    log_mu: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    eta: Float[Tensor, "B T H"] | None = None,
    *,
    mode: Literal["auto", "fused_recurrent"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H 2 K V"] | None]:
    """The momentum delta rule, `reference.momentum_delta_rule`."""
