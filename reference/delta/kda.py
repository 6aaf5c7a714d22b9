"""Kimi delta attention: a delta rule whose state forgets, channel by channel."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import checked
from reference.decay import decays
from reference.delta.run import prepared, run
from reference.delta.triangular import solve_unit_lower
from reference.sequences import CuSeqlens


@checked(same_dtype=("q", "k", "v"))
def kda(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Kimi delta attention, as a recurrence over tokens.

        S' = diag(exp g_t) S_{t-1}
        u_t = β_t (v_t - S'ᵀ k_t)           what the state lacks, once it has decayed
        S_t = S' + k_t u_tᵀ                 = (I - β_t k_t k_tᵀ) S' + β_t k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Value head h, which has a state, gates and a strength of its own, reads key head h // (H / G).

    Stable for g <= 0 and 0 <= β_t |k_t|² <= 2: neither diag(exp g_t) nor I - β_t k_t k_tᵀ makes a
    vector longer then, so that neither the state nor an error of it ever grows. For |k_t| = 1 that
    is β in [0, 2].

    Args:
        q: queries `[B, T, G, K]`.
        k: keys `[B, T, G, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q.
        g: natural logarithm of the decay of each key channel `[B, T, H, K]`, any float dtype,
            meant to be <= 0, -inf included. None means no decay.
        beta: strength of each write `[B, T, H]`, any float dtype, meant to be in [0, 2]. None
            means 1.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        use_qk_l2norm_in_kernel: run `reference.l2norm` on q and k first, with its default ε; then
            every β in [0, 2] is stable.
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
        TypeError: an argument of a wrong type or dtype; q, k, v not of one dtype.
        ValueError: shapes that do not match; H not a multiple of G; a scale that is NaN or
            infinite; `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not
            end at T.

    Source: Kimi Team, Kimi Linear, arXiv 2510.26692, equation 1.
    """
    q, k, beta = prepared(q, k, v, beta, use_qk_l2norm_in_kernel)
    return run(
        _recurrence,
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def _recurrence(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None,
    beta: Float[Tensor, "B T H"],
    S: Float[Tensor, "B H K V"],
    scale: float,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    o = []
    for t in range(q.shape[1]):
        if g is not None:
            S = torch.exp(g[:, t, :, :, None]) * S
        known = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        u = beta[:, t, :, None] * (v[:, t] - known)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


@checked(same_dtype=("q", "k", "v"))
def kda_parallel(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Kimi delta attention, all tokens at once: what they write solves one triangular system.

        k_ij = exp(Σ_{j < t <= i} g_t) ∘ k_j                      key j as token i finds it
        S_i0 = diag(exp Σ_{t <= i} g_t) S_0
        (I + L) U = diag(β) (v_i - S_i0ᵀ k_i)_i,    L_ij = β_i k_i · k_ij  if j < i else 0
        o_i       = scale · (Σ_{j <= i} (q_i · k_ij) u_j + S_i0ᵀ q_i)
        S_T       = Σ_j k_Tj u_jᵀ + S_T0

    where the rows of U are the u_t of `kda`, of which everything else is said.

    Source: Kimi Team, arXiv 2510.26692, section 3.1 (with one chunk for all tokens, and without its
        division of cumulative products).
    """
    q, k, beta = prepared(q, k, v, beta, use_qk_l2norm_in_kernel)
    return run(
        _parallel,
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def _parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None,
    beta: Float[Tensor, "B T H"],
    S: Float[Tensor, "B H K V"],
    scale: float,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(torch.zeros_like(k) if g is None else g)
    keys, carried = between * k[:, None], from_start[..., None] * S[:, None]
    strength = beta.transpose(1, 2)[..., None]

    lacking = v - torch.einsum("bihk,bihkv->bihv", k, carried)
    L = strength * torch.einsum("bihk,bijhk->bhij", k, keys).tril(-1)
    U = solve_unit_lower(L, strength * lacking.transpose(1, 2))
    weights = torch.einsum("bihk,bijhk->bhij", q, keys).tril()
    o = (weights @ U).transpose(1, 2) + torch.einsum("bihk,bihkv->bihv", q, carried)
    return scale * o, carried[:, -1] + torch.einsum("bjhk,bhjv->bhkv", keys[:, -1], U)
