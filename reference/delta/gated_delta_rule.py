"""The gated delta rule: a delta rule whose state forgets, all channels alike."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import checked
from reference.decay import decays
from reference.delta.run import prepared, run
from reference.delta.triangular import solve_unit_lower
from reference.sequences import CuSeqlens


@checked(same_dtype=("q", "k", "v"))
def gated_delta_rule(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The gated delta rule, as a recurrence over tokens.

        S' = exp(g_t) S_{t-1}
        u_t = β_t (v_t - S'ᵀ k_t)           what the state lacks, once it has decayed
        S_t = S' + k_t u_tᵀ                 = (I - β_t k_t k_tᵀ) S' + β_t k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Value head h, which has a state, a gate and a strength of its own, reads key head h // (H / G).

    Stable for g <= 0 and 0 <= β_t |k_t|² <= 2: the factor of S_{t-1} is then a symmetric matrix
    with eigenvalues exp(g_t) and exp(g_t) (1 - β_t |k_t|²) in [-1, 1], so that neither the state
    nor an error of it ever grows. For |k_t| = 1 that is β in [0, 2].

    Args:
        q: queries `[B, T, G, K]`.
        k: keys `[B, T, G, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q.
        g: natural logarithm of the decay `[B, T, H]`, any float dtype, meant to be <= 0, -inf
            included. None means no decay.
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

    Source: Yang et al., Gated Delta Networks, arXiv 2412.06464, section 3.1; Grazzi et al., arXiv
        2411.12537 (β up to 2).
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
    g: Float[Tensor, "B T H"] | None,
    beta: Float[Tensor, "B T H"],
    S: Float[Tensor, "B H K V"],
    scale: float,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    o = []
    for t in range(q.shape[1]):
        if g is not None:
            S = torch.exp(g[:, t, :, None, None]) * S
        known = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        u = beta[:, t, :, None] * (v[:, t] - known)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


@checked(same_dtype=("q", "k", "v"))
def gated_delta_rule_parallel(
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The gated delta rule, all tokens at once: what they write solves one triangular system.

        D_ij = exp(Σ_{j < t <= i} g_t)   if j <= i else 0
        d_i  = exp(Σ_{t <= i} g_t)
        (I + L) U = diag(β) (V - (d ∘ K) S_0),    L_ij = β_i D_ij k_i · k_j  if j < i else 0
        o         = scale · ((Q Kᵀ) ∘ D) U + scale · (d ∘ Q) S_0
        S_T       = d_T S_0 + (D_T ∘ K)ᵀ U

    where the rows of U are the u_t of `gated_delta_rule`, of which everything else is said.

    Source: Yang et al., arXiv 2412.06464, section 3.3 (with one chunk for all tokens).
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
    g: Float[Tensor, "B T H"] | None,
    beta: Float[Tensor, "B T H"],
    S: Float[Tensor, "B H K V"],
    scale: float,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    if q.shape[1] == 0:
        return v, S
    from_start, between = decays(torch.zeros_like(beta) if g is None else g)
    Q, K, V, d, strength = (
        x.transpose(1, 2) for x in (q, k, v, from_start[..., None], beta[..., None])
    )
    D = between.permute(0, 3, 1, 2).tril()
    L = strength * (D * (K @ K.mT)).tril(-1)
    U = solve_unit_lower(L, strength * (V - (d * K) @ S))
    o = (D * (Q @ K.mT)) @ U + (d * Q) @ S
    last = D[:, :, -1, :, None]
    return scale * o.transpose(1, 2), d[:, :, -1:] * S + (last * K).mT @ U
