"""Pages that lie far apart, and calls that a case cannot state."""

import math
import os
from typing import Any

import pytest
import torch

import kernels
import reference
from kernels import tiles
from properties.laws import Subject

STRIDE = 2**30 + 64


def test_pages_are_addressed_in_64_bits(subject: Subject) -> None:
    """The stride fits into 32 bits, its product with the last page does not."""
    size = 2 * STRIDE + 2**10
    if subject.device.type == "cpu" and os.sysconf("SC_PHYS_PAGES") * 4096 < 4 * size:
        pytest.skip("few pages are touched, but a machine of less than 8 GB may refuse the memory")
    memory = torch.empty(size, dtype=torch.bfloat16, device=subject.device)
    q, k, v = (torch.randn(3, 4, 1, 8, generator=torch.manual_seed(n)) for n in range(3))
    pages = [
        memory.as_strided(x.shape, (STRIDE, 8, 8, 1), place).copy_(x)
        for x, place in ((k, 0), (v, 64))
    ]
    q = q.bfloat16()[:1].to(subject.device)
    table = torch.tensor([[2, 0]], device=subject.device)
    length = torch.tensor([7], device=subject.device)
    k, v = pages
    o, _ = kernels.paged_attention(q, k, v, table, length)
    k, v = (x.contiguous().double() for x in pages)
    want, _ = reference.paged_attention(q.double(), k, v, table, length)
    # A weight and a sum are rounded to bfloat16, and so is the output: half an ulp each.
    bound = 3 * 2**-9 * float(v.abs().max())
    torch.testing.assert_close(o.double(), want, rtol=0, atol=bound)


@pytest.mark.parametrize("size", [16, 64])
def test_more_splits_than_tiles_leave_empty_parts(size: int, subject: Subject) -> None:
    """A sequence without keys has nothing but empty parts."""
    q, k = torch.randn(3, 1, 2, 8), torch.randn(4, size, 1, 8)
    table, lengths = torch.tensor([[0, 1], [2, 3], [1, 0]]), torch.tensor([size + 1, 0, 2 * size])
    given = [x.to(subject.device) for x in (q, k, k, table, lengths)]
    want = kernels.paged_attention(*given, return_lse=True)
    # Sums of 2 * size terms in another order, as the error budgets grant them.
    bound = 4 * math.sqrt(2 * size) * 2**-24 * float(k.abs().max())
    for splits in (2, 3, 100):
        got = kernels.paged_attention(*given, num_splits=splits, return_lse=True)
        assert got[1] is not None
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=bound)
        assert (got[1][1] == -torch.inf).all()
        assert (got[0][1] == 0).all()


@pytest.mark.parametrize("latent", [32, 192, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_may_be_the_first_columns_of_the_keys(
    dtype: torch.dtype, latent: int, subject: Subject
) -> None:
    """Latent attention in its absorbed form reads one memory as both, with every tile."""
    dim, arch = latent + 64, tiles.architecture(subject.device)
    q, pages = torch.randn(2, 3, 4, dim), torch.randn(4, 5, 1, dim)
    table, lengths = torch.tensor([[3, 0], [1, 2]]), torch.tensor([7, 10])
    q, pages = (x.to(subject.device, dtype) for x in (q, pages))
    given = [x.to(subject.device) for x in (table, lengths)]
    entries = tiles.TABLE["paged_attention", "fused"]
    for tile in (n for n, entry in enumerate(entries) if entry.admits(dim, dtype, arch)):
        options: Any = {"causal": True, "num_splits": 2, "tile": tile}
        o, _ = kernels.paged_attention(q, pages, pages[..., :latent], *given, **options)
        want, _ = kernels.paged_attention(q, pages, pages[..., :latent].clone(), *given, **options)
        assert torch.equal(o, want)
