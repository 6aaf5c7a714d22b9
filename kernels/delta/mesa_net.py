"""MesaNet in chunks: two gated linear attentions, and a system of equations for each token.

With A_t = S_t^kk + diag(λ) and x_t = A_t⁻¹ q_t, the output is linear attention with x for q,

    o_t = (S_t^kv)ᵀ x_t

whose states and gradients are those of `kernels.linear.chunk`. So is the gradient of S^kk: with
y_t = A_t⁻¹ dx_t, as A is symmetric,

    dq_t = y_t,    dA_t = -y_t x_tᵀ,    dλ = -Σ_t y_t ∘ x_t

and dA is what `(S_t^kk)ᵀ y_t` hands back with the cotangent -x_t.

A program takes steps of conjugate gradients for all tokens of a chunk at once, whose products with
their A_t are those of linear attention: S^kk of the chunk's start serves all of them. Operands are
sums of two bfloat16, so that tensor cores multiply them, and lose 2^-17, which the condition of the
system multiplies. So a second solve corrects the first, from a residual in float32: where it
corrects x by a part ρ of its length, it leaves about ρ² of it. Where ρ is above 2^-10, or A is not
positive definite, a direct solve in float32 takes the token's system.

The direct solve factors one system at a time into L D Lᵀ, without pivots, PANEL columns at once: it
needs no square root, and no more columns of A in registers.

Source: Golub and Van Loan, Matrix Computations, 4th edition, sections 4.1.2 (L D Lᵀ), 11.3
(conjugate gradients) and 3.5.3 (refinement).
"""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_boundaries
from kernels.differentiable import Given, differentiable
from kernels.linear import chunk
from kernels.linear.channel_gates import rows_of
from kernels.norm.l2norm import normalized, normalized_backward
from kernels.primitives.chunks import Chunks, cut, locate_chunk
from kernels.primitives.decay import decay_of_chunk, head_decay, load_head_gates, pair_decay
from kernels.primitives.layout import contiguous
from kernels.primitives.parts import add_parts
from kernels.primitives.product import product
from kernels.primitives.rows import load_row, load_rows, store_rows
from kernels.primitives.states import output_and_states
from kernels.recurrence import own_modes
from kernels.tiles import Entry, cdiv, next_power_of_2

# Programs, each of which has a workspace for one system at a time.
_PROGRAMS = 512
# Squares of what conjugate gradients leave of a residual, and of the largest correction that is
# taken for one.
_LEFT = tl.constexpr(2.0**-28)
_CORRECTED = tl.constexpr(2.0**-20)


