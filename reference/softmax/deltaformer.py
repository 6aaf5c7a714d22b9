"""DeltaFormer: attention to values of which earlier ones are subtracted first."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.recurrence import StatelessOptions
from reference.softmax.causal import visible, weights
from reference.stateless import stateless


def _weights(q: Tensor, k: Tensor, scale: float, *, own: bool) -> Tensor:
    s = scale * torch.einsum("bihk,bjhk->bhij", q, k)
    return weights(s, visible(q.shape[1], None, q.device, own=own))


def definition(q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, scale: float) -> Tensor:
    earlier = _weights(q, k, scale, own=False)
    u = v[:, :0]
    for t in range(q.shape[1]):
        read = torch.einsum("bhj,bjhv->bhv", earlier[:, :, t, :t], u)
        strength = 1.0 if beta is None else beta[:, t, :, None]
        u = torch.cat([u, (v[:, t] - strength * read)[:, None]], dim=1)
    return torch.einsum("bhij,bjhv->bihv", _weights(q, k, scale, own=True), u)


def solved(q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, scale: float) -> Tensor:
    """All values at once.

        u = (I + diag(β) P)⁻¹ v,    P_tj = softmax_{j < t}(scale · q_t · k_j)

    Source: Zhong et al., arXiv 2505.19488, section 3 (the inverse of a unit triangular matrix).
    """
    earlier = _weights(q, k, scale, own=False)
    if beta is not None:
        earlier = beta.transpose(1, 2)[..., None] * earlier
    system = earlier + torch.eye(q.shape[1], dtype=q.dtype, device=q.device)
    u = torch.linalg.solve_triangular(system, v.transpose(1, 2), upper=False, unitriangular=True)
    return torch.einsum("bhij,bhjv->bihv", _weights(q, k, scale, own=True), u)


@stateless(definition, solved)
def deltaformer(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"] | None = None,
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Softmax attention to values that a delta rule has corrected.

        u_t = v_t - β_t Σ_{j < t} softmax_{j < t}(scale · q_t · k_j) u_j
        o_t = Σ_{j <= t} softmax_{j <= t}(scale · q_t · k_j) u_j

    Args:
        beta: Strength of each correction, meant to be in [0, 1]. None means 1.

    Returns:
        o: In the dtype of q.

    Source: Zhong et al., Understanding Transformer from the Perspective of Associative Memory,
        arXiv 2505.19488, with the queries in the place of its w, as flash-linear-attention 0.6.0
        has it.
    """
