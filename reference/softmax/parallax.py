"""Parallax: softmax attention with a first-order correction of its values."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import StatelessOptions
from reference.softmax.causal import visible, weights
from reference.stateless import stateless


def _products(q: Tensor, k: Tensor) -> Tensor:
    """q_i · k_j as a matrix product, which rounds its operands also where K is 1."""
    return q.transpose(1, 2) @ k.permute(0, 2, 3, 1)


def definition(
    q: Tensor, r: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
) -> Tensor:
    p = weights(scale * _products(q, k), visible(q.shape[1], window, q.device))
    x = _products(r, k)
    mean = (p * x).sum(-1, keepdim=True)
    return torch.einsum("bhij,bjhv->bihv", p * (1 + mean - x), v)


def moments(q: Tensor, r: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """Four moments of the keys, each a sum over them, as kernels keep them.

    l = Σ p,   a = Σ p v,   b = Σ p x,   c = Σ p x v        with weights p that are not normalized
    o = a / l + (a b / l - c) / l
    """
    s = scale * _products(q, k)
    s = torch.where(visible(q.shape[1], window, q.device), s, -torch.inf)
    p = torch.exp(s - s.detach().logsumexp(-1, keepdim=True))
    px = p * _products(r, k)
    l, b = (y.sum(-1).transpose(1, 2)[..., None] for y in (p, px))
    a, c = ((y @ v.transpose(1, 2)).transpose(1, 2) for y in (p, px))
    return a / l + (a * b / l - c) / l


@stateless(definition, moments, same_dtype=("q", "r", "k", "v"))
def parallax(
    q: Float[Tensor, "B T H K"],
    r: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    *,
    window: int | None = None,
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Softmax attention, minus the covariance of its values with `r · k`.

        p_ij = softmax_j(scale · q_i · k_j)      over   0 <= i - j < W  (window)
        x_ij = r_i · k_j                         not scaled
        o_i  = Σ_j p_ij (1 + Σ_l p_il x_il - x_ij) v_j

    Query head h reads kv head h // (H / G).

    Args:
        r: Directions of the correction; 0 means none.

    Returns:
        o: In the dtype of q.

    Source: Parallax: Parameterized Local Linear Attention, arXiv 2605.29157, algorithm 1.
    """
