"""The delta rule: a linear attention that writes what its state did not yet say of a key."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.arguments import checked
from reference.delta.run import prepared, run
from reference.delta.triangular import solve_unit_lower
from reference.sequences import CuSeqlens


@checked(same_dtype=("q", "k", "v"))
def delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The delta rule, as a recurrence over tokens.

        u_t = β_t (v_t - S_{t-1}ᵀ k_t)      what the state lacks
        S_t = S_{t-1} + k_t u_tᵀ            = (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Stable for 0 <= β_t |k_t|² <= 2: the matrix I - β_t k_t k_tᵀ has the eigenvalues 1 and
    1 - β_t |k_t|², so that neither the state nor an error of it ever grows. For |k_t| = 1 that is
    β in [0, 2]: 0 writes nothing, 1 replaces what k_t stood for, 2 reflects it. Outside, whatever
    lies along k_t grows by |1 - β_t |k_t|²| at each such token; the rule is as well defined, but
    its results soon are infinite.

    Args:
        q: queries `[B, T, H, K]`.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q.
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
        ValueError: shapes that do not match; a scale that is NaN or infinite; `cu_seqlens` with
            B != 1, or that does not start at 0, decreases, or does not end at T.

    Source: Schlag et al., Linear Transformers Are Secretly Fast Weight Programmers, arXiv
        2102.11174, equation 23; Yang et al., arXiv 2406.06484, section 2.2, and section 3.3 (the
        eigenvalues).
    """
    q, k, beta = prepared(q, k, v, beta, use_qk_l2norm_in_kernel)
    return run(
        _recurrence,
        q,
        k,
        v,
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
    beta: Float[Tensor, "B T H"],
    S: Float[Tensor, "B H K V"],
    scale: float,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    o = []
    for t in range(q.shape[1]):
        known = torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        u = beta[:, t, :, None] * (v[:, t] - known)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        o.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(o, dim=1) if o else v, S


@checked(same_dtype=("q", "k", "v"))
def delta_rule_parallel(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The delta rule, all tokens at once: what they write solves one triangular system.

        S_i       = S_0 + Σ_{j <= i} k_j u_jᵀ
        (I + L) U = diag(β) (V - K S_0),    L_ij = β_i k_i · k_j  if j < i else 0
        o         = scale · ((Q Kᵀ) ∘ M) U + scale · Q S_0,    M_ij = 1 if j <= i else 0
        S_T       = S_0 + Kᵀ U

    where the rows of U are the u_t of `delta_rule`, of which everything else is said.

    Source: Yang et al., arXiv 2406.06484, section 3.2 (with one chunk for all tokens).
    """
    q, k, beta = prepared(q, k, v, beta, use_qk_l2norm_in_kernel)
    return run(
        _parallel,
        q,
        k,
        v,
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
    beta: Float[Tensor, "B T H"],
    S: Float[Tensor, "B H K V"],
    scale: float,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    Q, K, V, strength = (x.transpose(1, 2) for x in (q, k, v, beta[..., None]))
    L = strength * (K @ K.mT).tril(-1)
    U = solve_unit_lower(L, strength * (V - K @ S))
    o = (Q @ K.mT).tril() @ U + Q @ S
    return scale * o.transpose(1, 2), S + K.mT @ U
