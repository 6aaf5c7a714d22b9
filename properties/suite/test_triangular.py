"""The triangular systems of the delta rules: a law on the accuracy of their inverses.

With L = I + A and X the computed inverse, substitution row by row is off by no more than

    |X - L⁻¹| <= c · n · u · |L⁻¹| |L| |L⁻¹|        element by element

whatever A is, and so is the inverse in blocks here. Products of powers of A are not: where keys
repeat, powers grow as binomials do.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 14.2.1.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import math

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from kernels.primitives.triangular import inverse_unit_lower
from properties.laws import Subject

UNIT = 2.0**-24


@triton.jit
def _in_blocks(A_ptr, inverse_ptr, inputs, C: tl.constexpr):
    cells = tl.program_id(0) * C * C + tl.arange(0, C)[:, None] * C + tl.arange(0, C)[None, :]
    inverse = inverse_unit_lower(tl.load(A_ptr + cells), C, inputs.dtype.element_ty)
    tl.store(inverse_ptr + cells, inverse)


@triton.jit
def _by_doubling(A_ptr, inverse_ptr, inputs, C: tl.constexpr):
    """`(I - A)(I + A²)(I + A⁴)···`, which the law must reject."""
    rows = tl.arange(0, C)
    cells = tl.program_id(0) * C * C + rows[:, None] * C + rows[None, :]
    ones = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    power = tl.load(A_ptr + cells)
    inverse = ones - power
    done = 2
    while done < C:
        power = tl.dot(power, power, input_precision="ieee")
        inverse = tl.dot(inverse, ones + power, input_precision="ieee")
        done *= 2
    tl.store(inverse_ptr + cells, inverse)


def _systems(kind: str, tokens: int, beta: float, length: float, seed: int) -> Tensor:
    """`A_ij = β k_i · k_j` below the diagonal, `[3, C, C]`, for keys of one kind."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(3, tokens, 8, generator=generator, dtype=torch.float64)
    if kind == "repeated":
        keys = keys[:, :1].expand_as(keys)
    elif kind == "nearly parallel":
        keys = keys[:, :1] + 1e-3 * keys
    elif kind == "in turn":
        keys = keys[:, torch.arange(tokens) % 2]
    keys = length * torch.nn.functional.normalize(keys, dim=-1)
    return (beta * keys @ keys.mT).tril(-1).float()


def _inverted(A: Tensor) -> tuple[Tensor, Tensor]:
    one = torch.eye(A.shape[1], dtype=torch.float64)
    L = one + A.double()
    return L, torch.linalg.solve_triangular(L, one, upper=False)


def _excess(
    kernel: triton.JITFunction,
    A: Tensor,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> float:
    """The largest error over its bound, for inputs of this dtype."""
    count, tokens, _ = A.shape
    got = torch.empty(A.shape, device=device)
    kernel[(count,)](A.to(device), got, torch.empty(0, dtype=dtype, device=device), C=tokens)
    L, want = _inverted(A)
    unit = 2 * tokens * UNIT
    if dtype != torch.float32:
        # Two products at each block size, whose two operands keep 16 bits.
        unit += 4 * math.log2(tokens) * 2.0**-17
    bound = unit * want.abs() @ L.abs() @ want.abs()
    excess = (got.cpu().double() - want).abs() / bound.clamp(min=2.0**-126)
    return float(excess.max())


KINDS = ["independent", "repeated", "nearly parallel", "in turn"]


@given(
    kind=st.sampled_from(KINDS),
    tokens=st.sampled_from([16, 32, 64]),
    beta=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    # Keys of length 3 leave the delta rule's stable domain; the inverse is as accurate there.
    length=st.sampled_from([0.1, 1.0, 3.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**16),
)
def test_an_inverse_is_as_accurate_as_one_by_substitution(
    kind: str,
    tokens: int,
    beta: float,
    length: float,
    dtype: torch.dtype,
    seed: int,
    subject: Subject,
) -> None:
    A = _systems(kind, tokens, beta, length, seed)
    L, inverse = _inverted(A)
    # If terms overflow float32, products spread the NaN.
    assume((L.abs() @ inverse.abs()).max() < torch.finfo(torch.float32).max)
    assert _excess(_in_blocks, A, subject.device, dtype) <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_joined_blocks_of_an_inverse_keep_16_bits(dtype: torch.dtype, subject: Subject) -> None:
    """17² = 289, an element of the inverse of the rows below, which is added to -288 beside it."""
    A = torch.zeros(1, 16, 16)
    A[0, 5, 4] = A[0, 6, 5] = 17
    A[0, 4, 0], A[0, 6, 0] = 1, -288
    got = torch.empty(A.shape, device=subject.device)
    _in_blocks[(1,)](A.to(got), got, torch.empty(0, dtype=dtype, device=got.device), C=16)
    assert torch.equal(got.cpu().double(), _inverted(A)[1])


@pytest.mark.parametrize("kind", ["repeated", "nearly parallel"])
def test_products_of_powers_break_the_law(kind: str, subject: Subject) -> None:
    A = _systems(kind, tokens=32, beta=0.9, length=1.0, seed=0)
    assert _excess(_by_doubling, A, subject.device) > 100
