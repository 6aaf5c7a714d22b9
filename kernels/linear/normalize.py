"""Normalized linear attention: each row is divided by the sum of its weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def normalized(
    call: Callable[..., tuple[Tensor, Tensor]],
    *,
    v: Tensor,
    scale: float,
    normalize: bool,
    **given: Any,
) -> tuple[Tensor, Tensor]:
    """Give v a channel of ones that gv does not decay, and divide each row by what becomes of it.

    The scale cancels, unless it is 0.
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
