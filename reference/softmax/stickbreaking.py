"""Stick-breaking attention: each key takes its share of what nearer keys have left."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from reference.recurrence import StatelessOptions
from reference.softmax.causal import visible
from reference.stateless import stateless


def definition(
    q: Tensor, k: Tensor, v: Tensor, scale: float, attend_current: bool
) -> tuple[Tensor, Tensor]:
    z = scale * torch.einsum("bihk,bjhk->bhij", q, k)
    seen = visible(q.shape[1], None, q.device, own=attend_current)
    left = torch.where(seen, logsigmoid(-z), 0.0)
    # The sum over keys nearer than j.
    nearer = pad(left[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
    A = torch.where(seen, torch.exp(logsigmoid(z) + nearer), 0.0)
    return torch.einsum("bhij,bjhv->bihv", A, v), torch.exp(left.sum(-1)).transpose(1, 2)


def by_distance(
    q: Tensor, k: Tensor, v: Tensor, scale: float, attend_current: bool
) -> tuple[Tensor, Tensor]:
    """Keys from near to far, all queries at once.

    A_ij = sigmoid(z_ij) r_i,    r_i = sigmoid(-z_ij) r_i,    starting from r_i = 1
    """
    T = q.shape[1]
    rest = torch.ones_like(q[..., 0])
    o = torch.zeros_like(v)
    for distance in range(0 if attend_current else 1, T):
        z = scale * (q[:, distance:] * k[:, : T - distance]).sum(-1)
        near, far = rest[:, :distance], rest[:, distance:]
        share = torch.sigmoid(z) * far
        o = o + pad(share[..., None] * v[:, : T - distance], (0, 0, 0, 0, distance, 0))
        rest = torch.cat([near, torch.sigmoid(-z) * far], dim=1)
    return o, rest


@stateless(definition, by_distance, outputs=("o", "rest"))
def stickbreaking_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    *,
    attend_current: bool = False,
    **options: Unpack[StatelessOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """Stick-breaking attention, in which the nearest key breaks the stick first.

        z_ij = scale · q_i · k_j
        A_ij = sigmoid(z_ij) Π_{j < l < i} (1 - sigmoid(z_il))       for j < i
        o_i  = Σ_j A_ij v_j
        r_i  = Π_{l < i} (1 - sigmoid(z_il)) = 1 - Σ_j A_ij

    Query head h reads kv head h // (H / G).

    Args:
        attend_current: A query sees its own key too: j <= i and l <= i.

    Returns:
        rest: r, what is left of each stick, in the promoted dtype of the inputs.

    Source: Tan et al., Scaling Stick-Breaking Attention, arXiv 2410.17980, section 2.
    """
