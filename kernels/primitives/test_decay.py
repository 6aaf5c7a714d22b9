"""Decays from log decays: how far off they may be, for inputs of each dtype and gates of each."""

import math

import pytest
import torch
import triton
import triton.language as tl

from kernels.primitives.decay import (
    decay,
    decay_of_chunk,
    head_decay,
    pair_decay,
    sum_columns,
    sum_gradients,
)

C, K = 32, 16
# Inputs and gates.
DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float32),
    (torch.float16, torch.float16),
]


@triton.jit
def _of_channels(out, whole, mask, g, inputs, C: tl.constexpr, K: tl.constexpr):
    DTYPE: tl.constexpr = inputs.dtype.element_ty
    rows, keys = tl.arange(0, C)[:, None], tl.arange(0, K)
    selected = tl.load(mask + rows * C + tl.arange(0, C)[None, :]) != 0
    x = tl.load(g + rows * K + keys[None, :])
    tl.store(out + rows * K + keys[None, :], decay(selected, x, DTYPE))
    tl.store(whole + keys, decay_of_chunk(x, DTYPE))


@triton.jit
def _of_heads(out, pairs, g, inputs, SIDE: tl.constexpr, C: tl.constexpr):
    DTYPE: tl.constexpr = inputs.dtype.element_ty
    rows = tl.arange(0, C)
    x = tl.load(g + rows)
    tl.store(out + rows, head_decay(SIDE, x, DTYPE))
    cells = rows[:, None] * C + rows[None, :]
    tl.store(pairs + cells, pair_decay(SIDE, x, C, DTYPE))


@triton.jit
def _sum(out, mask, x, inputs, C: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr):
    rows, keys = tl.arange(0, C)[:, None], tl.arange(0, K)[None, :]
    selected = tl.load(mask + rows * C + tl.arange(0, C)[None, :]) != 0
    if COLUMNS:
        tl.store(out + tl.arange(0, C), sum_columns(selected, tl.load(x + tl.arange(0, C))))
    else:
        total = sum_gradients(selected, tl.load(x + rows * K + keys), inputs.dtype.element_ty)
        tl.store(out + rows * K + keys, total)


def _expect(
    got: torch.Tensor, exponents: torch.Tensor, inputs: torch.dtype, bits: int = 24
) -> None:
    """A relative error of some units for float32. For 16 bits of 2^-15, gates being summed in
    float32, and of what gates lose that are added up with so many bits."""
    want = exponents.exp()
    error = (got.cpu().double() - want).abs() / want
    bound = 2.0**-21 if inputs == torch.float32 else 2.0**-15 - exponents * 2.0 ** (-bits - 1)
    alive = exponents > -80
    assert alive.any()
    assert (error / bound)[alive].max() <= 1
    assert got.cpu()[exponents < -110].count_nonzero() == 0


@pytest.mark.parametrize("strength", [0.01, 3.0, 40.0])
@pytest.mark.parametrize(("inputs", "gates"), DTYPES, ids=str)
def test_decays_of_channels_keep_the_digits_of_their_inputs(
    inputs: torch.dtype, gates: torch.dtype, strength: float, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(0)
    g = (-strength * torch.rand(C, K, generator=generator)).to(gates)
    # Some rows select few gates, one none.
    mask = (torch.rand(C, C, generator=generator) < torch.linspace(0, 1, C)[:, None]).int()
    out, whole = torch.empty(C, K, device=device), torch.empty(K, device=device)
    of = torch.empty(0, dtype=inputs, device=device)
    _of_channels[(1,)](out, whole, mask.to(device), g.to(device), of, C, K)
    # Of a product of matrices in bfloat16.
    bits = 16 if (inputs, gates) == (torch.bfloat16, torch.float32) else 24
    _expect(out, mask.double() @ g.double(), inputs, bits)
    if strength < 40:
        _expect(whole, g.double().sum(0), inputs)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("strength", [0.01, 3.0, 40.0])
@pytest.mark.parametrize(("inputs", "gates"), DTYPES, ids=str)
def test_decays_of_heads_keep_the_digits_of_their_inputs(
    inputs: torch.dtype, gates: torch.dtype, strength: float, side: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(0)
    size = 64
    g = (-strength * torch.rand(size, generator=generator)).to(gates)
    out, pairs = torch.empty(size, device=device), torch.empty(size, size, device=device)
    of = torch.empty(0, dtype=inputs, device=device)
    _of_heads[(1,)](out, pairs, g.to(device), of, side, size)
    sums = g.double().cumsum(0)
    later = sums[-1] - sums if side else sums
    _expect(out, later, inputs)
    # From the earlier of a pair to the later.
    between = sums[:, None] - sums
    between = -between.triu(1) if side else between.tril(-1)
    _expect(pairs, between, inputs)
    if inputs != torch.float32 and strength < 1:
        # Gates are rounded and not cut off, which would sum up to half a unit of each.
        error = (pairs.cpu().double().log() - between) * math.log2(math.e)
        assert error.abs().max() <= size / 4 * 2.0**-17


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_gates_are_summed_in_float32(dtype: torch.dtype, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    # Of 16 bits for inputs that have fewer; a sum of 32 is exact in float32.
    most = 2**19 if dtype == torch.float32 else 2**15
    x = torch.randint(-most, most, (C, K), generator=generator).float()
    mask = torch.randint(0, 2, (C, C), generator=generator)
    of, out = torch.empty(0, dtype=dtype, device=device), torch.empty(C, K, device=device)
    _sum[(1,)](out, mask.to(device), x.to(device), of, C, K, False)
    assert torch.equal(out.cpu().double(), mask.double() @ x.double())
    column = torch.empty(C, device=device)
    _sum[(1,)](column, mask.to(device), x[:, 0].contiguous().to(device), of, C, K, True)
    assert torch.equal(column.cpu().double(), mask.double() @ x[:, 0].double())
