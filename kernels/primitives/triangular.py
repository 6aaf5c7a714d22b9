"""The unit lower triangular systems that the delta rules solve, one per chunk."""

import triton
import triton.language as tl


@triton.jit
def inverse_unit_lower(A, C: tl.constexpr):
    """`(I + A)⁻¹ [C, C]` of a strictly lower triangular `A [C, C]` in float32.

    By substitution, each row from those above it: row i is `e_i - Σ_{j < i} A_ij row_j`. The
    products of a doubling, `(I - A)(I + A²)(I + A⁴)···`, would be faster and cancel: their factors
    grow with the powers of A where the inverse does not, as for a key that repeats.
    """
    rows = tl.arange(0, C)
    inverse = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    for i in range(1, C):
        row = rows[:, None] == i
        weights = tl.sum(tl.where(row, A, 0.0), 0)
        known = tl.sum(weights[:, None] * inverse, 0)
        inverse -= tl.where(row, known[None, :], 0.0)
    return inverse
