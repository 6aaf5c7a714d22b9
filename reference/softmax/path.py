"""PaTH attention: keys are reflected on their way to the query."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import sums_between
from reference.recurrence import StatelessOptions
from reference.softmax.causal import visible, weights
from reference.stateless import stateless


def definition(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor | None, scale: float
) -> Tensor:
    T = q.shape[1]
    x, columns = q, []
    for j in reversed(range(T)):
        # Query i >= j after the reflections of tokens i, i-1, ..., j+1.
        columns.append(torch.einsum("bihk,bhk->bhi", x, k[:, j]))
        reflected = x[:, j:] - torch.einsum(
            "bh,bhk,bih->bihk",
            beta[:, j],
            w[:, j],
            torch.einsum("bihk,bhk->bih", x[:, j:], w[:, j]),
        )
        x = torch.cat([x[:, :j], reflected], dim=1)
    s = torch.stack(columns[::-1], dim=-1) if columns else q.new_zeros(len(q), q.shape[2], 0, 0)
    return _attend(scale * s, v, g)


def solved(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor | None, scale: float
) -> Tensor:
    """All reflections at once, in the representation of Woodbury and Young.

        C = (I + diag(β) tril₋₁(W Wᵀ))⁻¹ diag(β) tril₋₁(W Kᵀ)
        S = tril(Q Kᵀ) - tril(Q Wᵀ) C

    Source: Yang et al., arXiv 2505.16381, section 3.2.
    """
    W = w.transpose(1, 2)
    Q, K = q.transpose(1, 2), k.transpose(1, 2)
    strength = beta.transpose(1, 2)[..., None]
    unit = torch.eye(q.shape[1], dtype=q.dtype, device=q.device)
    system = unit + strength * (W @ W.mT).tril(-1)
    C = torch.linalg.solve_triangular(
        system, strength * (W @ K.mT).tril(-1), upper=False, unitriangular=True
    )
    return _attend(scale * ((Q @ K.mT).tril() - (Q @ W.mT).tril() @ C), v, g)


def _attend(s: Tensor, v: Tensor, g: Tensor | None) -> Tensor:
    if g is not None:
        s = s + sums_between(g).permute(0, 3, 1, 2)
    p = weights(s, visible(v.shape[1], None, v.device))
    return torch.einsum("bhij,bjhv->bihv", p, v)


@stateless(definition, solved)
def path_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    w: Float[Tensor, "B T G K"],
    beta: Float[Tensor, "B T G"],
    g: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Attention whose positions are products of Householder-like matrices.

        H_t  = I - β_t w_t w_tᵀ
        s_ij = scale · q_iᵀ H_i H_{i-1} ... H_{j+1} k_j + Σ_{j < t <= i} g_t        for j <= i
        o_i  = Σ_j softmax_j(s_ij) v_j

    Query head h reads head h // (H / G) of k, v, w and β.

    Args:
        w: Directions of the reflections, meant to be of length 1.
        beta: Strength of each reflection, meant to be in [0, 2].
        g: Natural logarithm of the decay at each token, meant to be <= 0, -inf included. Not
            scaled. None means no decay.

    Returns:
        o: In the dtype of q.

    Source: Yang et al., PaTH Attention: Position Encoding via Accumulating Householder
        Transformations, arXiv 2505.16381, section 3, and section 3.3 for the gate.
    """
