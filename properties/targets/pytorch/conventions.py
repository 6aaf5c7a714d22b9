"""What PyTorch's kinds of attention have in common, and means otherwise than the catalogue."""

from dataclasses import replace

import torch
from torch import Tensor

from properties.case import Case

SCALE = "a scale of -1 is a number; the sentinel becomes None"
HEADS_FIRST = "tensors are [B, H, T, D]"
WINDOW = "a window counts the keys besides the query's own; W becomes W - 1 on each side"


def scale_of(scale: float | None) -> float | None:
    """The scale without its sentinel."""
    return None if scale is None or scale == -1 else float(scale)


def dense_rows(x: Tensor) -> Tensor:
    """The last dim without strides, which the fused kernels refuse."""
    return x if x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)


def visible(p: Tensor, j: Tensor, causal: bool, window: int | None) -> Tensor:
    """Whether a query at position p sees key j."""
    seen = j <= p if causal else j == j
    return seen if window is None else seen & ((p - j).abs() < window)


def equal_widths(case: Case) -> Case:
    return replace(case, dims={**case.dims, "V": case.dims["K"]})


def ungrouped(case: Case) -> Case:
    return replace(case, dims={**case.dims, "R": 1})


def multiples_of_8(case: Case) -> Case:
    """Head dims as the fused kernels for GPUs want them."""
    widths = {letter: -(-case.dims[letter] // 8) * 8 for letter in ("K", "V")}
    return replace(case, dims={**case.dims, **widths})


def at_most_128(case: Case) -> Case:
    widths = {letter: min(case.dims[letter], 128) for letter in ("K", "V")}
    return replace(case, dims={**case.dims, **widths})


def square_if_causal(case: Case) -> Case:
    return replace(case, key_lengths=None) if case.options["causal"] else case
