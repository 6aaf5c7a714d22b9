"""Gated DeltaNet-2: a delta rule that erases and writes with gates of its own for each channel."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.delta import dplr
from reference.delta.keys import normalized_keys
from reference.recurrence import DeltaOptions, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, erase: Tensor, write: Tensor, S: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    o = []
    for t in range(q.shape[1]):
        S = torch.exp(g[:, t, :, :, None]) * S
        known = torch.einsum("bhk,bhkv->bhv", erase[:, t] * k[:, t], S)
        u = write[:, t] * v[:, t] - known
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, erase: Tensor, write: Tensor, S: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The triangular system of `dplr.second_form`, with e_i = erase_i ∘ k_i for the key that reads.

        a_i = exp(g_i) ∘ e_i,    b_i = -k_i,    values write_i ∘ v_i

    Source: the construction of Yang et al., arXiv 2406.06484, section 3.2, for another transition.
    """
    return dplr.parallel(q, k, write * v, torch.exp(g) * erase * k, -k, g, S, scale)


@recurrence(
    recurrent,
    parallel,
    around=normalized_keys,
    neutral={"g": 0.0, "erase": 1.0, "write": 1.0},
)
def gdn2(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    erase: Float[Tensor, "B T H K"] | None = None,
    write: Float[Tensor, "B T H V"] | None = None,
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Gated DeltaNet-2, as a recurrence over tokens.

        S' = diag(exp g_t) S_{t-1}
        S_t = S' - k_t (S'ᵀ (erase_t ∘ k_t))ᵀ + k_t (write_t ∘ v_t)ᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    With erase_t = write_t = β_t in all channels it is `kda`. It is stable as `kda` is where all
    channels of erase_t are equal. Where they differ, I - k_t (erase_t ∘ k_t)ᵀ is not symmetric: its
    eigenvalue of 1 - k_t · (erase_t ∘ k_t) lies in [0, 1] for erase_t in [0, 1] and |k_t| <= 1, but
    it may make a vector longer, and a product of such matrices too.

    Args:
        g: Natural logarithm of the decay of each key channel, meant to be <= 0, -inf included. None
            means no decay.
        erase: How much of each key channel is read and removed, meant to be in [0, 1]. None means
            1.
        write: How much of each value channel is written, meant to be in [0, 1]. None means 1.

    Source: Hatamizadeh et al., Gated DeltaNet-2, arXiv 2605.22791, whose b_t is erase_t and w_t
        write_t.
    """
