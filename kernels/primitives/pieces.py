"""Computed operands in memory as `product` splits them: a float32, or two bfloat16 whose sum it is.

A kernel that stores an operand in pieces splits it once, where each reader would split it again,
and a load of bfloat16 goes to shared memory without passing through registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.primitives.product import product
from kernels.primitives.rows import load_rows, store_rows


def empty_pieces(like: Tensor, *shape: int) -> Tensor:
    """Room for an operand of that shape, computed from inputs of the dtype of `like`."""
    if like.dtype == torch.float32:
        return like.new_empty(1, *shape)
    return like.new_empty(2, *shape, dtype=torch.bfloat16)


@triton.jit
def elements(sequences, tokens, stride, PACKED: tl.constexpr):
    """How many elements `[B, T, ...]` has (int64), of rows of `stride`.

    It is the stride between the pieces of an operand. As an argument, it would not be known to be
    divisible by 16, and loads would take one element at a time.
    """
    rows = tl.cast(tokens, tl.int64)
    if not PACKED:
        rows *= sequences
    return rows * stride


@triton.jit
def store_pieces(ptr, piece_stride, x, rows, cols, stride, num_rows, num_cols):
    """`store_rows` of a float32 tile. The second piece is `piece_stride` elements behind the
    first."""
    store_rows(ptr, x, rows, cols, stride, num_rows, num_cols)
    if ptr.dtype.element_ty.is_bf16():
        rest = x - x.to(tl.bfloat16).to(tl.float32)
        store_rows(ptr + piece_stride, rest, rows, cols, stride, num_rows, num_cols)


@triton.jit
def load_pieces(ptr, piece_stride, rows, cols, stride, num_rows, num_cols):
    """`load_rows` of both pieces; a float32 has only one, returned twice."""
    high = load_rows(ptr, rows, cols, stride, num_rows, num_cols)
    low = high
    if ptr.dtype.element_ty.is_bf16():
        low = load_rows(ptr + piece_stride, rows, cols, stride, num_rows, num_cols)
    return high, low


@triton.jit
def load_slices(
    ptr, piece_stride, rows, stride, num_rows, num_cols, BK: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """`load_pieces` of whole rows, in PARTS slices of BK columns."""
    slices = ()
    for part in tl.static_range(PARTS):
        cols = part * BK + tl.arange(0, BK)
        slices += (load_pieces(ptr, piece_stride, rows, cols, stride, num_rows, num_cols),)
    return slices


@triton.jit
def merged(pieces):
    """The float32 tile that pieces stand for."""
    x = pieces[0].to(tl.float32)
    if pieces[0].dtype.is_bf16():
        x += pieces[1]
    return x


@triton.jit
def transposed(pieces):
    return tl.trans(pieces[0]), tl.trans(pieces[1])


@triton.jit
def split(x, DTYPE: tl.constexpr):
    """Pieces of a float32 tile."""
    high = x
    low = x
    if not DTYPE.is_fp32():
        high = x.to(tl.bfloat16)
        low = (x - high.to(tl.float32)).to(tl.bfloat16)
    return high, low


@triton.jit
def product_of_pieces(a, b, DTYPE: tl.constexpr, acc=None):
    """`a @ b` of operands in pieces, added to `acc`: what `product` computes of their sums."""
    if DTYPE.is_fp32():
        c = product(a[0], b[0], DTYPE, acc=acc)
    else:
        c = tl.dot(a[1], b[0], acc)
        c = tl.dot(a[0], b[1], c)
        c = tl.dot(a[0], b[0], c)
    return c


@triton.jit
def rounded_product(a, b, DTYPE: tl.constexpr, acc=None):
    """`a @ b` of float32 `a`, which is rounded once if DTYPE is bfloat16, and `b` in pieces."""
    if DTYPE.is_bf16():
        high = a.to(tl.bfloat16)
        c = tl.dot(high, b[0], tl.dot(high, b[1], acc))
    else:
        c = product_of_pieces(split(a, DTYPE), b, DTYPE, acc)
    return c
