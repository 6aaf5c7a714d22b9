"""Decays between the tokens of a chunk, by halving.

Gated recurrences need `exp(Σ_{j < t <= i} g_t)` for all pairs j < i of a chunk, per channel. As a
matrix product this factors through an anchor m with j <= m < i,

    exp(Σ_{j < t <= m} g_t) · exp(Σ_{m < t <= i} g_t),

and both exponents are <= 0, so nothing overflows. One anchor cannot lie between all pairs, but
log2(C) sets of anchors can: at level l the chunk is cut into blocks of 2^(l+1) tokens, anchored in
the middle, and a pair belongs to the one level at which it has the two tokens in the two halves of
a block, the highest bit in which i and j differ. Every token is on one side of its anchor only:

    bit l of r set      r is a query:  E_l[r] = Σ of g over its half block up to r
    bit l of r clear    r is a key:    E_l[r] = Σ of g over its half block after r

so one matrix of decays, exp(E_l), holds both sides, and `(exp(E_l) ∘ q) (exp(E_l) ∘ k)ᵀ` holds the
scores of all pairs of the level, among others. Properties that follow:

- The anchor of a pair lies between the pair: nothing depends on later tokens, nor on the length.
- E_l is a sum of its own, by a product with a 0/1 matrix, never a difference of prefix sums. All
  terms have one sign, so a huge gate costs the small ones beside it no digits.
- For float32 inputs the sum is exact to the last digits of its exponential, not only to its own:
  see `decay`.
- With X_l = exp(E_l) ∘ (q or k by the bit), dE_l = dX_l ∘ X_l goes back to g through the transposed
  0/1 matrix. Only pairs that straddle a gate contribute to its gradient, all through products with
  their own decay, so that a gradient that the gates make tiny is not the difference of two that
  are not (as it is in the common `reverse_cumsum(q ∘ dq - k ∘ dk)`).
- exp is called log2(C) times per token and channel, where pairwise decays in diagonal blocks of 16
  call it 16 times and cannot use the tensor cores.

The same two sums over the whole chunk connect it with the states before and after it.

Where all channels of a head share a gate, the decays of all pairs are a `[C, C]` matrix beside the
scores, whose sums are differences of whole numbers: see `pair_decay`.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.primitives.product import select_and_sum

# exp of it is 0 in float32. Gates below are raised to it: -inf must not meet a 0 in a product, and
# the sums in `decay` must stay exact.
_FLOOR = tl.constexpr(-128.0)
_LOG2_E = tl.constexpr(1.4426950408889634)
# log(2) = _HIGH + _LOW, _HIGH of 8 bits.
_HIGH = tl.constexpr(0.69140625)
_LOW = tl.constexpr(0.0017409306019544601)


def gate_flags(g: Tensor | None) -> dict[str, bool]:
    """Flags of log decays: USE_G per channel `[B, T, H, K]`, USE_HEAD_G per head `[B, T, H]`."""
    return {"USE_G": g is not None and g.dim() == 4, "USE_HEAD_G": g is not None and g.dim() == 3}


@triton.jit
def load_gates(ptr, rows, cols, stride, num_rows, num_cols):
    """A tile of log decays in their own dtype, 0 outside the extent, nothing below -128."""
    inside = (rows[:, None] < num_rows) & (cols[None, :] < num_cols)
    g = tl.load(ptr + rows[:, None] * stride + cols[None, :], mask=inside, other=0.0)
    return tl.where(g < _FLOOR, _FLOOR, g)


@triton.jit
def load_sides(q_ptr, k_ptr, queries, rows, cols, stride, num_rows, num_cols):
    """Rows of q where `queries [C, 1]`, rows of k elsewhere; 0 outside the extent.

    A level loads them again: from a cache they cost less than the registers that would keep them.
    """
    inside = (rows[:, None] < num_rows) & (cols[None, :] < num_cols)
    cells = rows[:, None] * stride + cols[None, :]
    q = tl.load(q_ptr + cells, mask=inside & queries, other=0.0)
    k = tl.load(k_ptr + cells, mask=inside & (queries == 0), other=0.0)
    return tl.where(queries, q, k)


@triton.jit
def decay(mask, g, DTYPE: tl.constexpr):
    """`exp(mask @ g)` in float32 for a boolean `mask [C, C]` and log decays `g [C, K]`.

    An exponent of -80 has an absolute error of 2^-18 in float32, which is a relative error of 2^-18
    in its exponential. For 16-bit inputs that is nothing. For float32 inputs g is split in two,

        exp(g) = 2^steps · exp(rest),    steps a multiple of 1/256, 0 <= rest < log(2)/256

    where the sums of steps are exact and those of rests, small as they are, nearly so.
    """
    if DTYPE.is_fp32():
        steps, rest = _split(g)
        d = tl.exp2(select_and_sum(mask, steps, 0)) * tl.exp(select_and_sum(mask, rest, 0))
    elif g.dtype == tl.bfloat16:
        d = tl.exp(select_and_sum(mask, g, 1))
    elif g.dtype == tl.float16 or DTYPE.is_bf16():
        d = tl.exp(select_and_sum(mask, g, 2))
    else:
        d = tl.exp(select_and_sum(mask, g, 3))
    return d


@triton.jit
def decay_of_chunk(g, DTYPE: tl.constexpr):
    """`exp(Σ_t g_t) [K]` in float32, as in `decay`."""
    if DTYPE.is_fp32():
        steps, rest = _split(g)
        d = tl.exp2(tl.sum(steps, 0)) * tl.exp(tl.sum(rest, 0))
    else:
        d = tl.exp(tl.sum(g.to(tl.float32), 0))
    return d


@triton.jit
def decay_of_token(g):
    """`exp(g)` of float32 log decays. A GPU's exp rounds its argument, which costs |g| 2^-24."""
    steps, rest = _split(tl.maximum(g, _FLOOR))
    return tl.exp2(steps) * tl.exp(rest)


