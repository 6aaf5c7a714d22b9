"""Matrix products whose rounding is chosen per operand.

A tensor core multiplies 16-bit operands exactly and adds in float32, so a product is as accurate as
its operands. Inputs of the op are exact. An operand that a kernel has computed (a decayed key, a
score, a state) is rounded, and the kernels round at most twice on any path from the inputs to a
result: the error budget of the properties grants two roundings.

- float32 inputs: float32 products (`ieee`), no rounding.
- bfloat16: a computed operand is rounded once, or kept as the sum of two bfloat16 (`FINE`), which
  loses 2^-17 and costs a second product.
- float16: computed operands may leave its range (a state of large keys overflows, a strong decay
  vanishes), so they are never stored in it: every operand is the sum of two bfloat16, which have
  the range of float32 and together hold the 11 bits of a float16 exactly.
"""

import torch
import triton
import triton.language as tl

# The values of DTYPE, for kernels that have no pointer of the dtype of the inputs.
TRITON_DTYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@triton.jit
def product(
    a, b, DTYPE: tl.constexpr,
    FINE_A: tl.constexpr = False, FINE_B: tl.constexpr = False, acc=None,
):  # fmt: skip
    """`a @ b` in float32, added to `acc` if there is one: beside it, a sum takes registers.

    Args:
        a, b: `[M, D]`, `[D, N]`, each in DTYPE (an input) or float32 (computed).
        DTYPE: dtype of the op's inputs.
        FINE_A, FINE_B: with bfloat16 inputs, do not round this operand.
    """
    # Terms of a split operand are added small ones first.
    SPLIT_A: tl.constexpr = a.dtype != tl.bfloat16 and (FINE_A or DTYPE.is_fp16())
    SPLIT_B: tl.constexpr = b.dtype != tl.bfloat16 and (FINE_B or DTYPE.is_fp16())
    if DTYPE.is_fp32():
        c = tl.dot(a, b, acc, input_precision="ieee")
    elif a.dtype == DTYPE and b.dtype == DTYPE:
        c = tl.dot(a, b, acc)
    elif SPLIT_A and SPLIT_B:
        a_high = a.to(tl.bfloat16)
        b_high = b.to(tl.bfloat16)
        c = tl.dot(_rest(a, a_high), b_high, acc)
        c = tl.dot(a_high, _rest(b, b_high), c)
        c = tl.dot(a_high, b_high, c)
    elif SPLIT_A:
        a_high = a.to(tl.bfloat16)
        b_high = b.to(tl.bfloat16)
        c = tl.dot(a_high, b_high, tl.dot(_rest(a, a_high), b_high, acc))
    elif SPLIT_B:
        a_high = a.to(tl.bfloat16)
        b_high = b.to(tl.bfloat16)
        c = tl.dot(a_high, b_high, tl.dot(a_high, _rest(b, b_high), acc))
    else:
        c = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    return c


@triton.jit
def select_and_sum(mask, x, PIECES: tl.constexpr):
    """`mask @ x` in float32 for a boolean `mask [M, D]`: each row sums some rows of `x [D, N]`.

    Args:
        PIECES: number of bfloat16 whose sum stands for an element of x, 8 bits each;
            0 for float32 products.
    """
    # A selection: to convert a truth value takes a slower instruction.
    ones = tl.where(mask, 1.0, 0.0)
    if PIECES == 0:
        total = tl.dot(ones, x, input_precision="ieee")
    else:
        ones = ones.to(tl.bfloat16)
        piece = x.to(tl.bfloat16)
        total = tl.dot(ones, piece)
        if PIECES > 1:
            rest = x.to(tl.float32) - piece
            piece = rest.to(tl.bfloat16)
            total = tl.dot(ones, piece, total)
            if PIECES > 2:
                total = tl.dot(ones, _rest(rest, piece), total)
    return total


@triton.jit
def _rest(x, high):
    return (x.to(tl.float32) - high).to(tl.bfloat16)
