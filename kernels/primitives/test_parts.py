"""Sums of parts, one at a time and many at once."""

import pytest
import torch

from kernels.primitives.parts import add_parts, empty_parts


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 100])
@pytest.mark.parametrize("shape", [(1,), (3, 5, 7), (1100,)])
def test_integers_are_added_exactly(count: int, shape: tuple[int, ...]) -> None:
    parts = empty_parts(count, shape, torch.float32, torch.device("cpu"))
    parts.copy_(torch.randint(-9, 10, parts.shape))
    assert torch.equal(add_parts(parts, torch.float32), parts.sum(0))


def test_a_single_part_is_not_copied() -> None:
    parts = empty_parts(1, (3, 5), torch.bfloat16, torch.device("cpu"))
    assert parts.dtype == torch.bfloat16
    assert add_parts(parts, torch.bfloat16).data_ptr() == parts.data_ptr()


@pytest.mark.parametrize("count", [15, 100])
def test_equal_columns_have_equal_sums(count: int) -> None:
    column = torch.randn(count, 1, generator=torch.Generator().manual_seed(0))
    total = add_parts(column.repeat(1, 130), torch.float32)
    assert (total == total[0]).all()


def test_the_sum_is_rounded_once() -> None:
    parts = torch.tensor([[256.0], [1.0], [1.0]])
    assert add_parts(parts, torch.bfloat16).tolist() == [258.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parts_that_are_rounded_already_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"parts: .*16, expected torch.float32 where there are 2"):
        add_parts(torch.ones(2, 3, dtype=dtype), dtype)
