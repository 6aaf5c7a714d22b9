"""Conventions shared by PyTorch's attention functions that differ from the catalogue's."""

from dataclasses import replace

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.targets.bounds import changed_dims, fixed_dims

SCALE = "a scale of -1 is a number; the sentinel becomes None"
HEADS_FIRST = "tensors are [B, H, T, D]"
WINDOW = "a window counts the keys besides the query's own; W becomes W - 1 on each side"


ungrouped = fixed_dims(R=1)
at_least_16 = changed_dims("KV", lambda n: max(n, 16))
# Fused GPU kernels require it.
multiples_of_8 = changed_dims("KV", lambda n: -(-n // 8) * 8)
multiples_of_8_to_128 = changed_dims("KV", lambda n: min(-(-n // 8) * 8, 128))


def scale_of(scale: float | None) -> float | None:
    """Replace the sentinel; leave non-numbers to the library."""
    if scale is None or scale == -1:
        return None
    return float(scale) if isinstance(scale, (int, float)) else scale


def check_sizes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Reject sizes that the library would broadcast, as it documents.

    Raises:
        ValueError: ranks or batches differ, or keys and values do.
    """
    alike = q.dim() == k.dim() == v.dim() == 4 and len(q) == len(k) == len(v)
    if not alike or k.shape[:3] != v.shape[:3]:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v))
        raise ValueError(f"q, k, v: {shapes}, expected one batch, and a value for each key")


def dense_rows(x: Tensor) -> Tensor:
    """Copy rows to contiguous memory, on a GPU at multiples of 16 bytes.

    CPU kernels reject strides. GPU kernels reject some addresses, and for others return wrong
    numbers or kill the device, so no law can test those.
    """
    dense = x.stride(-1) == 1
    if x.is_cuda:
        bytes_apart = [x.itemsize * s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]
        dense &= not any(n % 16 for n in (x.data_ptr(), *bytes_apart[:-1]))
    return x if dense else x.clone(memory_format=torch.contiguous_format)


def with_dense_gradient(o: Tensor) -> Tensor:
    """`o` with a backward hook that passes the kernel a contiguous gradient, for the same
    reason.
    """
    return o * 1 if o.is_cuda else o


def at_least_2_tokens(case: Case) -> Case:
    keys = case.key_lengths and tuple(max(n, 2) for n in case.key_lengths)
    return replace(case, lengths=tuple(max(n, 2) for n in case.lengths), key_lengths=keys)


def added_in_dtype(case: Case) -> Case:
    """Drop what would be added to logits of 16 bits in float32: GPU kernels misread it."""
    given = tuple(n for n in case.given if n != "alibi_slopes" or case.dtype == "float32")
    return replace(case, given=given, float32=tuple(n for n in case.float32 if n != "bias"))


def square_if_causal(case: Case) -> Case:
    return replace(case, key_lengths=None) if case.options["causal"] else case
