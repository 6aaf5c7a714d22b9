"""RWKV-6: gated linear attention that is read before it is written, with a bonus for the token."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.linear.gla import gla
from kernels.primitives.layout import widened
from kernels.primitives.shift import last_tokens, of_the_token_before
from kernels.recurrence import Options, wrapper
from kernels.scale import resolve_scale


def one_token_late(
    *, r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, output_final_state: bool, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    # With what the token before writes and how it decays, S_t of `gla` is S_{t-1} of RWKV-6.
    dtype = v.dtype
    r, k, v, w = widened(r, k, v, w)
    late = (of_the_token_before(x, cu_seqlens) for x in (k, v, w))
    o, before = gla(
        r, *late, **given, initial_state=initial_state, cu_seqlens=cu_seqlens,
        output_final_state=output_final_state,
    )  # fmt: skip
    scale = resolve_scale(given["scale"], r.shape[-1])
    bonus = (r.float() * u.float() * k.float()).sum(-1, keepdim=True)
    o = (o.float() + scale * bonus * v.float()).to(dtype)
    if before is None:
        return o, None
    if r.shape[1] == 0:
        return o, before
    (k, v, w), empty = last_tokens((k, v, w), cu_seqlens)
    after = torch.exp(w)[..., None] * before + k[..., None] * v[..., None, :]
    return o, torch.where(empty[:, None, None, None], before, after)


@wrapper(one_token_late, "gla", same_dtype=("r", "k", "v"))
def rwkv6(
    r: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    w: Float[Tensor, "B T H K"],
    u: Float[Tensor, "H K"],
    *,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The weighted key values of RWKV-6, `reference.rwkv6`: `gla` with the keys, values and gates
    of the token before, plus the bonus.
    """
