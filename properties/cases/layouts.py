"""Memory layouts: the same values at other addresses. Memory outside the view holds NaN, or the
largest integer.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def contiguous(x: Tensor) -> Tensor:
    """Dense rows in order, as PyTorch allocates them."""
    return x.contiguous()


def heads_first(x: Tensor) -> Tensor:
    """`[B, T, H, D]` whose memory is `[B, H, T, D]`."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 2 else x.contiguous()


def sliced(x: Tensor) -> Tensor:
    """The middle of a wider last dim, as a slice of a packed QKV projection is."""
    width = x.shape[-1]
    wide = x.new_full((*x.shape[:-1], 3 * width + 1), _unread(x))
    view = wide[..., width : 2 * width]
    return view.copy_(x)


def strided(x: Tensor) -> Tensor:
    """Every second element of the last dim."""
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), _unread(x))
    return wide[..., ::2].copy_(x)


def misaligned(x: Tensor) -> Tensor:
    """Dense, but one element past an aligned address."""
    memory = x.new_full((x.numel() + 2,), _unread(x))
    return memory[1:-1].view(x.shape).copy_(x)


def expanded(x: Tensor) -> Tensor:
    """One batch row and one head, or row of a state, expanded with stride 0: all have the values of
    the first.
    """
    if x.dim() < 3 or 0 in x.shape:
        return x.contiguous()
    return x[:1, :, :1].contiguous().expand(x.shape)


def repeated(x: Tensor) -> Tensor:
    """One token, or head of a state, expanded with stride 0: all have the values of the first."""
    if x.dim() < 3 or 0 in x.shape:
        return x.contiguous()
    return x[:, :1].contiguous().expand(x.shape)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    layout.__name__: layout
    for layout in (contiguous, heads_first, sliced, strided, misaligned, expanded, repeated)
}
# Layouts in which several elements share an address.
OVERLAPPING = ("expanded", "repeated")


def _unread(x: Tensor) -> float:
    """The number beside a view, which nobody may read."""
    if x.dtype == torch.bool:
        return True
    return float("nan") if x.is_floating_point() else torch.iinfo(x.dtype).max


def relaid(x: Tensor, layout: str) -> Tensor:
    """Return `x` in another layout, without autograd history."""
    with torch.no_grad():
        return LAYOUTS[layout](x)
