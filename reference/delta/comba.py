"""Comba: a gated delta rule that is corrected by what another key finds before the decay."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.delta import dplr
from reference.norm.l2norm import l2norm
from reference.recurrence import DeltaOptions, Run, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(q.shape[1]):
        known = torch.einsum("bhk,bhkv->bhv", p[:, t], S)
        u = beta[:, t, :, None] * (v[:, t] - known)
        S = torch.exp(g[:, t, :, None, None]) * S + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, g: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The triangular system of `dplr.second_form` with a = p, b = -β k, and values β v.

    Source: Hu et al., arXiv 2506.02475, section 3 (scalar plus low rank).
    """
    taken, gk = beta[..., None] * k, g[..., None].expand_as(k)
    return dplr.parallel(q, k, beta[..., None] * v, p, -taken, gk, S, scale)


def _normalized(
    run: Run, *, q: Tensor, k: Tensor, p: Tensor, use_qk_l2norm_in_kernel: bool, **arguments: object
) -> tuple[Tensor, Tensor]:
    if use_qk_l2norm_in_kernel:
        q, k, p = l2norm(q), l2norm(k), l2norm(p)
    return run(q=q, k=k, p=p, **arguments)


@recurrence(
    recurrent,
    parallel,
    around=_normalized,
    same_dtype=("q", "k", "v", "p"),
    neutral={"g": 0.0, "beta": 1.0},
)
def comba(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    p: Float[Tensor, "B T G K"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[DeltaOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Comba's closed loop, as a recurrence over tokens.

        u_t = β_t (v_t - S_{t-1}ᵀ p_t)      the error of the state before it decays
        S_t = exp(g_t) S_{t-1} + k_t u_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    The correction of the output in the paper is a change of q, which the caller makes. Value head h
    reads head h // (H / G) of q, k and p.

    Stable where no transition exp(g_t) I - β_t k_t p_tᵀ makes a vector longer: for p_t = b k_t that
    is 0 <= b β_t |k_t|² <= 1 + exp(g_t). In the model p_t = b k_t with b in [0, 1].

    Args:
        p: The key by which the state is read.
        g: Natural logarithm of the decay, meant to be <= 0, -inf included. None means no decay.
        use_qk_l2norm_in_kernel: Run `reference.l2norm` on q, k and p first, with its default ε.

    Source: Hu et al., Comba: Improving Bilinear RNNs with Closed-loop Control, arXiv 2506.02475,
        section 3.
    """
