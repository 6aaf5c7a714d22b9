"""MesaNet: at each token the weights that fit all tokens so far best, in the sense of a ridge."""

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays
from reference.delta.keys import normalized_keys
from reference.recurrence import recurrence
from reference.sequences import CuSeqlens


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, lamb: Tensor, g: Tensor, beta: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    K, o = q.shape[-1], []
    for t in range(q.shape[1]):
        write = torch.cat([k[:, t], v[:, t]], dim=-1)
        S = torch.exp(g[:, t])[..., None, None] * S
        S = S + beta[:, t, :, None, None] * k[:, t, :, :, None] * write[..., None, :]
        solution = _solve(S[..., :K] + torch.diag_embed(lamb), q[:, t, :, :, None])
        o.append((S[..., K:].mT @ solution)[..., 0])
    return torch.stack(o, dim=1) if o else v, S


def dual(
    q: Tensor, k: Tensor, v: Tensor, lamb: Tensor, g: Tensor, beta: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """A system for each token whose unknowns are tokens, and not channels of keys.

        w_ij = β_j exp(Σ_{j < t <= i} g_t)   for j <= i,    a_i = exp(Σ_{t <= i} g_t)
        R_i  = (Λ + a_i S_kk)⁻¹
        x_i  = R_i q_i - R_i K (I + W_i Kᵀ R_i K)⁻¹ W_i Kᵀ R_i q_i,    W_i = diag(w_i)

    with a key in each column of K, and
        o_i  = Σ_j w_ij (k_j · x_i) v_j + a_i S_kvᵀ x_i

    Source: Woodbury, Inverting Modified Matrices, Princeton Statistical Research Group, Memorandum
        42, 1950.
    """
    if q.shape[1] == 0:
        return v, S
    K, T = q.shape[-1], q.shape[1]
    from_start, between = decays(g)
    seen = torch.ones(T, T, dtype=q.dtype, device=q.device).tril()[..., None]
    w = (seen * between * beta[:, None]).permute(0, 3, 1, 2)
    a = from_start.transpose(1, 2)[..., None, None]
    keys, values = (x.transpose(1, 2)[:, :, None] for x in (k, v))

    carried = a * S[:, :, None]
    ridge = torch.diag_embed(lamb)[:, None] + carried[..., :K]
    RK = _solve(ridge, keys.mT.expand(*ridge.shape[:-1], T))
    Rq = _solve(ridge, q.transpose(1, 2)[..., None])
    inner = torch.eye(T, dtype=q.dtype, device=q.device) + w[..., None] * (keys @ RK)
    x = Rq - RK @ _solve(inner, w[..., None] * (keys @ Rq))
    o = (w[..., None] * (keys @ x)).mT @ values + x.mT @ carried[..., K:]
    written = torch.cat([k, v], dim=-1).transpose(1, 2)
    final = carried[:, :, -1] + (w[:, :, -1, :, None] * k.transpose(1, 2)).mT @ written
    return o[..., 0, :].transpose(1, 2), final


def _solve(A: Tensor, y: Tensor) -> Tensor:
    """A⁻¹ y. Narrower dtypes than float32 are computed in float32."""
    dtype = torch.promote_types(y.dtype, torch.float32)
    x: Tensor = torch.linalg.solve(A.to(dtype), y.to(dtype))
    return x.to(y.dtype)


@recurrence(recurrent, dual, around=normalized_keys, neutral={"g": 0.0, "beta": 1.0})
def mesa_net(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    lamb: Float[Tensor, "H K"],
    g: Float[Tensor, "B T H"] | None = None,
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Float[Tensor, "N H K K+V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: CuSeqlens | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K K+V"] | None]:
    """MesaNet's layer: a recurrence over tokens, and a system of equations at each.

        S_t^kk = exp(g_t) S_{t-1}^kk + β_t k_t k_tᵀ
        S_t^kv = exp(g_t) S_{t-1}^kv + β_t k_t v_tᵀ
        o_t    = (S_t^kv)ᵀ (S_t^kk + diag(λ))⁻¹ q_t                   (read after write)

    So o_t = Wᵀ q_t with the W that minimises Σ_i w_ti |v_i - Wᵀ k_i|² + Σ_k λ_k |W_k|², of tokens
    that fade as they age. The system is solved exactly; kernels take steps of conjugate gradients,
    which end at an error of their own. There is no scale.

    The state is S^kk and S^kv side by side. S^kk is symmetric, and for λ > 0 and β >= 0 the system
    has one solution.

    Args:
        lamb: λ, what is added to the diagonal of each head; meant to be > 0.
        g: Natural logarithm of the decay, meant to be <= 0, -inf included. None means no decay.
        beta: Strength of each write, meant to be >= 0. None means 1.
        initial_state: S^kk, meant to be symmetric and not negative, and S^kv. None means zero.

    Source: von Oswald et al., MesaNet, arXiv 2506.05233, section 3.
    """
