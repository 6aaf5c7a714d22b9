"""Keys that a group of heads shares: a copy for each head, and their gradients added up again."""

import torch
from jaxtyping import Float
from torch import Tensor


def of_each_head(x: Float[Tensor, "B T G K"], heads: int) -> Float[Tensor, "B T H K"]:
    """Head h gets what its group h // (H / G) has; x itself where a group is one head."""
    groups = x.shape[2]
    return x if groups == heads else x.repeat_interleave(heads // groups, dim=2)


def keys_gradient_dtype(x: Float[Tensor, "B T G K"], heads: int) -> torch.dtype:
    """The dtype of a head's gradient of x: float32 where heads share x.

    The sum over a group is rounded once then, and a head's share of it may be too large for
    float16 where the sum is not.
    """
    return x.dtype if x.shape[2] == heads else torch.float32


def of_each_group(dx: Float[Tensor, "B T H K"], groups: int) -> Float[Tensor, "B T G K"]:
    """Sum the gradients of the copies that `of_each_head` makes, in their dtype."""
    return dx if dx.shape[2] == groups else dx.unflatten(2, (groups, -1)).sum(3)
