"""Delta rules in chunks: a triangular system per chunk, and then a linear recurrence.

A delta rule writes what the state lacks. With `S' = diag(exp g_t) S_{t-1}`,

    u_t = β_t (v_t - S'ᵀ k_t),    S_t = S' + k_t u_tᵀ,    o_t = scale · S_tᵀ q_t

so once the rows u_t of a chunk are known, all else is `kernels.linear.chunk` with u for v. Let S be
the state before the chunk, P_i, R_j sums of gates as there, and e_t the reader, here k_t. What a
row lacks depends on the rows before it and on S,

    A_ij = β_i Σ_k e_ik k_jk exp(Σ_{j < t <= i} g_tk)                    (j < i, 0 elsewhere)
    U    = W_v - W_e S,    W_v = (I + A)⁻¹ diag(β) V,    W_e = (I + A)⁻¹ diag(β) (exp(P) ∘ E)

and only the last step waits for S. W_v and W_e are `w_v` and `w_e` below, for all chunks at once;
U is `written`.

Backwards, dU is that of the linear recurrence within the chunk and through the state after it, and
the gradient of the state before the chunk gets `-W_eᵀ dU` besides. With `X = diag(β)(exp(P) ∘ E)`,
`Y = diag(β) V` and `dW_e = -dU Sᵀ`,

    dX = (I + A)⁻ᵀ dW_e,    dY = (I + A)⁻ᵀ dU,    dA = -(I + A)⁻ᵀ dU Uᵀ below the diagonal

An op registered with `saves` hands W_v, W_e and the inverse to its backward pass, as much memory as
q, k and v. Without gates per channel that takes 3 to 16 % of the time away; with them, and on twice
as many rows, 1 to 3 %, so those ops do not. All else is computed again.

DPLR is such a rule on twice as many rows. `S_t = diag(exp g_t) S_{t-1} + b_t r_tᵀ + k_t v_tᵀ` with
`r_t = S_{t-1}ᵀ a_t` is a row that decays, reads with -a_t, has no value, and writes with b_t; and
one that neither decays nor reads, and writes v_t with k_t. Its readers are EXCLUSIVE: they read
before their own row decays.

Source: Yang et al., Parallelizing Linear Transformers with the Delta Rule, arXiv 2406.06484,
    section 3 (the system; W_v, W_e are its U, W); Yang et al., Gated Delta Networks, arXiv
    2412.06464, section 3.3 (gates per head); Kimi Linear, arXiv 2510.26692 (per channel).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.delta import states as fused
from kernels.linear.channel_gates import Rows, decay_within, workspace_dtype
from kernels.linear.chunk import gradients, outputs, pass_states
from kernels.linear.tiles import blocks, tile_of
from kernels.primitives.chunks import Chunks, cut, locate_chunk
from kernels.primitives.decay import (
    chunk_span_transposed,
    gate_flags,
    head_decay,
    load_head_gates,
    pair_decay,
    sum_gradients,
)
from kernels.primitives.layout import contiguous
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows
from kernels.primitives.triangular import inverse_unit_lower
from kernels.tiles import Entry


@triton.jit
def _overlaps(
    e_ptr, k_ptr, g_ptr, rows, heads, left, key_dim,
    C: tl.constexpr, BK: tl.constexpr, USE_HEAD_G: tl.constexpr,
):  # fmt: skip
    """`Σ_k e_ik k_jk exp(Σ_{j < t <= i} g_t) [C, C]` below the diagonal, of no use elsewhere."""
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    stride = heads * key_dim
    overlaps = tl.zeros([C, C], tl.float32)
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        e = load_rows(e_ptr, rows, keys, stride, left, key_dim)
        k = load_rows(k_ptr, rows, keys, stride, left, key_dim)
        overlaps += product(e, tl.trans(k), DTYPE)
    if USE_HEAD_G:
        overlaps *= pair_decay(0, load_head_gates(g_ptr, rows, heads, left), C, DTYPE)
    return overlaps


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _prepare(
    e_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, overlaps_ptr, w_e_ptr, w_v_ptr, inverse_ptr,
    cu_seqlens_ptr, sequences, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, USE_BETA: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program solves the system of one chunk and head: w_e, w_v and the inverse.

    Gates per channel have decayed e, and the overlaps are there already.
    """
    DTYPE: tl.constexpr = v_ptr.dtype.element_ty
    head = tl.program_id(0) % heads
    chunk = tl.program_id(0) // heads
    first, left, _, _ = locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    token = first * heads + head
    key_stride = heads * key_dim
    value_stride = heads * value_dim
    e_ptr += token * key_dim
    v_ptr += token * value_dim
    if USE_HEAD_G:
        g_ptr += token
    beta = tl.full([C], 1.0, tl.float32)
    if USE_BETA:
        beta = tl.load(beta_ptr + token + rows * heads, mask=rows < left, other=0.0)
    cell = (chunk.to(tl.int64) * heads + head) * C * C
    if USE_G:
        overlaps = load_rows(overlaps_ptr + cell, rows, rows, C, C, C)
    else:
        overlaps = _overlaps(
            e_ptr, k_ptr + token * key_dim, g_ptr, rows, heads, left, key_dim, C, BK, USE_HEAD_G
        )
    inverse = inverse_unit_lower(beta[:, None] * overlaps, C, DTYPE)
    if inverse_ptr is not None:
        store_rows(inverse_ptr + cell, inverse, rows, rows, C, C, C)
        # Threads load it as products and stores want it, which is not how they have it.
        tl.debug_barrier()
        inverse = load_rows(inverse_ptr + cell, rows, rows, C, C, C)
    # Factors of rows are those of columns of the inverse, which is one tile.
    weights = inverse * beta[None, :]
    for start in range(0, value_dim, BV):
        values = start + tl.arange(0, BV)
        v = load_rows(v_ptr, rows, values, value_stride, left, value_dim)
        w_v = product(weights, v, DTYPE, FINE_A=True)
        store_rows(w_v_ptr + token * value_dim, w_v, rows, values, value_stride, left, value_dim)
    if USE_HEAD_G:
        g = load_head_gates(g_ptr, rows, heads, left)
        weights *= head_decay(0, g, DTYPE)[None, :]
    for start in range(0, key_dim, BK):
        keys = start + tl.arange(0, BK)
        e = load_rows(e_ptr, rows, keys, key_stride, left, key_dim)
        w_e = product(weights, e, DTYPE, FINE_A=True)
        store_rows(w_e_ptr + token * key_dim, w_e, rows, keys, key_stride, left, key_dim)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads"])
