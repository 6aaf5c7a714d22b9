"""Launches with a known fault, and one without."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import os

import torch
import triton
import triton.language as tl


@triton.jit
def _product(x, y, SIDE: tl.constexpr, INNER: tl.constexpr):
    rows = tl.arange(0, SIDE)
    inner = tl.arange(0, INNER)
    a = tl.load(x + rows[:, None] * INNER + inner[None, :])
    b = tl.load(x + inner[:, None] * SIDE + rows[None, :])
    tl.store(y + rows[:, None] * SIDE + rows[None, :], tl.dot(a, b))


@triton.jit
def _below_maximum(x, y, SIZE: tl.constexpr):
    """Every value stays in a register until the maximum is known."""
    at = tl.arange(0, SIZE)
    values = tl.load(x + at)
    tl.store(y + at, values - tl.max(values))


def _multiply(inner: int) -> None:
    x = torch.zeros(16 * inner, dtype=torch.bfloat16)
    _product[(1,)](x, x.float(), SIDE=16, INNER=inner)


def multiply() -> None:
    """No fault on any architecture."""
    _multiply(16)


def multiply_8_wide() -> None:
    """An inner dim below what tensor cores take: expand_k = 0.5 with a head of 16."""
    _multiply(8)


def multiply_too_much() -> None:
    """Operands of 128 KiB each, which a product takes from shared memory."""
    _multiply(4096)


def keep_too_many_registers() -> None:
    """32768 values in one warp."""
    x = torch.zeros(1 << 15)
    _below_maximum[(1,)](x, x, SIZE=1 << 15, num_warps=1)


def crash() -> None:
    """Abort, as LLVM does on an internal error."""
    os.abort()
