"""Normalized linear attention: each row is divided by the sum of its weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def divided_by_weights(
    call: Callable[..., tuple[Tensor, Tensor]],
    *,
    v: Tensor,
    scale: float,
    normalize: bool,
    **given: Any,
) -> tuple[Tensor, Tensor]:
    """Call a recurrence and, to `normalize`, divide each row of o by the sum of its weights.

    The sum is one more channel of o, of values that are 1 and that gv does not decay. The scale
    cancels, unless it is 0.

    Returns:
        `o [B, T, H, V]` in the dtype of v, and the final state `[N, H, K, V+1]`, with that channel.
    """
    if not normalize:
        return call(v=v, scale=scale, **given)
    if given.get("gv") is not None:
        given["gv"] = torch.nn.functional.pad(given["gv"], (0, 1))
    given["out_dtype"] = torch.float32  # a quotient is rounded once, not its two parts
    # Not by `torch.cat`, which refuses some dtypes under autocast.
    ones = torch.nn.functional.pad(v, (0, 1), value=1.0)
    o, final_state = call(v=ones, scale=0.0 if scale == 0 else 1.0, **given)
    weights = o[..., -1:]
    empty = weights == 0
    # Both quotient and divisor are replaced: a gradient of 0 times 1/0 would be NaN.
    o = torch.where(empty, 0.0, o[..., :-1] / torch.where(empty, 1.0, weights))
    return o.to(v.dtype), final_state
