"""Tiles and rows of a row-major matrix, zero outside its extent."""

import triton
import triton.language as tl


@triton.jit
def load_rows(ptr, rows, cols, stride, num_rows, num_cols):
    """Elements `[rows, cols]` of the matrix at `ptr`; 0 past `num_rows` or `num_cols`."""
    inside = (rows[:, None] < num_rows) & (cols[None, :] < num_cols)
    return tl.load(ptr + rows[:, None] * stride + cols[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(ptr, x, rows, cols, stride, num_rows, num_cols):
    """Write `x[rows, cols]` in the dtype of `ptr`; nothing past `num_rows` or `num_cols`."""
    inside = (rows[:, None] < num_rows) & (cols[None, :] < num_cols)
    tl.store(ptr + rows[:, None] * stride + cols[None, :], x, mask=inside)


@triton.jit
def load_row(ptr, row, width, cols, inside):
    """A row of a contiguous `[..., D]` tensor in float32, 0 outside."""
    return tl.load(ptr + row * width + cols, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_row(ptr, x, row, width, cols, inside):
    """Write a row of a contiguous `[..., D]` tensor in its dtype; nothing outside."""
    tl.store(ptr + row * width + cols, x, mask=inside)


@triton.jit
def load_number(ptr, cell):
    """An element in float32."""
    return tl.load(ptr + cell).to(tl.float32)
