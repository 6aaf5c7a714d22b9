"""Sums over dims that are cut among programs: each writes its part, and the parts are added here.

`Tensor.sum` would not do: the order in which it adds may depend on where an element lies, and then
exchanging two heads changes the last bit of their results.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from kernels.tiles import cdiv


@triton.jit(do_not_specialize=["size", "parts"])
def _add(parts_ptr, total_ptr, size, parts, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr):
    """Sum `parts [parts, size]` to `total [size]`, AT_ONCE parts at a time."""
    cells = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.arange(0, AT_ONCE)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, parts, AT_ONCE):
        inside = (start + rows < parts)[:, None] & (cells < size)[None, :]
        here = (start + rows).to(tl.int64)[:, None] * size + cells[None, :]
        total += tl.sum(tl.load(parts_ptr + here, mask=inside, other=0.0), 0)
    tl.store(total_ptr + cells, total, mask=cells < size)


def empty_parts(
    parts: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "parts *shape"]:
    """Room for the parts of a result of that shape and dtype: float32, unless there is one only."""
    return torch.empty(parts, *shape, dtype=dtype if parts == 1 else torch.float32, device=device)


def add_parts(parts: Float[Tensor, "parts *shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """The sum of what `empty_parts` made room for: float32, one order for all, rounded once."""
    count = parts.shape[0]
    if count == 1:
        return parts[0]
    if parts.dtype != torch.float32:
        raise TypeError(f"parts: {parts.dtype}, expected torch.float32 where there are {count}")
    total = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    size = total.numel()
    # Many parts are those of a small tensor: one at a time, few programs would wait for each.
    block, at_once = (1024, 1) if count < 16 else (64, 64)
    _add[(cdiv(size, block),)](parts, total, size, count, BLOCK=block, AT_ONCE=at_once)
    return total
