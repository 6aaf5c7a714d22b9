"""Keys that a group of heads shares, and what costs nothing where no heads share any."""

import torch

from kernels.primitives.groups import keys_gradient_dtype, of_each_group, of_each_head


def test_heads_of_a_group_lie_side_by_side() -> None:
    x = torch.arange(2 * 4 * 2 * 3).view(2, 4, 2, 3)
    copies = of_each_head(x, 4)
    assert torch.equal(copies, x[:, :, [0, 0, 1, 1]])
    assert torch.equal(of_each_group(copies, 2), 2 * x)
    # There are as many tokens as heads.
    assert keys_gradient_dtype(x.half(), 4) == torch.float32


def test_a_head_of_its_own_is_not_copied() -> None:
    x = torch.zeros(2, 5, 4, 3, dtype=torch.float16)
    assert of_each_head(x, 4) is x
    assert of_each_group(x, 4) is x
    assert keys_gradient_dtype(x, 4) == torch.float16
