"""Wall attention: each channel of a key decays on its way to the query."""

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from reference.decay import decays, sums_between
from reference.recurrence import StatelessOptions
from reference.softmax.causal import visible
from reference.stateless import stateless


def definition(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, gs: Tensor | None, sink: Tensor | None,
    scale: float, window: int | None,
) -> Tensor:  # fmt: skip
    _, between = decays(g)
    s = scale * torch.einsum("bihk,bijhk,bjhk->bhij", q, between, k)
    if gs is not None:
        s = s + sums_between(gs).permute(0, 3, 1, 2)
    s = torch.where(visible(q.shape[1], window, q.device), s, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    p = torch.softmax(s, -1)[..., : q.shape[1]]
    return torch.einsum("bhij,bjhv->bihv", p, v)


def walked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, gs: Tensor | None, sink: Tensor | None,
    scale: float, window: int | None,
) -> Tensor:  # fmt: skip
    """Token by token: each step decays the keys that are in the window, and adds its own."""
    T, H = q.shape[1:3]
    W = T if window is None else window
    o = []
    keys, decay = k[:, :0], k[:, :0, :, 0]
    for t in range(T):
        first = max(0, t + 1 - W)
        stay = keys.shape[1] - (t - first)
        keys = torch.cat([torch.exp(g[:, t, None]) * keys[:, stay:], k[:, t, None]], dim=1)
        if gs is not None:
            decay = decay + gs[:, t, None]
        decay = torch.cat([decay[:, stay:], torch.zeros_like(k[:, t, None, :, 0])], dim=1)
        s = scale * torch.einsum("bhk,bjhk->bjh", q[:, t], keys) + decay
        total = torch.logsumexp(s, 1)
        if sink is not None:
            total = torch.logaddexp(total, sink.expand(len(q), H))
        p = torch.exp(s - total[:, None])
        o.append(torch.einsum("bjh,bjhv->bhv", p, v[:, first : t + 1]))
    return torch.stack(o, dim=1) if o else v


@stateless(definition, walked)
def wall_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G V"],
    g: Float[Tensor, "B T H K"],
    *,
    gs: Float[Tensor, "B T H"] | None = None,
    sink: Float[Tensor, "H"] | None = None,
    window: int | None = None,
    **options: Unpack[StatelessOptions],
) -> Float[Tensor, "B T H V"]:
    """Softmax attention whose keys decay channel by channel.

        s_ij = scale · Σ_n q_in k_jn exp(Σ_{j < t <= i} g_tn) + Σ_{j < t <= i} gs_t
        s_ij = -inf   unless   0 <= i - j < W  (window)
        o_i  = Σ_j exp(s_ij) v_j / (exp(sink) + Σ_j exp(s_ij))      without a sink exp(sink) is 0

    Query head h reads kv head h // (H / G).

    Args:
        g: Natural logarithm of the decay of each key channel, meant to be <= 0, -inf included.
        gs: Natural logarithm of a decay of the weight itself, of a head. Not scaled. None means
            no decay.

    Returns:
        o: In the dtype of q.

    Source: flash-linear-attention 0.6.0, `fla.ops.wall_attn` (Tilde Research), in natural units.
    """
