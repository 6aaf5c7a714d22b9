"""Parallax: softmax attention with a first-order correction of its values."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.sequences import CuSeqlens
from reference.softmax.causal import causal, visible, weights


def _weights(q: Tensor, k: Tensor, scale: float, window: int | None) -> Tensor:
    s = scale * torch.einsum("bihk,bjhk->bhij", q, k)
    return weights(s, visible(q.shape[1], window, q.device))


def definition(
    q: Tensor, r: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
) -> Tensor:
    p = _weights(q, k, scale, window)
    x = torch.einsum("bihk,bjhk->bhij", r, k)
    mean = (p * x).sum(-1, keepdim=True)
    return torch.einsum("bhij,bjhv->bihv", p * (1 + mean - x), v)


def running(q: Tensor, r: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """One key after another, with running moments of what the weights select.

    l = Σ p,   a = Σ p v,   b = Σ p x,   c = Σ p x v        all shrink where the maximum grows
    o = a / l + (a b / l - c) / l
    """
    T = q.shape[1]
    m = torch.full_like(q[..., 0], -torch.inf)
    l, b = torch.zeros_like(m), torch.zeros_like(m)
    a, c = torch.zeros_like(v), torch.zeros_like(v)
    seen = visible(T, window, q.device)
    for j in range(T):
        s = scale * torch.einsum("bihk,bhk->bih", q, k[:, j])
        s = torch.where(seen[:, j, None], s, -torch.inf)
        x = torch.einsum("bihk,bhk->bih", r, k[:, j])
        top = torch.maximum(m, s.detach())
        base = torch.where(top == -torch.inf, 0.0, top)
        shrink, p = torch.exp(m - base), torch.exp(s - base)
        l, b = shrink * l + p, shrink * b + p * x
        a = shrink[..., None] * a + p[..., None] * v[:, None, j]
        c = shrink[..., None] * c + (p * x)[..., None] * v[:, None, j]
        m = top
    l, b = l[..., None], b[..., None]
    return a / l + (a * b / l - c) / l


@causal(definition, running, same_dtype=("q", "r", "k", "v"))
def parallax(
    q: Float[Tensor, "B T H K"],
    r: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    *,
    scale: float | None = None,
    window: int | None = None,
    cu_seqlens: CuSeqlens | None = None,
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
