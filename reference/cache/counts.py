"""Checks of a cache's arguments: sizes, counts of new or kept tokens, and sequences that go on."""

import torch
from jaxtyping import Int
from torch import Tensor

from reference.arguments import describe


def check_size(name: str, size: int, least: int = 1) -> int:
    """Refuse anything but an int of at least `least`."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{name}: {describe(size)}, expected an int")
    if size < least:
        raise ValueError(f"{name}: {size}, expected at least {least}")
    return size


def token_counts(name: str, count: int | Int[Tensor, " B"], batch: int) -> list[int]:
    """A number of tokens for each of `batch` sequences, from one int for all or one each.

    Raises:
        TypeError: neither an int nor an int32 or int64 tensor.
        ValueError: another shape than [B], or a negative number.
    """
    if isinstance(count, Tensor):
        if count.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name}: {count.dtype}, expected an int or an int32 or int64 tensor")
        if count.shape != (batch,):
            raise ValueError(f"{name}: shape {list(count.shape)}, expected [{batch}]")
        counts = [int(c) for c in count.tolist()]
    elif isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{name}: {describe(count)}, expected an int or an integer tensor")
    else:
        counts = [count] * batch
    if min(counts) < 0:
        raise ValueError(f"{name}: {min(counts)}, expected a number of tokens >= 0")
    return counts


def sequence_indices(index: Int[Tensor, " M"], batch: int) -> list[int]:
    """The sequences that an `index` names, in its order.

    Raises:
        TypeError: not an int32 or int64 tensor.
        ValueError: empty, not one-dimensional, or an entry outside [0, batch).
    """
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"index: {describe(index)}, expected an int32 or int64 tensor [M]")
    if index.dim() != 1 or len(index) == 0:
        raise ValueError(f"index: shape {list(index.shape)}, expected [M] with M >= 1")
    indices = [int(n) for n in index.tolist()]
    for n in indices:
        if not 0 <= n < batch:
            raise ValueError(f"index: {n}, expected a sequence in [0, {batch})")
    return indices
