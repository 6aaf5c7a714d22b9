"""Inputs as kernels address them: whole, or with dense rows; what lies otherwise is copied."""

from torch import Tensor


def contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Those without gaps, for kernels that take their sizes for their strides."""
    return tuple(None if x is None else x.contiguous() for x in tensors)


def dense_rows(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Those whose last dim is dense, for kernels that take any stride but that one."""
    return tuple(x if x is None or x.stride(-1) == 1 else x.contiguous() for x in tensors)
