"""The token before, and the last token, of each sequence of a batch."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def of_the_token_before(
    x: Float[Tensor, "B T *D"], cu_seqlens: Int[Tensor, " N+1"] | None
) -> Float[Tensor, "B T *D"]:
    """Shift x by one token; the first of each sequence gets 0."""
    nothing = [0, 0] * (x.dim() - 2)
    late = torch.nn.functional.pad(x[:, :-1], (*nothing, 1, 0)) if x.shape[1] else x
    if cu_seqlens is None:
        return late
    first = torch.isin(torch.arange(x.shape[1], device=x.device), cu_seqlens[:-1])
    return torch.where(first.view(1, -1, *[1] * (x.dim() - 2)), 0.0, late).to(x.dtype)


def last_tokens(
    tensors: Sequence[Float[Tensor, "B T *D"]], cu_seqlens: Int[Tensor, " N+1"] | None
) -> tuple[list[Float[Tensor, "N *D"]], Bool[Tensor, " N"]]:
    """The last token of each sequence in float32, and whether there is none; T is not 0."""
    if cu_seqlens is None:
        some = torch.zeros(len(tensors[0]), dtype=torch.bool, device=tensors[0].device)
        return [x[:, -1].float() for x in tensors], some
    last = (cu_seqlens[1:].long() - 1).clamp(min=0)
    return [x[0].index_select(0, last).float() for x in tensors], cu_seqlens.diff() == 0
