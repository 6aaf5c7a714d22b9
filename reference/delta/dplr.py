"""The general delta rule: the state is multiplied by a diagonal plus a matrix of rank one."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.delta.triangular import solve_unit_lower
from reference.recurrence import Options, recurrence


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, gk: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    o = []
    for t in range(q.shape[1]):
        r = torch.einsum("bhk,bhkv->bhv", a[:, t], S)
        S = torch.exp(gk[:, t, :, :, None]) * S
        S = S + torch.einsum("bhk,bhv->bhkv", b[:, t], r)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


def parallel(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, gk: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """All tokens at once: the reads R solve one triangular system.

        k_ij = exp(Σ_{j < t <= i} gk_t) ∘ k_j                     key j as it is after token i
        b_ij = exp(Σ_{j < t <= i} gk_t) ∘ b_j
        S_i0 = diag(exp Σ_{t <= i} gk_t) S_0
        (I - A) R = (S_{i-1,0}ᵀ a_i + Σ_{j < i} (a_i · k_{i-1,j}) v_j)_i,
                                                    A_ij = a_i · b_{i-1,j}  if j < i else 0
        o_i  = scale · (Σ_{j <= i} (q_i · k_ij) v_j + (q_i · b_ij) r_j + S_i0ᵀ q_i)
        S_T  = Σ_j (k_Tj v_jᵀ + b_Tj r_jᵀ) + S_T0

    The rows of R are the r_t of the recurrence.

    Source: the construction of Yang et al., arXiv 2406.06484, section 3.2, for another transition.
    """
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(gk)
    keys, removed, carried = (
        between * k[:, None],
        between * b[:, None],
        from_start[..., None] * S[:, None],
    )
    # Token i reads the state that token i - 1 left; token 0 reads S.
    a_k = _pairs(a[:, 1:], keys[:, :-1]).tril()
    a_b = _pairs(a[:, 1:], removed[:, :-1]).tril()
    found = torch.einsum("bihk,bihkv->bhiv", a, torch.cat([S[:, None], carried[:, :-1]], 1))
    V = v.transpose(1, 2)

    shift = (0, 0, 1, 0)
    R = solve_unit_lower(
        -torch.nn.functional.pad(a_b, shift), found + torch.nn.functional.pad(a_k, shift) @ V
    )
    o = _pairs(q, keys).tril() @ V + _pairs(q, removed).tril() @ R
    o = o.transpose(1, 2) + torch.einsum("bihk,bihkv->bihv", q, carried)
    written = torch.einsum("bjhk,bjhv->bhkv", keys[:, -1], v)
    written = written + torch.einsum("bjhk,bhjv->bhkv", removed[:, -1], R)
    return scale * o, carried[:, -1] + written


def _pairs(x: Float[Tensor, "B I H K"], y: Float[Tensor, "B I J H K"]) -> Float[Tensor, "B H I J"]:
    return torch.einsum("bihk,bijhk->bhij", x, y)


@recurrence(recurrent, parallel, same_dtype=("q", "k", "v", "a", "b"), neutral={"gk": 0.0})
def dplr(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    a: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H K"],
    gk: Float[Tensor, "B T H K"] | None = None,
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """A linear attention with a transition that is diagonal plus low rank (DPLR), over tokens.

        r_t = S_{t-1}ᵀ a_t                  what is read, before the state decays
        S_t = diag(exp gk_t) S_{t-1} + b_t r_tᵀ + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    so that S_{t-1} is multiplied by A_t = diag(exp gk_t) + b_t a_tᵀ.

    Stable where no A_t makes a vector longer. For gk <= 0 that is so if
    |a_t| |b_t| <= 1 - max exp(gk_t), and also if a_t = exp(gk_t) ∘ c_t and b_t = -β_t c_t with
    0 <= β_t |c_t|² <= 2 for some c_t, which is the transition of `kda`. It is not enough that the
    eigenvalues of each A_t lie in [-1, 1]: A_t is not symmetric, and products of such matrices may
    grow.

    Args:
        a: The key by which the state is read.
        b: The key under which that is written.
        gk: Natural logarithm of the decay of each key channel, meant to be <= 0, -inf included.
            None means no decay.

    Source: Peng et al., RWKV-7, arXiv 2503.14456, table 1 ("generalized delta rule").
    """
