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

so one matrix, X_l = exp(E_l) ∘ (q or k by the bit), holds both sides, and `X_l X_lᵀ` holds the
scores of all pairs of the level. Properties that follow:

- The anchor of a pair lies between the pair: nothing depends on later tokens, nor on the length.
- E_l is a sum of its own, by a product with a 0/1 matrix, never a difference of prefix sums. All
  terms have one sign, so a huge gate costs the small ones beside it no digits.
- dE_l = dX_l ∘ X_l goes back to g through the transposed 0/1 matrix. Only pairs that straddle a
  gate contribute to its gradient, all through products with their own decay, so that a gradient
  that the gates make tiny is not the difference of two that are not (as it is in the common
  `reverse_cumsum(q ∘ dq - k ∘ dk)`).
- exp is called log2(C) times per token and channel, where pairwise decays in diagonal blocks of 16
  call it 16 times and cannot use the tensor cores.

The same two sums over the whole chunk connect it with the states before and after it.
"""

import triton
import triton.language as tl

from kernels.primitives.product import select_and_sum

# exp is 0 below -104 in float32. What lies far below is raised to here, which keeps -inf out of
# products with 0 and sums of gates exact to 2^-17 of 1024.
_FLOOR = tl.constexpr(-1024.0)


@triton.jit
def load_gates(ptr, rows, cols, stride, num_rows, num_cols):
    """A tile of log decays in their own dtype, 0 outside the extent, nothing below -1024."""
    inside = (rows[:, None] < num_rows) & (cols[None, :] < num_cols)
    g = tl.load(ptr + rows[:, None] * stride + cols[None, :], mask=inside, other=0.0)
    return tl.where(g < _FLOOR, _FLOOR, g).to(ptr.dtype.element_ty)


@triton.jit
def sum_gates(mask, g, DTYPE: tl.constexpr):
    """`mask @ g [C, K]` in float32, as exactly as exp needs it for inputs of DTYPE."""
    if DTYPE == tl.float32:
        PIECES: tl.constexpr = 0
    elif g.dtype == tl.bfloat16:
        PIECES: tl.constexpr = 1
    elif g.dtype == tl.float16 or DTYPE == tl.bfloat16:
        PIECES: tl.constexpr = 2
    else:
        PIECES: tl.constexpr = 3
    return select_and_sum(mask, g, PIECES)


@triton.jit
def sum_gradients(mask, x, DTYPE: tl.constexpr):
    """`mask @ x [C, K]` in float32 for gradients of gates."""
    return select_and_sum(mask, x, 0 if DTYPE == tl.float32 else 2)


@triton.jit
def up_to(C: tl.constexpr):
    """`[C, C]`, true where t <= r: sums over the chunk up to and with r."""
    r = tl.arange(0, C)
    return r[None, :] <= r[:, None]


@triton.jit
def after(C: tl.constexpr):
    """`[C, C]`, true where t > r: sums over the rest of the chunk."""
    r = tl.arange(0, C)
    return r[None, :] > r[:, None]


@triton.jit
def level_queries(level, C: tl.constexpr):
    """`[C, 1]`, true for the tokens that are queries at this level."""
    return (tl.arange(0, C)[:, None] >> level) & 1 == 1


@triton.jit
def level_pairs(level, C: tl.constexpr):
    """`[C, C]`, true for the pairs of this level, in either order."""
    r = tl.arange(0, C)
    return (r[:, None] ^ r[None, :]) >> level == 1


@triton.jit
def level_span(level, C: tl.constexpr):
    """`[C, C]`, true where gate t lies between r and its anchor."""
    r = tl.arange(0, C)
    same_half = (r[:, None] ^ r[None, :]) >> level == 0
    return same_half & (level_queries(level, C) == (r[None, :] <= r[:, None]))


@triton.jit
def level_span_transposed(level, C: tl.constexpr):
    """`level_span` with its axes exchanged: from the tokens r to the gates t."""
    r = tl.arange(0, C)
    same_half = (r[:, None] ^ r[None, :]) >> level == 0
    query = (r[None, :] >> level) & 1 == 1
    return same_half & (query == (r[:, None] <= r[None, :]))
