"""The unit lower triangular systems that the delta rules solve, one per chunk."""

import triton
import triton.language as tl

from kernels.primitives.product import product


@triton.jit
def inverse_unit_lower(A, C: tl.constexpr, DTYPE: tl.constexpr):
    """`(I + A)⁻¹ [C, C]` of a strictly lower triangular `A [C, C]` in float32.

    Invert the blocks on the diagonal, of 2 rows at first, and join two blocks into one,

        (L_1   )⁻¹   (  X_1          )
        (A  L_2)   = ( -X_2 A X_1  X_2)

    in products that for 16-bit inputs of DTYPE keep 16 bits of their operands. Up to the 16 rows
    that a product takes, blocks of 16 hold the smaller ones, in a loop that is not unrolled, which
    took three times as long to compile; from there on a product has the halves of a block alone.

    The products of `(I - A)(I + A²)(I + A⁴)···` would cancel: its factors grow with the powers of A
    where the inverse does not, as for a key that repeats.
    """
    row = tl.arange(0, 16)[None, :, None]
    col = tl.arange(0, 16)[None, None, :]
    blocks = _blocks(A, 0, C, 16)
    X = tl.where(row == col, 1.0, 0.0) - tl.where((row % 2 == 1) & (col == row - 1), blocks, 0.0)
    level = 1
    while level < 4:
        # Rows of every second block, and columns of the one before.
        below = ((row >> level) % 2 == 1) & (col >> level == (row >> level) - 1)
        X -= _between(X, tl.where(below, blocks, 0.0), X, DTYPE)
        level += 1
    if C >= 32:
        X = _joined(X, A, C, 16, DTYPE)
    if C >= 64:
        X = _joined(X, A, C, 32, DTYPE)
    return tl.reshape(X, [C, C])


@triton.jit
def _blocks(A, DOWN: tl.constexpr, C: tl.constexpr, SIDE: tl.constexpr):
    """The blocks `[C / SIDE, SIDE, SIDE]` of `A [C, C]` that lie DOWN blocks below the diagonal; 0
    where there is none."""
    N: tl.constexpr = C // SIDE
    block = tl.arange(0, N)
    own = block[:, None, None, None] == block[None, None, :, None] + DOWN
    return tl.sum(tl.where(own, tl.reshape(A, [N, SIDE, N, SIDE]), 0.0), 2)


@triton.jit
def _joined(X, A, C: tl.constexpr, SIDE: tl.constexpr, DTYPE: tl.constexpr):
    """Inverses of twice as many rows."""
    PAIRS: tl.constexpr = C // (2 * SIDE)
    upper = tl.arange(0, 2)[None, :, None, None] == 0
    X = tl.reshape(X, [PAIRS, 2, SIDE, SIDE])
    A = tl.reshape(_blocks(A, 1, C, SIDE), [PAIRS, 2, SIDE, SIDE])
    X_1 = tl.sum(tl.where(upper, X, 0.0), 1)
    X_2 = tl.sum(tl.where(upper, 0.0, X), 1)
    between = _between(X_2, tl.sum(tl.where(upper, 0.0, A), 1), X_1, DTYPE)
    row = tl.arange(0, 2)[None, :, None, None, None]
    col = tl.arange(0, 2)[None, None, None, :, None]
    X = tl.where(row == col, X[:, :, :, None, :], 0.0)
    X -= tl.where(row > col, between[:, None, :, None, :], 0.0)
    return tl.reshape(X, [PAIRS, 2 * SIDE, 2 * SIDE])


@triton.jit
def _between(X_2, A, X_1, DTYPE: tl.constexpr):
    """X_2 A X_1, of operands that are not rounded."""
    X_A = product(X_2, A, DTYPE, FINE_A=True, FINE_B=True)
    return product(X_A, X_1, DTYPE, FINE_A=True, FINE_B=True)
