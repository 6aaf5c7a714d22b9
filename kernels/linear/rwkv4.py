"""RWKV-4: in each channel, an average of the values so far, weighted by keys that decay."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.linear.hgrn import scan
from kernels.linear.log_weights import log_weights
from kernels.primitives.shift import of_the_token_before
from kernels.recurrence import StateOptions, wrapper


def by_two_scans(
    *, k: Tensor, v: Tensor, w: Tensor, u: Tensor, initial_state: Tensor | None,
    output_final_state: bool, cu_seqlens: Tensor | None, tile: int | None, **given: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    dtype, k, v = v.dtype, k.float(), v.float()
    m, z = (None, None) if initial_state is None else initial_state.unbind(1)
    weight, before, left, z = log_weights(k, -torch.exp(w.float()).expand(k.shape), z, cu_seqlens)
    means, last = scan(
        torch.exp(k - weight) * v, left, initial_state=m, output_final_state=True,
        cu_seqlens=cu_seqlens, tile=tile,
    )  # fmt: skip
    mean = of_the_token_before(means, cu_seqlens, 0.0 if m is None else m)
    now = u.float() + k
    top = torch.maximum(before, now).detach()
    old, own = torch.exp(before - top), torch.exp(now - top)
    o = ((old * mean + own * v) / (old + own)).to(dtype)
    return o, torch.stack([last, z], dim=1) if output_final_state else None


@wrapper(by_two_scans, "hgrn", same_dtype=("k", "v"))
def rwkv4(
    k: Float[Tensor, "B T D"],
    v: Float[Tensor, "B T D"],
    w: Float[Tensor, "D"],
    u: Float[Tensor, "D"],
    *,
    mode: Literal["auto", "fused_recurrent"] = "auto",
    **options: Unpack[StateOptions],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "N 2 D"] | None]:
    """The weighted key values of RWKV-4, `reference.rwkv4`: a scan of the logarithm of the weights,
    and one of the mean, in float32.
    """
