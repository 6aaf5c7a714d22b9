"""RWKV-7: a delta rule whose decay and strength are vectors, and that removes along another key."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import StateOptions, recurrence


def recurrent(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(r.shape[1]):
        n = torch.einsum("bhk,bhkv->bhv", kk[:, t], S)
        S = torch.exp(w[:, t, :, :, None]) * S
        S = S - torch.einsum("bhk,bhv->bhkv", a[:, t] * kk[:, t], n)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", r[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def unrolled(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """No recurrence: the transitions from each key to token t, multiplied.

        G_t   = diag(exp w_t) - kk_tᵀ (a_t ∘ kk_t)
        wkv_t = wkv_0 G_1 G_2 ... G_t + Σ_{i <= t} v_iᵀ k_i G_{i+1} G_{i+2} ... G_t
        o_t   = scale · r_t wkv_tᵀ

    with rows for vectors, as in the paper: wkv_t is V by K, the transpose of S_t.

    Source: Peng et al., RWKV-7, arXiv 2503.14456, equation 18.
    """
    r, k, v = (x.transpose(1, 2) for x in (r, k, v))
    G = torch.diag_embed(torch.exp(w)) - kk[..., :, None] * (a * kk)[..., None, :]
    from_start = torch.eye(r.shape[-1], dtype=S.dtype, device=S.device)
    keys = k[:, :, :0]
    o = [v[:, :, :0]]
    for t in range(r.shape[2]):
        from_start = from_start @ G[:, t]
        keys = torch.cat([keys @ G[:, t], k[:, :, t : t + 1]], dim=2)
        wkv = S.mT @ from_start + v[:, :, : t + 1].mT @ keys
        o.append(scale * r[:, :, t : t + 1] @ wkv.mT)
    final = S.mT @ from_start + v.mT @ keys
    return torch.cat(o, dim=2).transpose(1, 2), final.mT


@recurrence(recurrent, unrolled, same_dtype=("r", "k", "v", "kk", "a"))
def rwkv7(
    r: Float[Tensor, "B T H K"],
    w: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    kk: Float[Tensor, "B T H K"],
    a: Float[Tensor, "B T H K"],
    *,
    scale: float | None = 1.0,
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The weighted key values of RWKV-7, as a recurrence over tokens.

        n_t = S_{t-1}ᵀ kk_t                 what the removal key finds, before the state decays
        S_t = diag(exp w_t) S_{t-1} - (a_t ∘ kk_t) n_tᵀ + k_t v_tᵀ
        o_t = scale · S_tᵀ r_t              (read after write)

    It is `dplr` with q = r, gk = w, a = -kk and b = a ∘ kk.

    In the model |kk_t| = 1, a is in [0, 1] and exp w in [exp(-exp(-1/2)), 1], and the eigenvalues
    of A_t = diag(exp w_t) - (a_t ∘ kk_t) kk_tᵀ lie in [-1, 1]. Where all channels of a_t are equal,
    A_t is symmetric and the rule is stable: neither the state nor an error of it ever grows. Where
    they differ, A_t may make a vector longer, by at most 2 / √3 if w = 0. Random keys shrink the
    state all the same, but not all keys do: (1, √5) / √6 and (√5, 1) / √6 in turn, with a = (1, 0)
    and (0, 1), make it grow by 5/4 every two tokens.

    Args:
        r: Receptance, which reads.
        w: Natural logarithm of the decay of each key channel, meant to be <= 0, -inf included.
        k: Replacement keys.
        kk: Removal keys, meant to have the length 1.
        a: In-context learning rate of each key channel, meant to be in [0, 1].
        scale: Factor of `r · k`, by default 1. None and -1 mean `K ** -0.5`, any other finite
            number itself.

    Returns:
        final_state: In the promoted dtype of the inputs; None unless `output_final_state`. The
            paper's state is its transpose.

    Source: Peng et al., RWKV-7, arXiv 2503.14456, equations 16, 17 and 21 (without norm and bonus),
        and appendix C (eigenvalues).
    """
