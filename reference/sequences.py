"""Sequences of unequal length, packed one after another along the token axis.

A *dense* batch `[B, T, ...]` holds B sequences of T tokens. A *packed* batch `[1, T, ...]` holds N
sequences; sequence n is the tokens `cu_seqlens[n] <= t < cu_seqlens[n + 1]`. A sequence may be
empty: it has no rows, and its recurrent state passes through.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from jaxtyping import Int32, Int64
from torch import Tensor

# For the docstrings of ops.
BAD_BOUNDARIES = (
    "`cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not end at T"
)

CuSeqlens: TypeAlias = Int32[Tensor, "N+1"] | Int64[Tensor, "N+1"]


def check_cu_seqlens(
    cu_seqlens: Tensor, batch: int, tokens: int, name: str = "cu_seqlens"
) -> list[int]:
    """Check the boundaries of packed sequences, and return them as Python integers.

        0 = c_0 <= c_1 <= ... <= c_N = T,   N >= 1

    Args:
        cu_seqlens: `[N+1]` int32 or int64, in tokens.
        batch: B, the first size of the packed tensor.
        tokens: T, its second size.
        name: of the argument, for the message.

    Returns:
        The N+1 boundaries.

    Raises:
        ValueError: B is not 1, or the boundaries do not start at 0, decrease, do not end at T, or
            delimit no sequence at all.
    """
    if batch != 1:
        raise ValueError(f"{name}: given with B={batch}, expected B=1 when sequences are packed")
    boundaries: list[int] = cu_seqlens.tolist()
    if len(boundaries) < 2:
        raise ValueError(f"{name}: {boundaries}, expected at least two boundaries")
    if boundaries[0] != 0:
        raise ValueError(f"{name}: starts at {boundaries[0]}, expected 0")
    for n, (start, stop) in enumerate(pairwise(boundaries)):
        if stop < start:
            raise ValueError(
                f"{name}: decreases from {start} to {stop} at index {n + 1}, "
                "expected boundaries that never decrease"
            )
    if boundaries[-1] != tokens:
        raise ValueError(f"{name}: ends at {boundaries[-1]}, expected T={tokens}")
    return boundaries


def sequences(
    cu_seqlens: Tensor | None, batch: int, tokens: int, name: str = "cu_seqlens"
) -> Iterator[tuple[slice, slice]]:
    """Yield groups of sequences of one length as `(n, t)`, slices of axis N and axis T.

    A dense batch is one group; a packed batch is N groups of one sequence. In both
    `x[:, t]` is `[B', T', ...]` and `state[n]` is `[B', ...]`, so an op is written once, for a
    batch of sequences of one length.

    Args and Raises: as `check_cu_seqlens`; None means dense.
    """
    if cu_seqlens is None:
        yield slice(0, batch), slice(0, tokens)
        return
    boundaries = check_cu_seqlens(cu_seqlens, batch, tokens, name)
    for n, (start, stop) in enumerate(pairwise(boundaries)):
        yield slice(n, n + 1), slice(start, stop)