@triton.jit
def _conjugate_gradients(r, k, S, lamb, passed, weights, LIMIT: tl.constexpr):
    """A⁻¹ r of each token, and whether the residual has become small. A token is left alone once it
    has, so that the number of steps that others need changes no bit of its x."""
    # Squares of small numbers vanish.
    size = tl.max(tl.abs(r), 1)[:, None]
    r = tl.where(size == 0, r, r / size)
    x = tl.zeros(r.shape, tl.float32)
    p = r
    square = tl.sum(r * r, 1)
    enough = square * _LEFT
    going = square > enough
    step = 0
    while (step < LIMIT) & (tl.max(going.to(tl.int32), 0) > 0):
        along = product(p, tl.trans(k), tl.bfloat16, FINE_A=True, FINE_B=True) * weights
        Ap = product(p, S, tl.bfloat16, FINE_A=True, FINE_B=True) * passed + lamb * p
        Ap = product(along, k, tl.bfloat16, FINE_A=True, FINE_B=True, acc=Ap)
        curvature = tl.sum(p * Ap, 1)
        going = going & (curvature > 0)
        length = tl.where(going, square / curvature, 0.0)[:, None]
        x += length * p
        r -= length * Ap
        last = square
        square = tl.where(going, tl.sum(r * r, 1), square)
        p = tl.where(going[:, None], r + (square / last)[:, None] * p, p)
        going = going & (square > enough)
        step += 1
    return x * size, square <= enough


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _iterate(
    r_ptr, k_ptr, beta_ptr, g_ptr, lamb_ptr, states_ptr, x_ptr, solved_ptr, cu_seqlens_ptr,
    sequences, tokens, heads, key_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, REFINE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """`x = (S^kk + diag(λ))⁻¹ r` of the tokens of a chunk, and `solved` [chunks, C, H] of each. If
    REFINE, correct the x whose residual is r."""
    chunk = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    first, left, _, _ = locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    keys = tl.arange(0, BK)
    stride = heads * key_dim
    here = first * heads + head
    start = here * key_dim
    cell = chunk.to(tl.int64) * heads + head
    solved_ptr += (chunk.to(tl.int64) * C + rows) * heads + head
    lamb = tl.load(lamb_ptr + head * key_dim + keys, mask=keys < key_dim, other=1.0)[None, :]
    beta = tl.load(beta_ptr + here + rows * heads, mask=rows < left, other=0.0)
    g = load_head_gates(g_ptr + here, rows, heads, left)
    passed = head_decay(0, g, tl.float32)[:, None]
    weights = pair_decay(0, g, C, tl.float32) * beta[None, :]
    weights = tl.where(rows[:, None] >= rows[None, :], weights, 0.0)
    k = load_rows(k_ptr + start, rows, keys, stride, left, key_dim)
    S = load_rows(states_ptr + cell * key_dim * key_dim, keys, keys, key_dim, key_dim, key_dim)
    r = load_rows(r_ptr + start, rows, keys, stride, left, key_dim)
    x, solved = _conjugate_gradients(r, k, S, lamb, passed, weights, 2 * BK)
    if REFINE:
        before = load_rows(x_ptr + start, rows, keys, stride, left, key_dim)
        solved = solved & (tl.sum(x * x, 1) <= _CORRECTED * tl.sum(before * before, 1))
        solved = solved & (tl.load(solved_ptr) == 1)
        x += before
    store_rows(x_ptr + start, x, rows, keys, stride, left, key_dim)
    tl.store(solved_ptr, solved.to(tl.int8))


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "systems"])
def _solve(
    y_ptr, k_ptr, weighed_ptr, g_ptr, lamb_ptr, states_ptr, x_ptr, solved_ptr, factors_ptr,
    pivots_ptr, cu_seqlens_ptr, sequences, tokens, heads, systems, key_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, PANEL: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """`x = (S^kk + diag(λ))⁻¹ y` of tokens that are not solved, from the S^kk that chunks start
    from."""
    program = tl.program_id(0).to(tl.int64)
    factors_ptr += program * BK * BK
    pivots_ptr += program * BK
    rows = tl.arange(0, BK)
    in_k = rows < key_dim
    within = tl.arange(0, PANEL)
    members = tl.arange(0, C)
    stride = heads * key_dim
    for system in range(program, systems, tl.num_programs(0)):
        head = system % heads
        token = system // heads % C
        where = system // heads // C
        first, left, _, _ = locate_chunk(where, cu_seqlens_ptr, sequences, tokens, C, PACKED)
        if (token < left) & (tl.load(solved_ptr + system) == 0):
            here = first * heads + head
            cell = where * heads + head
            row = here + token * heads
            g = load_head_gates(g_ptr + here, members, heads, token + 1)
            passed = decay_of_chunk(g, tl.float32)
            w = tl.where(members <= token, head_decay(1, g, tl.float32), 0.0)
            lamb = load_row(lamb_ptr, head, key_dim, rows, in_k)
            r = load_row(y_ptr, row, key_dim, rows, in_k)
            # Other threads read what a thread stores.
            tl.debug_barrier()
            for at in range(0, key_dim, PANEL):
                cols = at + within
                S = load_rows(
                    states_ptr + cell * key_dim * key_dim, rows, cols, key_dim, key_dim, key_dim
                )
                k = load_rows(k_ptr + here * key_dim, members, rows, stride, token + 1, key_dim)
                weighed = load_rows(
                    weighed_ptr + here * key_dim, members, cols, stride, token + 1, key_dim
                )
                # Columns past the last are those of the identity.
                ridge = tl.where(in_k, lamb, 1.0)[:, None]
                A = tl.where(rows[:, None] == cols[None, :], ridge, 0.0)
                A = product(tl.trans(k), weighed * w[:, None], tl.float32, acc=A + passed * S)
                for before in range(0, at, PANEL):
                    done = before + within
                    L = tl.load(factors_ptr + rows[:, None] * BK + done[None, :])
                    of_panel = tl.load(factors_ptr + cols[:, None] * BK + done[None, :])
                    D = tl.load(pivots_ptr + done)
                    A -= product(L, tl.trans(of_panel * D[None, :]), tl.float32)
                D = tl.zeros((PANEL,), dtype=tl.float32)
                for j in range(PANEL):
                    own = rows == at + j
                    column = tl.sum(tl.where((within == j)[None, :], A, 0.0), 1)
                    across = tl.sum(tl.where(own[:, None], A, 0.0), 0)
                    pivot = tl.sum(tl.where(own, column, 0.0), 0)
                    below = tl.where(rows > at + j, column / pivot, 0.0)
                    A = tl.where((within > j)[None, :], A - below[:, None] * across[None, :], A)
                    A = tl.where((within == j)[None, :], below[:, None], A)
                    D = tl.where(within == j, pivot, D)
                    r -= below * tl.sum(tl.where(own, r, 0.0), 0)
                tl.store(factors_ptr + rows[:, None] * BK + cols[None, :], A)
                tl.store(pivots_ptr + cols, D)
                tl.debug_barrier()
            x = r / tl.load(pivots_ptr + rows, mask=in_k, other=1.0)
            panels = tl.cdiv(key_dim, PANEL)
            for from_end in range(panels):
                at = (panels - 1 - from_end) * PANEL
                L = tl.load(factors_ptr + rows[:, None] * BK + (at + within)[None, :])
                for step in range(PANEL):
                    j = PANEL - 1 - step
                    below = tl.sum(tl.where((within == j)[None, :], L, 0.0), 1)
                    x = tl.where(rows == at + j, x - tl.sum(below * x, 0), x)
            tl.store(x_ptr + row * key_dim + rows, x, mask=in_k)


@triton.jit(do_not_specialize=["count", "heads"])
def _finish(
    k_ptr, v_ptr, beta_ptr, x_ptr, y_ptr, dk_ptr, dwk_ptr, dwv_ptr, dv_ptr, dbeta_ptr, dlamb_ptr,
    count, key_dim: tl.int32, value_dim: tl.int32,
    ROWS: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """From the gradients of βk and βv to those of k, to which it adds, of v and β, and of λ by
    token."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    keys = tl.arange(0, BK)
    values = tl.arange(0, BV)
    beta = tl.load(beta_ptr + rows, mask=rows < count, other=0.0)[:, None]
    dwk = load_rows(dwk_ptr, rows, keys, key_dim, count, key_dim)
    dwv = load_rows(dwv_ptr, rows, values, value_dim, count, value_dim)
    k = load_rows(k_ptr, rows, keys, key_dim, count, key_dim)
    v = load_rows(v_ptr, rows, values, value_dim, count, value_dim)
    tl.store(dbeta_ptr + rows, tl.sum(dwk * k, 1) + tl.sum(dwv * v, 1), mask=rows < count)
    dk = load_rows(dk_ptr, rows, keys, key_dim, count, key_dim)
    store_rows(dk_ptr, dk + beta * dwk, rows, keys, key_dim, count, key_dim)
    store_rows(dv_ptr, beta * dwv, rows, values, value_dim, count, value_dim)
    x = load_rows(x_ptr, rows, keys, key_dim, count, key_dim)
    y = load_rows(y_ptr, rows, keys, key_dim, count, key_dim)
    store_rows(dlamb_ptr, -x * y, rows, keys, key_dim, count, key_dim)


def _iterated(
    y: Tensor, k: Tensor, beta: Tensor, g: Tensor, lamb: Tensor, states: Tensor,
    chunks: Chunks, tile: Entry, x: Tensor, solved: Tensor,
) -> None:  # fmt: skip
    """Fill x, and say which of its rows are solved."""
    _, tokens, heads, key_dim = k.shape
    own = tile.of("iterate")
    r = y
    for refine in (False, True):
        if refine:
            r = torch.empty_like(x)
            rows = rows_of(x, k, g, chunks, scale=1.0, tile=tile)
            chunk.outputs(rows, beta[..., None] * k, states, r, tile=tile)
            r = torch.sub(y, r, out=r).addcmul_(lamb, x, value=-1)
        _iterate[(chunks.count * heads,)](
            r, k, beta, g, lamb, states, x, solved, chunks.cu_seqlens,
            chunks.sequences, tokens, heads, key_dim,
            C=tile.tokens, BK=max(16, next_power_of_2(key_dim)), REFINE=refine,
            PACKED=chunks.cu_seqlens is not None,
            num_warps=own.num_warps, num_stages=own.num_stages,
        )  # fmt: skip


def _solutions(
    y: Tensor, k: Tensor, beta: Tensor, g: Tensor, lamb: Tensor, states: Tensor,
    chunks: Chunks, tile: Entry,
) -> Tensor:  # fmt: skip
    """x [B, T, H, K] of all systems: by iteration where that suffices, else by elimination."""
    _, tokens, heads, key_dim = k.shape
    x = torch.empty_like(k)
    systems = chunks.count * tile.tokens * heads
    solved = k.new_zeros(systems, dtype=torch.int8)
    if "iterate" in tile.kernels:
        _iterated(y, k, beta, g, lamb, states, chunks, tile, x, solved)
    width = max(16, next_power_of_2(key_dim))
    programs = min(systems, _PROGRAMS)
    own = tile.of("solve")
    _solve[(programs,)](
        y, k, beta[..., None] * k, g, lamb, states, x, solved,
        k.new_empty(programs, width, width), k.new_empty(programs, width), chunks.cu_seqlens,
        chunks.sequences, tokens, heads, systems, key_dim,
        C=tile.tokens, BK=width, PANEL=own.keys, PACKED=chunks.cu_seqlens is not None,
        num_warps=own.num_warps, num_stages=own.num_stages,
    )  # fmt: skip
    return x


def _widened(
    q: Tensor, k: Tensor, v: Tensor, lamb: Tensor, g: Tensor | None, beta: Tensor | None, unit: bool
) -> tuple[Tensor, ...]:
    """The inputs in float32 and without gaps, q and k as unit vectors if so asked."""
    q, k, v, lamb = (x.float() for x in (q, k, v, lamb))
    if unit:
        q, k = normalized(q), normalized(k)
    g = k.new_zeros(k.shape[:3]) if g is None else g.float()
    beta = k.new_ones(k.shape[:3]) if beta is None else beta.float()
    return contiguous(q, k, v, lamb, g, beta)  # type: ignore[return-value]


def _halves(state: Tensor | None, key_dim: int) -> tuple[Tensor | None, Tensor | None]:
    """S^kk and S^kv of a state."""
    return (None, None) if state is None else (state[..., :key_dim], state[..., key_dim:])


def _shapes(given: Given) -> Any:
    k, v = given["k"], given["v"]
    state = (k.shape[2], k.shape[3], k.shape[3] + v.shape[3])
    return output_and_states(given, v, v.dtype, state)


def _forward_of(
    *, q: Tensor, k: Tensor, v: Tensor, lamb: Tensor, g: Tensor | None, beta: Tensor | None,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, use_qk_l2norm_in_kernel: bool,
    output_final_state: bool, tile: int,
) -> list[Tensor | None]:  # fmt: skip
    check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
    entry = tiles.TABLE["mesa_net", "chunk"][tile]
    dtype, key_dim = v.dtype, k.shape[3]
    q, k, v, lamb, g, beta = _widened(q, k, v, lamb, g, beta, use_qk_l2norm_in_kernel)
    S_kk, S_kv = _halves(initial_state, key_dim)
    chunks = cut(k.shape[0], k.shape[1], cu_seqlens, entry.tokens)
    weighed = beta[..., None] * k
    rows = rows_of(k, k, g, chunks, scale=1.0, tile=entry)
    states, S_kk = chunk.pass_states(rows, weighed, S_kk, final=output_final_state, tile=entry)
    x = _solutions(q, k, beta, g, lamb, states, chunks, entry)
    o, S_kv = chunk.forward(
        x, k, beta[..., None] * v, g, scale=1.0, initial_state=S_kv, cu_seqlens=cu_seqlens,
        tile=entry, output_final_state=output_final_state, out_dtype=dtype,
    )  # fmt: skip
    if S_kk is None or S_kv is None:
        return [o, None]
    return [o, torch.cat([S_kk, S_kv], dim=-1)]


def _backward_of(
    *, q: Tensor, k: Tensor, v: Tensor, lamb: Tensor, g: Tensor | None, beta: Tensor | None,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, use_qk_l2norm_in_kernel: bool,
    output_final_state: bool, tile: int, d0: Tensor, d1: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    entry = tiles.TABLE["mesa_net", "chunk"][tile]
    given = (q, k, v, lamb, g, beta)
    key_dim, value_dim = k.shape[3], v.shape[3]
    q, k, v, lamb, g, beta = _widened(*given, use_qk_l2norm_in_kernel)
    S_kk, S_kv = _halves(initial_state, key_dim)
    dS_kk, dS_kv = _halves(d1, key_dim)
    chunks = cut(k.shape[0], k.shape[1], cu_seqlens, entry.tokens)
    weighed = beta[..., None] * k
    rows = rows_of(k, k, g, chunks, scale=1.0, tile=entry)
    states, _ = chunk.pass_states(rows, weighed, S_kk, tile=entry)
    system = k, beta, g, lamb, states, chunks, entry
    x = _solutions(q, *system)
    common: dict[str, Any] = {
        "scale": 1.0, "cu_seqlens": cu_seqlens, "tile": entry, "keys_dtype": torch.float32,
        "values_dtype": torch.float32,
    }  # fmt: skip
    dx, dk, dwv, dg, dS_kv = chunk.backward(
        x, k, beta[..., None] * v, g, initial_state=S_kv, do=d0.float(), dfinal_state=dS_kv,
        **common,
    )  # fmt: skip
    y = _solutions(dx, *system)
    _, dk_of_kk, dwk, dg_of_kk, dS_kk = chunk.backward(
        y, k, weighed, g, initial_state=S_kk, do=-x, dfinal_state=dS_kk, **common
    )
    dk += dk_of_kk
    dv, dbeta, dlamb = (torch.empty_like(each) for each in (v, beta, k))
    count = beta.numel()
    own = entry.of("finish")
    _finish[(cdiv(count, own.tokens),)](
        k, v, beta, x, y, dk, dwk, dwv, dv, dbeta, dlamb, count, key_dim, value_dim,
        ROWS=own.tokens, BK=next_power_of_2(key_dim), BV=next_power_of_2(value_dim),
        num_warps=own.num_warps,
    )  # fmt: skip
    dq = y
    if use_qk_l2norm_in_kernel:
        dq, dk = (normalized_backward(x.float(), dx) for x, dx in ((given[0], dq), (given[1], dk)))
    assert dg is not None
    assert dg_of_kk is not None
    found = dq, dk, dv, add_parts(dlamb.flatten(0, 1), lamb.dtype), dg + dg_of_kk, dbeta
    gradients = [None if x is None else dx.to(x.dtype) for x, dx in zip(given, found, strict=True)]
    dinitial = None if dS_kk is None or dS_kv is None else torch.cat([dS_kk, dS_kv], dim=-1)
    return [*gradients, dinitial, None]


_mesa_net = differentiable("mesa_net_chunk", _forward_of, _backward_of, _shapes, outputs=2)


def _compute(
    *, q: Tensor, k: Tensor, v: Tensor, lamb: Tensor, g: Tensor | None, beta: Tensor | None,
    use_qk_l2norm_in_kernel: bool, initial_state: Tensor | None, output_final_state: bool,
    cu_seqlens: Tensor | None, tile: int,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    o, final_state = _mesa_net(
        q, k, v, lamb, g, beta, initial_state, cu_seqlens,
        use_qk_l2norm_in_kernel, output_final_state, tile,
    )  # fmt: skip
    return o, final_state if output_final_state else None


@own_modes(_compute)
def mesa_net(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    lamb: Float[Tensor, "H K"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Float[Tensor, "N H K K+V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K K+V"] | None]:
    """MesaNet's layer, `reference.mesa_net`. Each system is solved by elimination without pivots:
    it must be positive definite.
    """