@triton.jit
def decay_by(S, g):
    """`exp(g) S`, as `S + (exp(g) - 1) S` where g is small.

    A constant decay has the same rounding error at every token, and these errors add up. The error
    of a small exp(g) - 1 is small.
    """
    less = g * (1 / 8) + 1.0
    for n in tl.static_range(7, 0, -1):
        less = less * g * (1 / n) + (1.0 if n > 1 else 0.0)
    return tl.where(tl.abs(g) < 0.5, S + less * S, S * tl.exp(g))


@triton.jit
def _split(g):
    """A log decay as a step, a multiple of 2^-8 in base 2, and the natural rest."""
    steps = tl.floor(g * _LOG2_E * 256) * (1 / 256)
    # steps has 16 bits, its product with _HIGH is exact, and so is the difference.
    return steps, (g - steps * _HIGH) - steps * _LOW


@triton.jit
def load_head_gates(ptr, rows, stride, num_rows):
    """Log decays of one head, one a token, in their own dtype; 0 past the end, none below -128."""
    g = tl.load(ptr + rows * stride, mask=rows < num_rows, other=0.0)
    return tl.where(g < _FLOOR, _FLOOR, g)


@triton.jit
def head_decay(side: tl.constexpr, g, DTYPE: tl.constexpr):
    """`exp(Σ_{t <= r} g_t) [C]` in float32 of log decays `g [C]` for side 0, `exp(Σ_{t > r} g_t)`
    for side 1, as in `decay`."""
    if DTYPE.is_fp32():
        steps, rest = _split(g)
        d = tl.exp2(_sums(side, steps)) * tl.exp(_sums(side, rest))
    else:
        d = tl.exp(_sums(side, g.to(tl.float32)))
    return d


@triton.jit
def _sums(side: tl.constexpr, x):
    # A scan, as masks `[C, C]` take registers. The subtraction costs digits of the difference: for
    # 16-bit inputs 2^-17 at most, for float32 none, as its steps are exact and its rests small.
    return tl.cumsum(x, 0) if side == 0 else tl.cumsum(x, 0, reverse=True) - x


@triton.jit
def pair_decay(side: tl.constexpr, g, C: tl.constexpr, DTYPE: tl.constexpr):
    """`[C, C]` in float32, 1 for a pair in the wrong order, of log decays `g [C]`:
    `exp(Σ_{c < t <= r} g_t)` for side 0, rows being queries, `exp(Σ_{r < t <= c} g_t)` for side 1.

    A sum is the difference of two prefix sums of whole numbers, which are exact: huge gates before
    a pair cost it no digits. For 16-bit inputs a gate is a multiple of 2^-17 then, as finely as 64
    gates of -128 fit in 32 bits: 64 of them are off by 2^-12 at most, and by 2^-15 as a rule.
    """
    if DTYPE.is_fp32():
        steps, rest = _split(g)
        # Steps are multiples of 2^-8, and a rest is less than 2^-8 and loses 2^-33.
        d = tl.exp2(_between(side, steps, 8, C)) * tl.exp(_between(side, rest, 32, C))
    else:
        d = tl.exp2(_between(side, g.to(tl.float32) * _LOG2_E, 17, C))
    return d


