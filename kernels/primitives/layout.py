"""Inputs as kernels address them. A tensor with other strides is copied."""

import torch
from torch import Tensor


def contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return them without gaps, for kernels that compute strides from sizes."""
    return tuple(None if x is None else x.contiguous() for x in tensors)


def dense_rows(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return them with a dense last dim, for kernels that take the other strides."""
    return tuple(x if x is None or x.stride(-1) == 1 else x.contiguous() for x in tensors)


def outer_strides(*tensors: Tensor | None) -> list[int]:
    """Return the strides of their first three dims, as of `dense_rows [B, T, H, D]`, 0 for None."""
    return [step for x in tensors for step in ((0, 0, 0) if x is None else x.stride()[:3])]


def with_dense_gradient(x: Tensor) -> Tensor:
    """x without gaps, whose gradient comes without gaps too, as it passes a flat tensor.

    Where autograd sums in PyTorch, the order follows the strides of a gradient, which a caller
    chooses and a compiler changes.
    """
    return x.flatten().view(x.shape)


def widened(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return float16 tensors in float32, for a wrapper to compute with.

    The parts of a gradient may leave the range of float16 where their sum does not, and autograd
    rounds each to the dtype of what it is the gradient of.
    """
    return tuple(x.float() if x is not None and x.dtype == torch.float16 else x for x in tensors)
