"""Sums of turns, of a ring or of a pair of channels: modulo whole turns, and without rounding."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.arguments import check_boundaries
from kernels.differentiable import differentiable, like_the_first
from kernels.sums.cumsum import cumsum

# Turns are summed as integers, this many to a whole turn: a float32 sum of hundreds of turns has
# lost the last digits of its angle. 2^23 tokens of up to half a turn fit in 64 bits.
_PARTS = 2**40


def _forward(*, turns: Tensor, period: float, cu_seqlens: Tensor | None) -> list[Tensor | None]:
    check_boundaries("cu_seqlens", cu_seqlens, turns.shape[1])
    turns = turns.contiguous()
    finite = turns.isfinite()
    exact = torch.where(finite, turns, 0.0).double()
    rest = exact - period * (exact / period).round()
    parts = (rest / period * _PARTS).round().long()
    sums = parts.cumsum(1)
    if cu_seqlens is not None:
        t = torch.arange(turns.shape[1], device=turns.device)
        first = cu_seqlens[torch.bucketize(t, cu_seqlens[1:], right=True)]
        sums = sums - (sums - parts)[:, first]
    below = (sums + _PARTS // 2) % _PARTS - _PARTS // 2
    return [torch.where(finite, (period / _PARTS * below.double()).float(), torch.nan)]


def _backward(
    *, turns: Tensor, period: float, cu_seqlens: Tensor | None, d0: Tensor
) -> list[Tensor | None]:
    return [cumsum(d0, reverse=True, cu_seqlens=cu_seqlens)]


_sums = differentiable("sums_of_turns", _forward, _backward, like_the_first, outputs=1)


def sums_of_turns(
    turns: Float[Tensor, "B T D"], period: float, cu_seqlens: Int[Tensor, " N+1"] | None
) -> Float[Tensor, "B T D"]:
    """Sum what tokens turn by, up to and with each token of a sequence.

    Args:
        turns: float32, in the unit of `period`.
        period: a whole turn.
        cu_seqlens: the boundaries of packed sequences, which are checked here.

    Returns:
        float32 in [-period / 2, period / 2]: however long a sequence is, its sums have the errors
        of what each token turns by, and no others.
    """
    found: Tensor = _sums(turns=turns, period=float(period), cu_seqlens=cu_seqlens)
    return found