def _prepare_backward(
    e_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, overlaps_ptr, inverse_ptr, written_ptr,
    states_ptr, dwritten_ptr, dk_part_ptr, dg_part_ptr,
    de_ptr, doverlaps_ptr, dk_ptr, dv_ptr, dg_ptr, dbeta_ptr,
    cu_seqlens_ptr, sequences, tokens, heads, key_dim: tl.int32, value_dim: tl.int32,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    USE_G: tl.constexpr, USE_HEAD_G: tl.constexpr, USE_BETA: tl.constexpr,
    EXCLUSIVE: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """A program turns dU of one chunk and head into dk, dv, dg and dbeta.

    To dk and dg it adds the parts of the linear recurrence. With exclusive readers they are not the
    keys, and have gradients of their own, `de`, in float32; otherwise these go into dk.

    With gates per channel e is decayed, and what becomes of its gradient `de` and of that of the
    overlaps is for another kernel: there is neither dk nor dg.
    """
    DTYPE: tl.constexpr = v_ptr.dtype.element_ty
    head = tl.program_id(0) % heads
    chunk = tl.program_id(0) // heads
    first, left, _, _ = locate_chunk(chunk, cu_seqlens_ptr, sequences, tokens, C, PACKED)
    if left <= 0:
        return
    rows = tl.arange(0, C)
    token = first * heads + head
    key_rows = token * key_dim
    value_rows = token * value_dim
    key_stride = heads * key_dim
    value_stride = heads * value_dim
    if USE_HEAD_G:
        g = load_head_gates(g_ptr + token, rows, heads, left)
    e_ptr += key_rows
    if USE_G or EXCLUSIVE:
        de_ptr += key_rows
    if not USE_G:
        k_ptr += key_rows
        dk_part_ptr += key_rows
    states_ptr += (chunk.to(tl.int64) * heads + head) * key_dim * value_dim
    inside = rows < left
    beta = tl.full([C], 1.0, tl.float32)
    if USE_BETA:
        beta = tl.load(beta_ptr + token + rows * heads, mask=inside, other=0.0)
    cell = (chunk.to(tl.int64) * heads + head) * C * C
    inverse = load_rows(inverse_ptr + cell, rows, rows, C, C, C)

    dA = tl.zeros([C, C], tl.float32)
    dbeta = tl.zeros([C], tl.float32)
    for start in range(0, value_dim, BV):
        values = start + tl.arange(0, BV)
        du = load_rows(dwritten_ptr + value_rows, rows, values, value_stride, left, value_dim)
        u = load_rows(written_ptr + value_rows, rows, values, value_stride, left, value_dim)
        dA = product(du, tl.trans(u), DTYPE, acc=dA)
        dY = product(tl.trans(inverse), du, DTYPE, FINE_A=True, FINE_B=True)
        v = load_rows(v_ptr + value_rows, rows, values, value_stride, left, value_dim)
        dbeta += tl.sum(v * dY, 1)
        dv = beta[:, None] * dY
        store_rows(dv_ptr + value_rows, dv, rows, values, value_stride, left, value_dim)
    dA = product(tl.trans(inverse), -dA, DTYPE, FINE_A=True, FINE_B=True)
    dA = tl.where(rows[:, None] > rows[None, :], dA, 0.0)
    if USE_HEAD_G:
        dA *= pair_decay(0, g, C, DTYPE)
    if USE_G:
        overlaps = load_rows(overlaps_ptr + cell, rows, rows, C, C, C)
    else:
        # dA has decayed with gates of a head by now.
        overlaps = _overlaps(e_ptr, k_ptr, g_ptr, rows, heads, left, key_dim, C, BK, False)
    terms = dA * overlaps
    dbeta += tl.sum(terms, 1)
    if USE_HEAD_G:
        # The gate at t gets the gradients of the pairs i >= t > j.
        straddling = sum_gradients(chunk_span_transposed(0, C), beta[:, None] * terms, DTYPE)
        dg = tl.sum(tl.where(chunk_span_transposed(1, C), straddling, 0.0), 1)
    dA *= beta[:, None]
    if USE_G:
        store_rows(doverlaps_ptr + cell, dA, rows, rows, C, C, C)

    to_start = tl.zeros([C], tl.float32)
    from_start = tl.full([C], 1.0, tl.float32)
    if USE_HEAD_G:
        from_start = head_decay(0, g, DTYPE)
    for start in tl.range(0, key_dim, BK, disable_licm=True):
        keys = start + tl.arange(0, BK)
        dW = tl.zeros([C, BK], tl.float32)
        for value_start in range(0, value_dim, BV):
            values = value_start + tl.arange(0, BV)
            du = load_rows(dwritten_ptr + value_rows, rows, values, value_stride, left, value_dim)
            S = load_rows(states_ptr, keys, values, value_dim, key_dim, value_dim)
            dW = product(du, tl.trans(S), DTYPE, FINE_A=True, acc=dW)
        inverse = load_rows(inverse_ptr + cell, rows, rows, C, C, C)
        dX = product(tl.trans(inverse), -dW, DTYPE, FINE_A=True, FINE_B=True)
        e = load_rows(e_ptr, rows, keys, key_stride, left, key_dim)
        to_start += tl.sum(e * dX, 1)
        dX *= (from_start * beta)[:, None]
        if USE_G:
            store_rows(de_ptr, dX, rows, keys, key_stride, left, key_dim)
        else:
            dk = load_rows(dk_part_ptr, rows, keys, key_stride, left, key_dim)
            if EXCLUSIVE:
                k = load_rows(k_ptr, rows, keys, key_stride, left, key_dim)
                de = product(dA, k, DTYPE, acc=dX)
                store_rows(de_ptr, de, rows, keys, key_stride, left, key_dim)
            else:
                dk = product(dA, e, DTYPE, acc=dk + dX)
            dk = product(tl.trans(dA), e, DTYPE, acc=dk)
            store_rows(dk_ptr + key_rows, dk, rows, keys, key_stride, left, key_dim)
    to_start *= from_start
    if USE_BETA:
        dbeta += to_start
        tl.store(dbeta_ptr + token + rows * heads, dbeta, mask=inside)
    if USE_HEAD_G:
        dg += tl.cumsum(beta * to_start, 0, reverse=True)
        dg += tl.load(dg_part_ptr + token + rows * heads, mask=inside)
        tl.store(dg_ptr + token + rows * heads, dg, mask=inside)


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, a: Tensor | None,
    b: Tensor | None, *, scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    tile: Entry, output_final_state: bool, saves: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return outputs, final states if asked for, and if it `saves` the fields of `Saved`; see
    `fused_recurrent` for the rest."""
    rule = _Rule.of(q, k, v, g, beta, a, b, cu_seqlens, tile)
    rows, e, overlaps = rule.rows(scale, reads_only=True)
    w_e, w_v, inverse = rule.solved(e, overlaps, saves=saves)
    saved = (w_e, w_v, inverse) if saves else ()
    del e, overlaps  # before what follows wants memory
    o = torch.empty_like(rule.v)
    if "fused" in tile.kernels:
        _, final = fused.pass_states(
            rows, w_v, initial_state, e=w_e, o=o, final=output_final_state, tile=tile
        )
    else:
        written = torch.empty_like(w_v)
        states, final = pass_states(
            rows, w_v, initial_state, final=output_final_state, tile=tile, delta=(w_e, written)
        )
        del w_e, w_v
        outputs(rows, written, states, o, tile=tile)
    return (o if a is None else _second(o)), final, *saved


def backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, a: Tensor | None,
    b: Tensor | None, *, scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    tile: Entry, do: Tensor, dfinal_state: Tensor | None, keys_dtype: torch.dtype,
    values_dtype: torch.dtype, saved: Sequence[Tensor] | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of `forward`'s inputs; arguments and returns as in `fused_recurrent`."""
    rule = _Rule.of(q, k, v, g, beta, a, b, cu_seqlens, tile)
    do = do.contiguous() if a is None else _interleaved(torch.zeros_like(do), do)
    rows, e, overlaps = rule.rows(scale)
    w_e, w_v, inverse = rule.solved(e, overlaps) if saved is None else saved
    written = torch.empty_like(w_v)
    dwritten = torch.empty_like(w_v)
    is_fused = "fused" in tile.kernels
    if rule.by_channel or not is_fused:
        outputs(rows, do, None, dwritten, reverse=True, tile=tile)
    if is_fused:
        states, _ = fused.pass_states(rows, w_v, initial_state, e=w_e, written=written, tile=tile)
        dstates, dinitial = fused.pass_states(
            rows, do, dfinal_state, e=rows.k, written=dwritten, w=w_e,
            final=initial_state is not None, tile=tile,
        )  # fmt: skip
    else:
        states, _ = pass_states(rows, w_v, initial_state, tile=tile, delta=(w_e, written))
        dstates, dinitial = pass_states(
            rows, do, dfinal_state, final=initial_state is not None, reverse=True, tile=tile,
            delta=(w_e, dwritten),
        )  # fmt: skip
    assert states is not None
    assert dstates is not None
    del rows, w_e, w_v  # before what follows wants memory
    linear = partial(
        gradients, rule.q, rule.k, written, rule.g, do, states, dstates, rule.chunks,
        scale=scale, tile=tile, keys_dtype=keys_dtype,
    )  # fmt: skip
    if rule.by_channel:
        de, doverlaps, _, dv, _, dbeta = rule.system_backward(
            e, overlaps, inverse, written, states, dwritten, None, None, keys_dtype, values_dtype
        )
        del e, overlaps, inverse, dwritten
        dq, dk, dg, de = linear(delta=(rule.e, de, doverlaps))
    else:
        dq, dk, dg, _ = linear(partial=True)
        del linear, dstates
        de, _, dk, dv, dg, dbeta = rule.system_backward(
            e, overlaps, inverse, written, states, dwritten, dk, dg, keys_dtype, values_dtype
        )
    if a is None:
        return dq, dk, dv, dg, dbeta, None, None, dinitial
    return (
        _second(dq), _second(dk), _second(dv), None if dg is None else _first(dg), None,
        -_first(de).to(values_dtype), _first(dk).to(values_dtype), dinitial,
    )  # fmt: skip


class Saved(NamedTuple):
    """The systems of all chunks, solved; see the top of this file.

    Args:
        w_e, w_v: `[B, T, H, K]` and `[B, T, H, V]`.
        inverse: `[chunks, H, C, C]` in float32, or None if nothing reads it.
    """

    w_e: Tensor
    w_v: Tensor
    inverse: Tensor | None

    @staticmethod
    def shapes(given: Mapping[str, Any]) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Return the shape and dtype of each field; of no elements if `forward` does not save."""
        if not given["saves"]:
            return 3 * [((0,), torch.float32)]
        batch, tokens, heads, value_dim = given["v"].shape
        length, dtype = given["tile"].tokens, workspace_dtype(given["dtype"])
        count = cut(batch, tokens, given["cu_seqlens"], length).count
        return [
            ((batch, tokens, heads, given["k"].shape[3]), dtype),
            ((batch, tokens, heads, value_dim), dtype),
            ((count, heads, length, length), torch.float32),
        ]


@dataclass(frozen=True)
class _Rule:
    """A rule by rows, contiguous: readers, keys, values, gates and strengths, cut in chunks."""

    q: Tensor
    e: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    beta: Tensor | None
    chunks: Chunks
    tile: Entry

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor | None,
        beta: Tensor | None,
        a: Tensor | None,
        b: Tensor | None,
        cu_seqlens: Tensor | None,
        tile: Entry,
    ) -> "_Rule":
        """A delta rule as it is, DPLR on twice as many rows."""
        if a is None:
            q, k, v, g, beta = contiguous(q, k, v, g, beta)
            e = k
        else:
            q, v = (_interleaved(torch.zeros_like(x), x) for x in (q, v))
            e, k = _interleaved(-a, torch.zeros_like(a)), _interleaved(b, k)
            g = None if g is None else _interleaved(g, torch.zeros_like(g))
            cu_seqlens = None if cu_seqlens is None else 2 * cu_seqlens
        chunks = cut(q.shape[0], q.shape[1], cu_seqlens, tile.tokens)
        return cls(q, e, k, v, g, beta, chunks, tile)

    @property
    def by_channel(self) -> bool:
        """Whether there are gates per channel."""
        return self.g is not None and self.g.dim() == 4

    def rows(self, scale: float, *, reads_only: bool = False) -> tuple[Rows, Tensor, Tensor | None]:
        """Return the rows of the linear recurrence, the readers and, with gates per channel, the
        overlaps of readers with keys; else None. Gates per channel have decayed the readers, see
        `decay_within`.
        """
        if self.by_channel:
            rows, e, overlaps = decay_within(
                self.q, self.k, self.g, self.chunks,
                scale=scale, tile=self.tile, reads_only=reads_only, e=self.e,
            )  # fmt: skip
            return rows, e, overlaps
        return Rows(self.q, self.k, self.g, scale, self.chunks, self.k.dtype), self.e, None

    def solved(self, e: Tensor, overlaps: Tensor | None, *, saves: bool = True) -> Saved:
        """Solve the systems of the readers and overlaps that `rows` returns.

        Args:
            saves: return the inverses, too.
        """
        dtype = workspace_dtype(self.k.dtype)
        w_e, w_v = torch.empty_like(self.e, dtype=dtype), torch.empty_like(self.v, dtype=dtype)
        heads, length = self.k.shape[2], self.tile.tokens
        shape = self.chunks.count, heads, length, length
        inverse = self.k.new_empty(shape, dtype=torch.float32) if saves else None
        _prepare[(self.chunks.count * heads,)](
            e, self.k, self.v, self.g, self.beta, overlaps, w_e, w_v, inverse,
            **self._launch("system"),
        )  # fmt: skip
        return Saved(w_e, w_v, inverse)

    def system_backward(
        self,
        e: Tensor,
        overlaps: Tensor | None,
        inverse: Tensor,
        written: Tensor,
        states: Tensor,
        dwritten: Tensor,
        dk_part: Tensor | None,
        dg_part: Tensor | None,
        keys_dtype: torch.dtype,
        values_dtype: torch.dtype,
    ) -> tuple[Tensor | None, ...]:
        """The gradients that come through the systems, see `_prepare_backward`.

        Args:
            dk_part, dg_part: the gradients that come through the linear recurrence, which are
                added; None with gates per channel.

        Returns:
            de (float32), doverlaps, dk, dv, dg, dbeta. With gates per channel dk and dg are None:
            another kernel computes them from de and doverlaps. Without, doverlaps is None, and de
            unless the readers are other rows than the keys. dg and dbeta are None without such an
            input.
        """
        de = doverlaps = dk = dg = None
        if self.by_channel:
            de, doverlaps = torch.empty_like(e), torch.empty_like(overlaps)
        else:
            de = None if self.e is self.k else torch.empty_like(self.e, dtype=torch.float32)
            dk = torch.empty_like(self.k, dtype=keys_dtype)
            dg = None if self.g is None else torch.empty_like(self.g)
        dv = torch.empty_like(self.v, dtype=values_dtype)
        dbeta = None if self.beta is None else torch.empty_like(self.beta)
        heads = self.k.shape[2]
        _prepare_backward[(self.chunks.count * heads,)](
            e, self.k, self.v, self.g, self.beta, overlaps, inverse,
            written, states, dwritten, dk_part, dg_part, de, doverlaps, dk, dv, dg, dbeta,
            **self._launch("system_backward"), EXCLUSIVE=self.e is not self.k,
        )  # fmt: skip
        return de, doverlaps, dk, dv, dg, dbeta

    def _launch(self, kernel: str) -> dict[str, Any]:
        _, tokens, heads, key_dim = self.k.shape
        value_dim = self.v.shape[3]
        tile = tile_of(kernel, self.tile, key_dim, value_dim)
        BK, BV = blocks(key_dim, value_dim, tile, self.k.dtype)
        return {
            "cu_seqlens_ptr": self.chunks.cu_seqlens, "sequences": self.chunks.sequences,
            "tokens": tokens, "heads": heads, "key_dim": key_dim, "value_dim": value_dim,
            "C": self.tile.tokens, "BK": BK, "BV": BV,
            **gate_flags(self.g), "USE_BETA": self.beta is not None,
            "PACKED": self.chunks.cu_seqlens is not None,
            "num_warps": tile.num_warps, "num_stages": tile.num_stages,
        }  # fmt: skip


def _interleaved(first: Tensor, second: Tensor) -> Tensor:
    """`[B, 2 T, ...]`: two rows for every token."""
    # Not by `torch.stack`, which refuses some dtypes under autocast.
    both = first.new_empty(first.shape[0], first.shape[1], 2, *first.shape[2:])
    both[:, :, 0], both[:, :, 1] = first, second
    return both.flatten(1, 2)


def _first(x: Tensor) -> Tensor:
    """Copy the even rows: an op must return memory of its own."""
    return x[:, 0::2].clone(memory_format=torch.contiguous_format)


def _second(x: Tensor) -> Tensor:
    return x[:, 1::2].clone(memory_format=torch.contiguous_format)
