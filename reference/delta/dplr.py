"""The general delta rule: the state is multiplied by a diagonal plus a matrix of rank one."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import checked
from reference.decay import decays
from reference.delta.run import run
from reference.delta.triangular import solve_unit_lower
from reference.sequences import CuSeqlens


@checked(same_dtype=("q", "k", "v", "a", "b"))
def dplr(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    a: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H K"],
    gk: Float[Tensor, "B T H K"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
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
        q: queries `[B, T, H, K]`.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q.
        a: what is read of the state `[B, T, H, K]`, in the dtype of q.
        b: where that is written `[B, T, H, K]`, in the dtype of q.
        gk: natural logarithm of the decay of each key channel `[B, T, H, K]`, any float dtype,
            meant to be <= 0, -inf included. None means no decay.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        initial_state: state before the first token `[N, H, K, V]`, any float dtype. None means
            zero.
        output_final_state: return the state after the last token as well.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]`, in the promoted dtype of the inputs; None unless
            `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v, a, b not of one dtype.
        ValueError: shapes that do not match; a scale that is NaN or infinite; `cu_seqlens` with
            B != 1, or that does not start at 0, decreases, or does not end at T.

    Source: Peng et al., RWKV-7, arXiv 2503.14456, table 1 ("generalized delta rule").
    """
    return run(
        _recurrence,
        q,
        k,
        v,
        a,
        b,
        gk,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def _recurrence(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    a: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H K"],
    gk: Float[Tensor, "B T H K"] | None,
    S: Float[Tensor, "B H K V"],
    scale: float,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    o = []
    for t in range(q.shape[1]):
        r = torch.einsum("bhk,bhkv->bhv", a[:, t], S)
        if gk is not None:
            S = torch.exp(gk[:, t, :, :, None]) * S
        S = S + torch.einsum("bhk,bhv->bhkv", b[:, t], r)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


@checked(same_dtype=("q", "k", "v", "a", "b"))
def dplr_parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    a: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H K"],
    gk: Float[Tensor, "B T H K"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The general delta rule, all tokens at once: what they read solves one triangular system.

        k_ij = exp(Σ_{j < t <= i} gk_t) ∘ k_j                     key j as it is after token i
        b_ij = exp(Σ_{j < t <= i} gk_t) ∘ b_j
        S_i0 = diag(exp Σ_{t <= i} gk_t) S_0
        (I - A) R = (S_{i-1,0}ᵀ a_i + Σ_{j < i} (a_i · k_{i-1,j}) v_j)_i,
                                                    A_ij = a_i · b_{i-1,j}  if j < i else 0
        o_i  = scale · (Σ_{j <= i} (q_i · k_ij) v_j + (q_i · b_ij) r_j + S_i0ᵀ q_i)
        S_T  = Σ_j (k_Tj v_jᵀ + b_Tj r_jᵀ) + S_T0

    where the rows of R are the r_t of `dplr`, of which everything else is said.

    Source: the construction of Yang et al., arXiv 2406.06484, section 3.2, for another transition.
    """
    return run(
        _parallel,
        q,
        k,
        v,
        a,
        b,
        gk,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def _parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    a: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H K"],
    gk: Float[Tensor, "B T H K"] | None,
    S: Float[Tensor, "B H K V"],
    scale: float,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(torch.zeros_like(k) if gk is None else gk)
    keys, removed, carried = (
        between * k[:, None],
        between * b[:, None],
        from_start[..., None] * S[:, None],
    )
    # What token i reads is as token i - 1 left it; what token 0 reads is S alone.
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
