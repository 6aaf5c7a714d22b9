"""Products of inputs and of what was computed, to as many bits as they promise."""

from itertools import product as each_of

import pytest
import torch
import triton
import triton.language as tl

from kernels.primitives.product import product, select_and_sum

SIZE = 32


@triton.jit
def _multiply(
    c, a, b, dtype_of, FINE_A: tl.constexpr, FINE_B: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    cells = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x, y = tl.load(a + cells), tl.load(b + cells)
    DTYPE: tl.constexpr = dtype_of.dtype.element_ty
    tl.store(c + cells, product(x, y, DTYPE, FINE_A=FINE_A, FINE_B=FINE_B))


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WIDE = 2.0**18


@pytest.mark.parametrize(("fine_a", "fine_b"), list(each_of((False, True), repeat=2)))
@pytest.mark.parametrize(("computed_a", "computed_b"), list(each_of((False, True), repeat=2)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_keeps_the_bits_of_its_operands(
    dtype: torch.dtype,
    computed_a: bool,
    computed_b: bool,
    fine_a: bool,
    fine_b: bool,
    device: torch.device,
) -> None:
    """All of an input's and of float32's, else 8 of what was computed, or 16 where it is fine or
    inputs have more than 8; and the range of float32."""
    generator = torch.Generator().manual_seed(0)

    def draw(computed: bool) -> torch.Tensor:
        x = torch.randn(SIZE, SIZE, generator=generator)
        # Two inputs of a product in float16, the largest that there is among them.
        return _WIDE * x if computed else torch.where(x > 2, 65504.0, x).to(dtype)

    a, b = draw(computed_a), draw(computed_b)
    c = torch.empty(SIZE, SIZE, device=device)
    of = torch.empty(0, dtype=dtype, device=device)
    _multiply[(1,)](c, a.to(device), b.to(device), of, fine_a, fine_b, SIZE)
    error = (c.cpu().double() - a.double() @ b.double()).abs()
    size = a.double().abs() @ b.double().abs()

    def bits(computed: bool, fine: bool) -> int:
        """The bits of an operand that a product keeps."""
        if dtype == torch.float32 or not (computed_a or computed_b):
            return 24
        if dtype == torch.bfloat16:
            return (16 if fine else 8) if computed else 24
        return 16

    unit = 2.0 ** -bits(computed_a, fine_a) + 2.0 ** -bits(computed_b, fine_b)
    # What is left out of two split operands is the product of their rests; sums are of float32.
    assert (error <= size * (unit + 2.0**-16 * (unit > 2.0**-22) + SIZE * 2.0**-24)).all()


@triton.jit
def _select(out, mask, x, PIECES: tl.constexpr, SIZE: tl.constexpr):
    cells = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    selected = tl.load(mask + cells) != 0
    tl.store(out + cells, select_and_sum(selected, tl.load(x + cells), PIECES))


@pytest.mark.parametrize(
    ("dtype", "pieces", "bits"),
    [
        (torch.float32, 0, 24),
        (torch.float32, 2, 16),
        (torch.float32, 3, 24),
        (torch.float16, 2, 11),
        (torch.bfloat16, 1, 8),
    ],
)
def test_sums_of_pieces_are_exact_as_far_as_pieces_go(
    dtype: torch.dtype, pieces: int, bits: int, device: torch.device
) -> None:
    """Whole numbers of so many bits, of which a sum of 32 is exact in float32."""
    generator = torch.Generator().manual_seed(0)
    most = min(2**bits, 2**19)
    x = torch.randint(-most + 1, most, (SIZE, SIZE), generator=generator).to(dtype)
    if dtype == torch.float16:
        x[::7] = 65504  # its first piece is 65536
    mask = torch.randint(0, 2, (SIZE, SIZE), generator=generator)
    out = torch.empty(SIZE, SIZE, device=device)
    _select[(1,)](out, mask.to(device), x.to(device), pieces, SIZE)
    assert torch.equal(out.cpu().double(), mask.double() @ x.double())
