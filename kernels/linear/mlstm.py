"""mLSTM: a matrix memory with exponential gates, and a normalizer."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.linear.log_weights import log_weights
from kernels.linear.simple_gla import simple_gla
from kernels.primitives.layout import widened
from kernels.primitives.shift import of_the_token_before
from kernels.recurrence import Options, wrapper


def with_a_normalizer(
    *, q: Tensor, k: Tensor, v: Tensor, i: Tensor, g: Tensor, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    dtype, C, n, z0 = q.dtype, None, None, None
    if initial_state is not None:
        C, n = initial_state[..., :-1, :-1], initial_state[..., :-1, -1:]
        z0 = initial_state[..., -1, -1]
    i, g = widened(i, g)
    # Outputs do not depend on z but by rounding: its terms cancel in every gradient, so none flows
    # through it. The state that is handed on is divided by exp z, and depends on it.
    z, _, _, last = log_weights(i, g, z0, cu_seqlens)
    z = z.detach()
    left = of_the_token_before(z, cu_seqlens, -torch.inf if z0 is None else z0) + g.float() - z
    # A quotient is rounded once, and not its two parts.
    q, k, v = q.float(), torch.exp(i.float() - z)[..., None] * k, v.float()
    given["cu_seqlens"] = cu_seqlens
    read, C = simple_gla(q, k, v, left, initial_state=C, **given)
    weight, n = simple_gla(q, k, torch.ones_like(v[..., :1]), left, initial_state=n, **given)
    # The weight of a query of 0 is 0. In float32 so is exp(-z) of a large z: NaN is not to come of
    # the quotient, nor of its gradient where the scale is 0.
    down, up = torch.exp(z.clamp(max=0))[..., None], torch.exp(-z.clamp(0, 80))[..., None]
    if given["scale"] == 0:
        up = torch.ones_like(up)
    h = (down * read / torch.maximum(down * weight.abs(), up)).to(dtype)
    if C is None:
        return h, None
    empty = q.shape[1] == 0 if cu_seqlens is None else (cu_seqlens[1:] == cu_seqlens[:-1])[:, None]
    # Its value is 1, and its gradient that of a division by exp z. A sequence without tokens hands
    # its initial state on.
    moved = torch.where(last.isinf() | empty, 0.0, last.detach() - last)
    divided = torch.exp(moved)[..., None, None]
    C, n = divided * C, divided * n
    unread = torch.zeros_like(C[..., :1, :])
    if initial_state is not None:
        unread = initial_state[..., -1:, :-1]
    corner = torch.cat([unread, last[..., None, None]], dim=-1)
    return h, torch.cat([torch.cat([C, n], dim=-1), corner], dim=-2)


@wrapper(with_a_normalizer, "simple_gla")
def mlstm(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    i: Float[Tensor, "B T H"],
    g: Float[Tensor, "B T H"],
    *,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K+1 V+1"] | None]:
    """The matrix memory of xLSTM, `reference.mlstm`: `simple_gla` for the values and for the
    normalizer, in float32.
    """
