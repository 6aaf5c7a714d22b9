"""Addresses past 2^31 elements: new tokens and pages, with a huge stride along each dim.

The strides fit into 32 bits, but their products with an index do not. All tensors of a call
interleave in one of 4 GiB and touch few of its pages.
"""

import os

import pytest
import torch
from torch import Tensor

from kernels.cache import pages

COUNT = 3
STRIDE = 2**30 + 64
DIMS = {"sequences or pages": 0, "tokens": 1, "heads": 2, "dims": 3}


@pytest.fixture(scope="module")
def memory() -> Tensor:
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 2**33:
        pytest.skip("few pages are touched, but a machine of less than 8 GB may refuse the memory")
    return torch.empty((COUNT - 1) * STRIDE + 2**16, dtype=torch.bfloat16)


def stretched(x: Tensor, axis: int, memory: Tensor, place: int) -> Tensor:
    """`x` with `STRIDE` along one dim, starting at `place`."""
    strides = list(x.select(axis, 0).contiguous().stride())
    strides.insert(axis, STRIDE)
    return memory.as_strided(x.shape, strides, place).copy_(x)


@pytest.mark.parametrize("along", DIMS)
@pytest.mark.parametrize("ring", [False, True])
def test_offsets_of_tokens_and_pages_are_64_bits_wide(
    along: str, ring: bool, device: torch.device, memory: Tensor
) -> None:
    memory = memory.to(device)
    near = [
        torch.randint(-128, 128, (COUNT,) * 4, generator=torch.Generator().manual_seed(seed))
        .bfloat16()
        .to(device)
        for seed in range(4)
    ]
    far = [stretched(x, DIMS[along], memory, 100 * n) for n, x in enumerate(near)]
    table = torch.tensor([[2], [0], [1]], dtype=torch.int32, device=device)
    first, length, offset = torch.tensor([[0, 0, 1], [0, 1, 2], [3, 2, 1]], device=device)
    bounds = torch.tensor([0, 3, 6, 8], dtype=torch.int32, device=device)
    results = []
    for k, v, k_pages, v_pages in (near, far):
        pages.append(k, v, k_pages, v_pages, table, length, offset, ring)
        gathered = pages.gather(k, v, k_pages, v_pages, table, first, length, bounds, 8, 3, ring)
        results.append((*gathered, k_pages, v_pages))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
