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

    in products that for 16-bit inputs of DTYPE keep 16 bits of their operands. The products of
    `(I - A)(I + A²)(I + A⁴)···` would cancel: its factors grow with the powers of A where the
    inverse does not, as for a key that repeats.
    """
    row = tl.arange(0, C)[:, None]
    col = tl.arange(0, C)[None, :]
    inverse = tl.where(row == col, 1.0, 0.0)
    inverse -= tl.where((row % 2 == 1) & (col == row - 1), A, 0.0)
    for level in tl.static_range(1, 6):
        if 1 << level < C:
            # Rows of every second block, and columns of the one before.
            below = ((row >> level) % 2 == 1) & (col >> level == (row >> level) - 1)
            X_A = product(inverse, tl.where(below, A, 0.0), DTYPE, FINE_A=True, FINE_B=True)
            inverse -= product(X_A, inverse, DTYPE, FINE_A=True, FINE_B=True)
    return inverse
