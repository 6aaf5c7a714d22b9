"""Normalized linear attention: each row is divided by the sum of its weights."""

from typing import Any

import torch
from torch import Tensor

from reference.recurrence import Run


def normalized(run: Run, *, normalize: bool, **arguments: Any) -> tuple[Tensor, Tensor]:
    """Give v a channel of ones that gv does not decay, and divide each row by what becomes of it.

    The scale cancels, unless it is 0.
    """
    if not normalize:
        return run(**arguments)
    arguments["scale"] = 0.0 if arguments["scale"] == 0 else 1.0
    arguments["v"] = _append(arguments["v"], 1.0)
    if arguments.get("gv") is not None:
        arguments["gv"] = _append(arguments["gv"], 0.0)
    o, S = run(**arguments)
    return _divide(o[..., :-1], o[..., -1:]), S


def _append(x: Tensor, channel: float) -> Tensor:
    return torch.cat([x, torch.full_like(x[..., :1], channel)], dim=-1)


def _divide(numerator: Tensor, normalizer: Tensor) -> Tensor:
    # The inner `where` keeps the gradient of the branch not taken finite: 0 · inf would be NaN.
    zero = normalizer == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, normalizer))
