"""The selection of the best blocks by their scores, with its rule for ties.

A score of -inf is never selected, and a score of inf always, if there is room. Of equal scores the
one with the lower index wins; -0.0 and 0.0 are equal.
"""

import math

import torch
from torch import Tensor


def top_k_indices(scores: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest scores, best first, in a stable sort.

    Args:
        scores: `[..., M]`.
        k: at least 1.

    Returns:
        int64 `[..., min(k, M)]`; -1 in the slots that are left where fewer than k are selected.

    Source: DeepSeek-V3.2, arXiv 2512.02556, section 2.1, equation 2 (top-k). The rule for ties is a
        convention of this project.
    """
    # Adding 0.0 turns -0.0 into 0.0, so that a sort by bits orders them by index, too.
    sorted_scores, order = (scores + 0.0).sort(dim=-1, descending=True, stable=True)
    return torch.where(sorted_scores == -math.inf, -1, order)[..., :k]


def top_k_by_rank(scores: Tensor, k: int) -> Tensor:
    """Select by counting: the rank of a score is the number of scores that beat it."""
    M = scores.shape[-1]
    n = torch.arange(M, device=scores.device)
    mine, other = scores[..., :, None], scores[..., None, :]
    beaten = (other > mine) | ((other == mine) & (n < n[:, None]))
    rank = beaten.sum(-1)
    slots = torch.arange(min(k, M), device=scores.device)
    there = (rank[..., None, :] == slots[:, None]) & (scores > -math.inf)[..., None, :]
    return torch.where(there, n + 1, 0).sum(-1) - 1


def chosen(indices: Tensor, among: int) -> Tensor:
    """Return which of `among` numbers are in the last dim of `indices`, as bool `[..., among]`."""
    return (indices[..., None] == torch.arange(among, device=indices.device)).any(-2)
