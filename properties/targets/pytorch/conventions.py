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
    """The rows as fused kernels want them: without strides and, on a GPU, at multiples of 16 bytes.

    The kernels for CPUs refuse strides. Those for GPUs refuse some addresses, and answer others
    with wrong numbers or an error that takes the device with it, so no law can be about those.
    """
    dense = x.stride(-1) == 1
    if x.is_cuda:
        bytes_apart = [x.itemsize * s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]
        dense &= not any(n % 16 for n in (x.data_ptr(), *bytes_apart[:-1]))
    return x if dense else x.clone(memory_format=torch.contiguous_format)


def with_dense_gradient(o: Tensor) -> Tensor:
    """`o`, whose gradient comes to the kernel in memory of its own: the same is true of that."""
    return o * 1 if o.is_cuda else o


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


def at_least_16(case: Case) -> Case:
    widths = {letter: max(case.dims[letter], 16) for letter in ("K", "V")}
    return replace(case, dims={**case.dims, **widths})


def at_least_2_tokens(case: Case) -> Case:
    keys = case.key_lengths and tuple(max(n, 2) for n in case.key_lengths)
    return replace(case, lengths=tuple(max(n, 2) for n in case.lengths), key_lengths=keys)


def float32_slopes(case: Case) -> Case:
    given = tuple(n for n in case.given if n != "alibi_slopes" or case.dtype == "float32")
    return replace(case, given=given)


def square_if_causal(case: Case) -> Case:
    return replace(case, key_lengths=None) if case.options["causal"] else case