@triton.jit
def _between(side: tl.constexpr, x, BITS: tl.constexpr, C: tl.constexpr):
    """The sums of `pair_decay` of `x [C]`, of which BITS after the point count, 0 for a pair in the
    wrong order."""
    tl.static_assert(C <= 64)
    counts = tl.floor(x * 2.0**BITS + 0.5).to(tl.int32)
    before = tl.cumsum(counts, 0)
    between = before[:, None] - before[None, :]
    between = tl.where(chunk_span(side, C), between, 0).to(tl.float32) * 2.0**-BITS
    return between if side == 0 else -between


@triton.jit
def sum_columns(mask, x):
    """`mask @ x [C]` in float32 for a boolean `mask [C, C]` and `x [C]` in float32."""
    return tl.sum(tl.where(mask, x[None, :], 0.0), 1)


@triton.jit
def split_diagonal(rows, dA, DTYPE: tl.constexpr):
    """The diagonal of dA [C, C], whose pairs do not decay, as a column; and `symmetric(dA)`."""
    own = rows[:, None] == rows[None, :]
    return tl.sum(tl.where(own, dA, 0.0), 1)[:, None], symmetric(dA, DTYPE)


@triton.jit
def symmetric(dA, DTYPE: tl.constexpr):
    """dA + dAᵀ, so that products of a level gather keys for the rows of queries, and queries for
    those of keys; in bfloat16 if DTYPE is."""
    dA += tl.trans(dA)
    if DTYPE.is_bf16():
        dA = dA.to(tl.bfloat16)
    return dA


@triton.jit
def sum_gradients(mask, x, DTYPE: tl.constexpr):
    """`mask @ x [C, K]` in float32 for gradients of gates."""
    return select_and_sum(mask, x, 0 if DTYPE.is_fp32() else 2)


# The masks are ranges of columns, two comparisons an element: registers are short. A query sees its
# own gate, unless they are EXCLUSIVE: it then reads before the state decays.


@triton.jit
def chunk_span(side, C: tl.constexpr, EXCLUSIVE: tl.constexpr = False):
    """`[C, C]`, true where gate t (column) lies between token r (row) and an end of the chunk: its
    start for side 0, the side of the queries, where t <= r; its end for side 1, where t > r."""
    r = tl.arange(0, C)
    seen = r if EXCLUSIVE else r + 1
    return _columns(tl.where(side == 0, 0, r + 1), tl.where(side == 0, seen, C), C)


@triton.jit
def chunk_span_transposed(side, C: tl.constexpr, EXCLUSIVE: tl.constexpr = False):
    """`[C, C]`, true where gate t (row) lies between token r (column) and an end of the chunk."""
    t = tl.arange(0, C)
    first = t + 1 if EXCLUSIVE else t
    return _columns(tl.where(side == 0, first, 0), tl.where(side == 0, C, t), C)


@triton.jit
def level_queries(level, C: tl.constexpr):
    """`[C, 1]`, true for the tokens that are queries at this level."""
    return (tl.arange(0, C)[:, None] >> level) & 1 == 1


@triton.jit
def level_pairs(level, C: tl.constexpr):
    """`[C, C]`, true for the pairs of this level, in either order."""
    start = _half(level, C) ^ (1 << level)
    return _columns(start, start + (1 << level), C)


@triton.jit
def level_span(level, C: tl.constexpr, EXCLUSIVE: tl.constexpr = False):
    """`[C, C]`, true where gate t (column) lies between token r (row) and its anchor."""
    r = tl.arange(0, C)
    half = _half(level, C)
    query = (r >> level) & 1 == 1
    seen = r if EXCLUSIVE else r + 1
    return _columns(tl.where(query, half, r + 1), tl.where(query, seen, half + (1 << level)), C)


@triton.jit
def level_span_transposed(level, C: tl.constexpr, EXCLUSIVE: tl.constexpr = False):
    """`[C, C]`, true where gate t (row) lies between token r (column) and its anchor."""
    t = tl.arange(0, C)
    half = _half(level, C)
    query = (t >> level) & 1 == 1
    first = t + 1 if EXCLUSIVE else t
    return _columns(tl.where(query, first, half), tl.where(query, half + (1 << level), t), C)


@triton.jit
def _half(level, C: tl.constexpr):
    return (tl.arange(0, C) >> level) << level


@triton.jit
def _columns(start, stop, C: tl.constexpr):
    c = tl.arange(0, C)[None, :]
    return (c >= start[:, None]) & (c < stop[:, None])
