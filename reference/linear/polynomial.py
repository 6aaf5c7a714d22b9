"""Linear attention with a polynomial of the product: Based and ReBased."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import StatelessOptions
from reference.stateless import stateless

_BASED_EPS, _REBASED_EPS = 1e-6, 1e-5


def _weighted(w: Tensor, v: Tensor, normalize: bool, eps: float) -> Tensor:
    w = w.tril()
    o = torch.einsum("bhij,bjhv->bihv", w, v)
    return o / (w.sum(-1).transpose(1, 2)[..., None] + eps) if normalize else o


def taylor(q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool) -> Tensor:
    s = scale * torch.einsum("bihk,bjhk->bhij", q, k)
    return _weighted(1 + s + s * s / 2, v, normalize, _BASED_EPS)


def moments(q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool) -> Tensor:
    """A recurrence whose states are the moments of the keys.

        S0 += v_t,   S1 += k_t v_tᵀ,   S2 += (k_t ⊗ k_t) v_tᵀ
        o_t = S0 + scale S1ᵀ q_t + scale² S2ᵀ (q_t ⊗ q_t) / 2

    A value more, which is 1, carries the sum of the weights.
    """
    v = torch.nn.functional.pad(v, (0, 1), value=1.0)
    o = _squares(q, k, v, scale) / 2 + v.cumsum(1)
    o = o + scale * torch.einsum("bthk,bthkv->bthv", q, _running(k, v))
    return o[..., :-1] / (o[..., -1:] + _BASED_EPS) if normalize else o[..., :-1]


def _running(k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bthk,bthv->bthkv", k, v).cumsum(1)


def _squares(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    pairs = torch.einsum("bthk,bthl->bthkl", k, k).flatten(3)
    read = torch.einsum("bthk,bthl->bthkl", q, q).flatten(3)
    return scale * scale * torch.einsum("bthk,bthkv->bthv", read, _running(pairs, v))


@stateless(taylor, moments)
def based(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    normalize: bool = True,
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Linear attention with the Taylor polynomial of the exponential.

        s_ij = scale · q_i · k_j
        w_ij = 1 + s_ij + s_ij² / 2                    for j <= i; at least 1/2
        o_i  = Σ_j w_ij v_j / (Σ_j w_ij + 1e-6)        without `normalize`: Σ_j w_ij v_j

    Args:
        normalize: Divide by the sum of the weights.

    Returns:
        o: In the dtype of q.

    Source: Arora et al., Simple linear attention language models balance the recall-throughput
        tradeoff, arXiv 2402.18668, section 4.1.
    """


def squared(q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool) -> Tensor:
    s = scale * torch.einsum("bihk,bjhk->bhij", q, k)
    return _weighted(s * s, v, normalize, _REBASED_EPS)


def second_moments(q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool) -> Tensor:
    """A recurrence whose state is the second moment of the keys.

        S += (k_t ⊗ k_t) v_tᵀ,   o_t = scale² Sᵀ (q_t ⊗ q_t)

    A value more, which is 1, carries the sum of the weights.
    """
    o = _squares(q, k, torch.nn.functional.pad(v, (0, 1), value=1.0), scale)
    return o[..., :-1] / (o[..., -1:] + _REBASED_EPS) if normalize else o[..., :-1]


@stateless(squared, second_moments)
def rebased(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    normalize: bool = True,
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Linear attention with the square of the product.

        w_ij = (scale · q_i · k_j)²                    for j <= i
        o_i  = Σ_j w_ij v_j / (Σ_j w_ij + 1e-5)        without `normalize`: Σ_j w_ij v_j

    The affine maps of q and k in the paper come before it.

    Args:
        normalize: Divide by the sum of the weights.

    Returns:
        o: In the dtype of q.

    Source: Aksenov et al., Linear Transformers with Learnable Kernel Functions are Better
        In-Context Models, arXiv 2402.10644, section 4.
    """
