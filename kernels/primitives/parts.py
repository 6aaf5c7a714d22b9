"""Sums over dims that are cut among programs: each writes its part, and the parts are added here.

`Tensor.sum` would not do: the order in which it adds may depend on where an element lies, and then
exchanging two heads changes the last bit of their results.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

_BLOCK = 1024


@triton.jit(do_not_specialize=["size", "parts"])
def _add(parts_ptr, total_ptr, size, parts, BLOCK: tl.constexpr):
    cells = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = cells < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(parts):
        total += tl.load(parts_ptr + cells, mask=inside, other=0.0)
        parts_ptr += size  # a product of part and size could pass 2^31
    tl.store(total_ptr + cells, total, mask=inside)


def empty_parts(
    parts: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "parts *shape"]:
    """Room for the parts of a result of that shape and dtype: float32, unless there is one only."""
    return torch.empty(parts, *shape, dtype=dtype if parts == 1 else torch.float32, device=device)


def add_parts(parts: Float[Tensor, "parts *shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """The sum of what `empty_parts` made room for, first to last in float32, rounded once."""
    if parts.shape[0] == 1:
        return parts[0]
    total = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    size = total.numel()
    _add[(triton.cdiv(size, _BLOCK),)](parts, total, size, parts.shape[0], BLOCK=_BLOCK)
    return total
