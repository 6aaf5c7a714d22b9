"""The delta rule whose transition is the identity plus a matrix of rank one."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.delta import dplr
from reference.recurrence import Options, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    eye, o = torch.eye(q.shape[-1], dtype=S.dtype, device=S.device), []
    for t in range(q.shape[1]):
        A = eye + b[:, t, :, :, None] * a[:, t, :, None, :]
        S = A @ S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The triangular system of `dplr.second_form`, whose decays are 1.

    Source: Yang et al., arXiv 2406.06484, section 3.2, for another transition.
    """
    return dplr.parallel(q, k, v, a, b, torch.zeros_like(k), S, scale)


@recurrence(recurrent, parallel, same_dtype=("q", "k", "v", "a", "b"))
def iplr(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    a: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H K"],
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """A linear attention with a transition that is the identity plus low rank (IPLR), over tokens.

        S_t = (I + b_t a_tᵀ) S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    It is `dplr` without decay. Stable for b_t = -β_t a_t with 0 <= β_t |a_t|² <= 2: then no
    transition makes a vector longer.

    Args:
        a: The key by which the state is read.
        b: The key under which that is written.

    Source: Yang et al., Parallelizing Linear Transformers with the Delta Rule, arXiv 2406.06484,
        section 6 (matrix states with a transition of the identity plus low rank).
    """
