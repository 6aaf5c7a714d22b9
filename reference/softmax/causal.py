"""The mask and the softmax that ops of causal self-attention share."""

import torch
from torch import Tensor

from reference.softmax.run import sees


def visible(T: int, window: int | None, device: torch.device, *, own: bool = True) -> Tensor:
    """Return which keys each query sees, `[T, T]`: those before it, and its own if `own`."""
    return sees(T, T, True, window, device).tril(0 if own else -1)


def weights(s: Tensor, seen: Tensor) -> Tensor:
    """Softmax of the logits of the keys that are seen; a row that sees none has weights 0."""
    nothing = ~seen.any(-1, keepdim=True)
    masked = torch.where(seen | nothing, s, -torch.inf)
    return torch.where(nothing, 0.0, torch.softmax(masked, -1))
