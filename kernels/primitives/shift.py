"""The token before, and the last token, of each sequence of a batch."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def of_the_token_before(
    x: Float[Tensor, "B T *D"],
    cu_seqlens: Int[Tensor, " N+1"] | None,
    start: Float[Tensor, "N *D"] | float = 0.0,
) -> Float[Tensor, "B T *D"]:
    """Shift x by one token; the first of each sequence gets what it has in `start`."""
    if x.shape[1] == 0:
        return x
    nothing = [0, 0] * (x.dim() - 2)
    late = torch.nn.functional.pad(x[:, :-1], (*nothing, 1, 0))
    t = torch.arange(x.shape[1], device=x.device)
    if cu_seqlens is None:
        first = t[None] == 0
        start = start[:, None] if isinstance(start, Tensor) else start
    else:
        first = torch.isin(t, cu_seqlens[:-1])[None]
        if isinstance(start, Tensor):
            sequence = torch.bucketize(t, cu_seqlens[1:], right=True)
            start = start[None, sequence.clamp(max=len(start) - 1)]
    return torch.where(first.view(1, -1, *[1] * (x.dim() - 2)), start, late).to(x.dtype)


def last_tokens(
    tensors: Sequence[Float[Tensor, "B T ..."]], cu_seqlens: Int[Tensor, " N+1"] | None
) -> tuple[list[Float[Tensor, "N ..."]], Bool[Tensor, " N"]]:
    """Return the last token of each sequence in float32, 0 for an empty one, and which are empty.

    T is not 0.
    """
    if cu_seqlens is None:
        some = torch.zeros(len(tensors[0]), dtype=torch.bool, device=tensors[0].device)
        return [x[:, -1].float() for x in tensors], some
    last, empty = (cu_seqlens[1:] - 1).clamp(min=0), cu_seqlens.diff() == 0
    # An empty sequence reads a token of another one, which may be NaN.
    found = (x[0].index_select(0, last).float() for x in tensors)
    return [torch.where(empty.view(-1, *[1] * (x.dim() - 1)), 0.0, x) for x in found], empty
