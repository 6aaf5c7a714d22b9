"""Checks of a cache's arguments: how many tokens are new or kept, and which sequences go on."""

import torch
from torch import Tensor

from kernels.arguments import describe


def token_counts(name: str, count: int | Tensor, batch: int) -> list[int]:
    """A number of tokens for each of `batch` sequences, from one int for all or Int[B].

    Reading a tensor on a GPU waits for it; an int, or a tensor on the host, does not.

    Raises:
        TypeError: neither an int nor an int32 or int64 tensor.
        ValueError: another shape than [B], or a negative number.
    """
    if isinstance(count, Tensor) and count.dtype in (torch.int32, torch.int64):
        if count.shape != (batch,):
            raise ValueError(f"{name}: {describe(count)}, expected [{batch}]")
        counts = count.tolist()
    elif isinstance(count, int) and not isinstance(count, bool):
        counts = [count] * batch
    else:
        raise TypeError(f"{name}: {describe(count)}, expected an int or an int32 or int64 tensor")
    if min(counts) < 0:
        raise ValueError(f"{name}: {min(counts)}, expected a number of tokens >= 0")
    return counts


def sequence_indices(index: Tensor, batch: int) -> list[int]:
    """The sequences that an `index` Int[M] names, in its order.

    Raises:
        TypeError: not an int32 or int64 tensor.
        ValueError: empty, not one-dimensional, or an entry outside [0, batch).
    """
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"index: {describe(index)}, expected an int32 or int64 tensor [M]")
    if index.dim() != 1 or len(index) == 0:
        raise ValueError(f"index: {describe(index)}, expected [M] with M >= 1")
    indices = index.tolist()
    for n in indices:
        if not 0 <= n < batch:
            raise ValueError(f"index: {n}, expected a sequence in [0, {batch})")
    return indices
