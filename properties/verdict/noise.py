"""Rounding as noise: a dispatch mode that disturbs every intermediate result of an oracle."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from properties.verdict.precision import ACCUMULATOR, Precision

aten = torch.ops.aten

# Results that are copies, selections or sign changes of their operands: nothing is rounded. Views
# are known by their schema, and factories by having no floating operand.
# fmt: off
_EXACT = frozenset([
    "abs", "amax", "amin", "as_strided_scatter", "cat", "clamp", "clamp_max", "clamp_min", "clone",
    "constant_pad_nd", "copy", "copy_", "diag_embed", "diagonal_backward", "embedding",
    "expand_copy", "fill", "fill_", "flip", "full_like", "gather", "index", "index_copy",
    "index_put", "index_put_", "_index_put_impl_", "index_select", "lift_fresh", "masked_fill",
    "masked_fill_", "masked_scatter", "masked_select", "max", "maximum", "min", "minimum", "neg",
    "neg_", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones_like",
    "empty_like", "zeros_like", "zero_", "relu", "repeat", "roll", "scatter", "scatter_",
    "select_backward", "select_scatter", "sgn", "sign", "slice_backward", "slice_scatter", "sort",
    "stack", "take", "_to_copy", "topk", "tril", "triu", "unfold_backward", "_unsafe_view",
    "value_selecting_reduction_backward", "where",
])
# fmt: on
# Sums of products and sums: each term is rounded, and so is each partial sum.
_SUMS = frozenset(["mm", "bmm", "mv", "dot", "sum", "cumsum", "mean"])
# Functions whose error on a GPU is relative to 1 and not to their value when that is small.
_OF_ORDER_ONE = frozenset(["log", "log2", "log1p", "logsumexp", "logcumsumexp", "tanh", "sigmoid"])

_POOL = 2**20 + 7


@functools.cache
def _pool() -> Tensor:
    """Gaussian numbers, drawn once: drawing costs more than everything else here."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_POOL, dtype=torch.float64, generator=generator)


class Rounding(TorchDispatchMode):
    """Disturbs every result `y` of an operation on floating tensors by what rounding could do.

        y + xi · u · |y|                                        elementwise functions
        y + xi · (u · sqrt(Σ a_i² b_i²) + 2^-24 sqrt(n) · Σ |a_i b_i|)     sums of n products
        y + xi · u · (|y| + 1)                                  logarithms, tanh

    xi is standard gaussian, from a random place of a large pool for each result, and u the unit
    round-off of the storage. The second line says that a product's operands are rounded on their
    way in and that partial sums are kept in float32; it does not shrink when the sum cancels, as
    |y| would. Noise below the normal numbers of float16 is at least its underflow error. Zeros and
    infinities stay what they are.

    The mode sees the operations of autograd as well, so gradients are disturbed in each of their
    own intermediates. Source: the model of Monte Carlo arithmetic, Parker 1997 (UCLA CSD-970002).
    """

    def __init__(self, precision: Precision, generator: torch.Generator) -> None:
        super().__init__()
        self.precision = precision
        self.generator = generator

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        returns = func._schema.returns
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        result = func(*args, **kwargs)
        if view or name in _EXACT or not any(_inexact(a) for a in (*args, *kwargs.values())):
            return result
        if name in _SUMS:
            extent = _extent(func, name, args, kwargs)
        elif name == "_softmax_backward_data":
            extent = _softmax_backward_extent(args[0], args[1], args[2])
        else:
            extent = None
        in_place = any(r.alias_info is not None and r.alias_info.is_write for r in returns)

        def disturb(y: Tensor) -> Tensor:
            if y.is_complex():
                # Each part is rounded by as much as the whole is large: one may have cancelled.
                parts = torch.view_as_real(y)
                size = self.precision.unit * y.abs()[..., None]
                return torch.view_as_complex(parts + size * self._noise(parts.shape))
            if not y.is_floating_point():
                return y
            noisy = self._disturbed(y, name.rstrip("_"), extent)
            return y.copy_(noisy) if in_place else noisy

        return tree_map_only(Tensor, disturb, result)

    def _disturbed(self, y: Tensor, name: str, extent: Callable[[float], Tensor] | None) -> Tensor:
        unit, underflow = self.precision.unit, self.precision.underflow
        if extent is not None:
            size = extent(unit)
        else:
            size = y.abs().add_(1.0) if name in _OF_ORDER_ONE else y.abs()
            size = size.mul_(unit)
        if underflow > 2.0**-126:
            size = torch.where(y == 0, size, size.clamp(min=underflow))
        noisy = torch.addcmul(y, size, self._noise(y.shape))
        return torch.where(y.isfinite(), noisy, y)

    def _noise(self, shape: torch.Size) -> Tensor:
        count = shape.numel()
        if count > _POOL:
            return torch.randn(shape, dtype=torch.float64, generator=self.generator)
        start = int(torch.randint(_POOL - count + 1, (), generator=self.generator))
        return _pool()[start : start + count].view(shape)


def _inexact(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_inexact, value))
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _softmax_backward_extent(dp: Tensor, p: Tensor, dim: int) -> Callable[[float], Tensor]:
    """The size of the noise of `p (dp - Σ p dp)`.

    A kernel takes the sum from elsewhere, as `do · o` with the rounded output. Where one weight is
    nearly 1 the difference vanishes and the errors stay. `dp = do · v` may itself be small by
    chance, and the roundings that it stands for are not, hence its root mean square over the keys.
    """

    def extent(unit: float) -> Tensor:
        typical = dp.square().mean(dim, keepdim=True).sqrt_()
        return (dp.abs() + typical).mul_(p).mul_(unit)

    return extent


def _extent(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[float], Tensor]:
    """The size of the noise of a sum, as a function of the unit round-off of its terms."""
    operands = [a for a in args if isinstance(a, Tensor)]

    def of(change: Callable[[Tensor], Tensor]) -> Tensor:
        changed = [change(a) if isinstance(a, Tensor) else a for a in args]
        total = func(*changed, **kwargs)
        assert isinstance(total, Tensor)
        return total

    def extent(unit: float) -> Tensor:
        absolute, squares = of(torch.abs), of(torch.square)
        if name == "cumsum":
            terms = operands[0].shape[args[1]] if operands[0].ndim else 1
        elif name in ("sum", "mean"):
            terms = operands[0].numel() // max(absolute.numel(), 1)
        else:
            terms = operands[0].shape[-1]
        root = terms**0.5
        # A mean of squares is divided by n once, the square of a mean twice.
        norm = squares.sqrt_().mul_(unit / root if name == "mean" and terms else unit)
        return norm.add_(absolute, alpha=ACCUMULATOR * root)

    return extent
