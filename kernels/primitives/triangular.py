"""The unit lower triangular systems that the delta rules solve, one per chunk."""

import triton
import triton.language as tl

from kernels.primitives.product import product


@triton.jit
def inverse_unit_lower(A, C: tl.constexpr, DTYPE: tl.constexpr):
    """`(I + A)⁻¹ [C, C]` of a strictly lower triangular `A [C, C]` in float32.

    In blocks on the diagonal, of 2 rows at first. Of two blocks comes the one of both,

        (L_1   )⁻¹   (  X_1          )
        (A  L_2)   = ( -X_2 A X_1  X_2)

    in products that for 16-bit inputs of DTYPE keep 16 bits of their operands. All but the last are
    of the two halves of the diagonal side by side, which is a quarter of the work, and loops are
    not unrolled, which took three times as long to compile.

    The products of `(I - A)(I + A²)(I + A⁴)···` would cancel: its factors grow with the powers of A
    where the inverse does not, as for a key that repeats.
    """
    # A product takes 16 rows.
    BLOCKS: tl.constexpr = 1 if C == 16 else 2
    SIDE: tl.constexpr = C // BLOCKS
    block = tl.arange(0, BLOCKS)
    own = block[:, None, None, None] == block[None, None, :, None]
    blocks = tl.sum(tl.where(own, tl.reshape(A, [BLOCKS, SIDE, BLOCKS, SIDE]), 0.0), 2)
    row = tl.arange(0, SIDE)[None, :, None]
    col = tl.arange(0, SIDE)[None, None, :]
    X = tl.where(row == col, 1.0, 0.0) - tl.where((row % 2 == 1) & (col == row - 1), blocks, 0.0)
    level = 1
    while 1 << level < SIDE:
        # Rows of every second block, and columns of the one before.
        below = ((row >> level) % 2 == 1) & (col >> level == (row >> level) - 1)
        X = _joined(X, tl.where(below, blocks, 0.0), DTYPE)
        level += 1
    inverse = tl.reshape(tl.where(own, X[:, :, None, :], 0.0), [C, C])
    if BLOCKS == 2:
        rows = tl.arange(0, C)
        below = (rows[:, None] >= SIDE) & (rows[None, :] < SIDE)
        inverse = _joined(inverse, tl.where(below, A, 0.0), DTYPE)
    return inverse


@triton.jit
def _joined(X, A, DTYPE: tl.constexpr):
    X_A = product(X, A, DTYPE, FINE_A=True, FINE_B=True)
    return X - product(X_A, X, DTYPE, FINE_A=True, FINE_B=True)
