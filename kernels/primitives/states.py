"""States that a call has or has not: a kernel is told so when it runs, and masks what it reads and
writes of them. A constant for each would be another kernel to compile, four for two states.

`linear.parallel` and `conv.short_conv` have constants: there a state decides how much is computed.
"""

import torch
from torch import Tensor


def optional(state: Tensor | None, like: Tensor) -> tuple[Tensor, bool]:
    """The two arguments that stand for it: float32 memory, and whether there is any."""
    if state is None:
        return like.new_empty(0, dtype=torch.float32), False
    return state.contiguous(), True
