"""Rounding as noise: a dispatch mode that perturbs every intermediate of an oracle."""

import functools
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from properties.verdict.precision import ACCUMULATOR, FLOAT32, Precision

aten = torch.ops.aten

# Operations that copy, select or negate, and so do not round. Views are recognised by their schema,
# factories by having no floating operand.
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
_PRODUCTS = frozenset(["mm", "bmm", "mv", "dot"])
_SUMS = frozenset(["sum", "cumsum", "mean"])
# Functions whose error on a GPU is relative to 1 if their value is small.
_OF_ORDER_ONE = frozenset([
    "log", "log2", "log1p", "logaddexp", "logsumexp", "logcumsumexp", "tanh", "sigmoid",
])  # fmt: skip

# Exponents, which no kernel may store in 16 bits: a weight would be off by a factor.
_LOGARITHMS_OF_SUMS = frozenset(["logaddexp", "logsumexp", "logcumsumexp"])

# Times this, every number but 0 exceeds any underflow.
_HUGE = 2.0**1000

_POOL = 2**20 + 7
_PIECE = 2**19

# An outlier in standard deviations, the z of `budgets.rules`; and how many numbers are outliers:
# few, since weights of a softmax that grow together grow less.
_OUTLIER, _OUTLIERS = 6.0, 1 / 16


@functools.cache
def _pool(outliers: bool) -> Tensor:
    """Gaussian numbers, drawn once because drawing dominates the cost."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(_POOL, dtype=torch.float64, generator=generator)
    if not outliers:
        return numbers
    chosen = torch.rand(_POOL, generator=generator) < _OUTLIERS
    return torch.where(chosen, numbers.sign() * _OUTLIER, numbers)


# A case has a few units, and float32 logits one for each number of terms.
@functools.lru_cache(maxsize=8)
def _factors(unit: float, outliers: bool) -> Tensor:
    """`1 + unit xi` for every xi of the pool."""
    return 1.0 + unit * _pool(outliers)


class Rounding(TorchDispatchMode):
    """Perturb every result `y` of an operation on floating tensors by a possible rounding error.

        y + xi · u |y|                                                    elementwise functions
        y + xi · u (|y| + 1)                                              logarithms, tanh
        y + xi · 2^-23 (|y| + 1)                                          logarithms of sums
        y + xi · u y (1 + |log y|)                                        softmax
        y + xi · (u sqrt(Σ x_i²) + 2^-24 sqrt(n) Σ |x_i|)                 sums of n terms
        y + xi · (u sqrt(2 Σ a_i² b_i²) + 2^-24 sqrt(n) Σ |a_i b_i|)      sums of n products

    xi is standard gaussian, from a random place of a large pool for each result, or with `outliers`
    one in 16 times 6 or -6; u is the unit round-off of the storage. A sum of products rounds its
    operands and keeps partial sums in float32. Unlike |y| its noise does not shrink when the sum
    cancels, because kernels may form the sum in another order: q · (Σ k v) for Σ (q · k) v.

    With `float32_logits` only the operands of products are stored: u is 2^-23 everywhere else. They
    are rounded before the product, so that one rounded weight moves all its results alike, and a
    product of exactly stored tensors has only its summation error. `bias` enlarges the noise of
    float32 intermediates. The `Σ p dp = do · o` that the gradient of a softmax subtracts has an
    error of its own, which remains where the difference cancels, and where the terms of `do · o`
    do: u, or `row_sums` for kernels that take it from the rounded output, times
    `sqrt(Σ p_s Σ do_v² v_sv²)`, which is at least `sqrt(Σ do_v² o_v²)`.

    The mode sees the operations of autograd too, so gradients are perturbed at their own
    intermediates. Zeros and infinities stay, and so does what is not float64, for numbers that no
    implementation rounds. Noise below float16's normal numbers is at least its underflow, so it may
    exceed the number. Where all terms have one sign it then points away from 0: no rounding changes
    the sign of such a result, and its logarithm would be NaN.

    Source: Monte Carlo arithmetic, Parker 1997 (UCLA CSD-970002).
    """

    def __init__(
        self,
        precision: Precision,
        generator: torch.Generator,
        *,
        float32_logits: bool = False,
        row_sums: float = 0.0,
        bias: float = 1.0,
        outliers: bool = False,
    ) -> None:
        super().__init__()
        self.precision = precision
        self.generator = generator
        self.float32_logits = float32_logits
        self.accumulator = bias * ACCUMULATOR
        self.unit = 2 * self.accumulator if float32_logits else precision.unit
        self.row_sums = max(row_sums, self.unit)
        self.outliers = outliers
        self.underflow = 0.0 if float32_logits else precision.underflow
        # The latest products: result, operation, factors.
        self.products: deque[tuple[Tensor, Any, Tensor, Tensor]] = deque(maxlen=4)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name, rounds, in_place = _traits(func)
        if name in _PRODUCTS and self.float32_logits:
            args = tuple(map(self._stored, args))
        result = func(*args, **kwargs)
        if not rounds or not any(map(_inexact, (*args, *kwargs.values()))):
            if name == "where" and (factors := self._factors_of(args[2])):
                self.products.append((result, *factors))
            return result
        if name == "_softmax_backward_data":
            dp, p, dim = args[:3]
            # Noise may exceed a small weight.
            size = (p.abs() * self._squares(dp)).sum(dim, keepdim=True).sqrt_()
            size.mul_(self.row_sums)
            result = result + p * self._disturbed(torch.zeros_like(size), size)

        def disturb(y: Any) -> Any:
            if not _inexact(y):
                return y
            size = self._size(y, func, name, args, kwargs)
            noisy = self.rounded(y, self.unit) if size is None else self._disturbed(y, size)
            if _matters(self.precision.underflow) and not y.is_complex():
                crossed = noisy * y < 0
                if crossed.any():
                    crossed &= _one_signed(y, func, name, args, kwargs)
                    noisy = torch.where(crossed, 2 * y - noisy, noisy)
            return y.copy_(noisy) if in_place else noisy

        several = isinstance(result, tuple | list)
        noisy = type(result)(map(disturb, result)) if several else disturb(result)
        if name in _PRODUCTS:
            self.products.append((noisy, func, *args[:2]))
        return noisy

    def _stored(self, x: Tensor) -> Tensor:
        """An operand of a product as a kernel stores it."""
        if not _inexact(x) or self.precision.holds(x):
            return x
        return self._disturbed(x, self._error_of_storing(x))

    def _error_of_storing(self, x: Tensor) -> Tensor:
        """Standard deviation of the error of an operand of a product."""
        error = x.abs().mul_(self.precision.unit)
        return self._with_underflow(x, error, self.precision.underflow)

    def _squares(self, dp: Tensor) -> Tensor:
        """`Σ_v do_v² v_v²` if `dp` is a product `Σ_v do_v v_v`, else `dp²`."""
        if (factors := self._factors_of(dp)) is None:
            return dp.square()
        product, do, v = factors
        squares: Tensor = product(do.square(), v.square())
        return squares.as_strided(dp.shape, dp.stride())

    def _factors_of(self, y: Tensor) -> tuple[Any, Tensor, Tensor] | None:
        """Operation and operands of a recent product; `y` may be a view of it, or masked."""
        for result, *factors in self.products:
            if result.data_ptr() == y.data_ptr() and result.numel() == y.numel():
                return factors[0], factors[1], factors[2]
        return None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Budgets are never compiled, and the guard against it costs as much as most operations."""
        return False

    def _size(
        self, y: Tensor, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        """Standard deviation of the noise of a result; None for `u |y|`."""
        if name in _PRODUCTS:
            return self._size_of_product(func, args[0], args[1])
        if name in _SUMS:
            return self._size_of_sum(func, name, args, kwargs)
        if name == "_softmax":
            # y (1 + |log y|): the argument of the exponential is rounded too.
            size = y.sub(torch.special.xlogy(y, y)).mul_(self.unit)
            return self._with_underflow(y, size, self.underflow)
        if name == "mul" and self.float32_logits and self._rounds_an_operand(*args):
            return self._with_underflow(
                y, y.abs().mul_(self.precision.unit), self.precision.underflow
            )
        of_order_one = _is_of_order_one(name, args)
        if not (of_order_one or y.is_complex() or _matters(self.underflow)):
            return None
        if of_order_one and name in _LOGARITHMS_OF_SUMS:
            return y.abs().add_(1.0).mul_(min(self.unit, 2 * self.accumulator))
        size = y.abs().add_(1.0) if of_order_one else y.abs()
        return self._with_underflow(y, size.mul_(self.unit), self.underflow)

    def _rounds_an_operand(self, a: Any, b: Any) -> bool:
        """Whether this is a product with an input of one column, which `einsum` multiplies
        elementwise: a kernel rounds the other operand, as it does for more columns. One operand is
        then repeated along a dim of the other; numbers for each row in float32 have equal shapes.
        An input in float32, as ALiBi's slopes, is multiplied as it is.
        """
        if not all(isinstance(x, Tensor) and x.ndim for x in (a, b)) or a.shape == b.shape:
            return False
        if self.precision.holds(a) == self.precision.holds(b):
            return False
        return not FLOAT32.holds(a) or not FLOAT32.holds(b)

    def _size_of_product(self, func: Any, a: Tensor, b: Tensor) -> Tensor:
        sums: Tensor = func(a.abs(), b.abs())
        sums.mul_(self.accumulator * a.shape[-1] ** 0.5)
        if self.float32_logits:
            return sums
        if not _matters(self.precision.underflow):
            squares: Tensor = func(a.square(), b.square()).mul_(2 * self.precision.unit**2)
        else:
            of_a, of_b = (self._error_of_storing(x).square_() for x in (a, b))
            squares = func(of_a, b.square()) + func(a.square(), of_b)
        return squares.sqrt() + sums

    def _size_of_sum(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        x = args[0]
        sums: Tensor = func(x.abs(), *args[1:], **kwargs)
        squares: Tensor = func(x.square(), *args[1:], **kwargs)
        terms = x.numel() / max(sums.numel(), 1)
        if name == "cumsum":
            terms = x.shape[args[1]] if x.ndim else 1
        elif name == "mean":
            # A mean divides its sum by n once, and its squares by n twice.
            squares = squares / max(terms, 1)
        return squares.sqrt().mul_(self.unit) + sums.mul_(self.accumulator * terms**0.5)

    @staticmethod
    def _with_underflow(y: Tensor, size: Tensor, underflow: float) -> Tensor:
        if not _matters(underflow):
            return size
        # 0 where y is 0, with fewer passes than a mask.
        return torch.minimum(size.clamp(min=underflow), y.abs().mul_(_HUGE))

    def _disturbed(self, y: Tensor, size: Tensor) -> Tensor:
        if y.is_complex():
            # The noise of each part follows the modulus: one part may have cancelled.
            parts = torch.view_as_real(y)
            return torch.view_as_complex(parts + size[..., None] * self._noise(parts.shape))
        noisy = torch.addcmul(y, size, self._noise(y.shape))
        # An infinity would become NaN. A finite sum is the quickest proof that there is none.
        return noisy if y.sum().isfinite() else torch.where(y.isfinite(), noisy, y)

    def rounded(self, y: Tensor, unit: float) -> Tensor:
        """`y + xi · unit |y|` in one pass, without a check for infinities."""
        return torch.mul(y, self._noise(y.shape, _factors(unit, self.outliers)))

    def _noise(self, shape: torch.Size, pool: Tensor | None = None) -> Tensor:
        """A slice of the pool at a random start; several for a large result."""
        count = shape.numel()
        sizes = [_PIECE] * (count // _PIECE) + [count % _PIECE]
        starts = torch.randint(_POOL - _PIECE, (len(sizes),), generator=self.generator)
        pool = _pool(self.outliers) if pool is None else pool
        pieces = [pool[i : i + n] for i, n in zip(starts.tolist(), sizes, strict=True)]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).view(shape)


def _one_signed(
    y: Tensor, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Where a result has the sign of all its terms."""
    if name in _PRODUCTS:
        args = (args[0].abs(), args[1].abs())
    elif name in _SUMS:
        args = (args[0].abs(), *args[1:])
    else:
        return torch.tensor(not _is_of_order_one(name, args))
    return torch.eq(y.abs(), func(*args, **kwargs))


def _is_of_order_one(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the error of a small value is relative to 1. That of softplus, log(exp a + exp 0), is
    not: kernels have log1p.
    """
    softplus = name == "logaddexp" and not args[1].any()
    return name.rstrip("_") in _OF_ORDER_ONE and not softplus


@functools.cache
def _traits(func: Any) -> tuple[str, bool, bool]:
    """Name of an operation, whether it rounds floating operands, whether it writes its first."""
    name = func.overloadpacket.__name__
    aliases = [r.alias_info for r in func._schema.returns if r.alias_info is not None]
    view = any(not alias.is_write for alias in aliases)
    return name, not view and name not in _EXACT, any(alias.is_write for alias in aliases)


def _matters(underflow: float) -> bool:
    """Whether results may be near underflow: only in float16, as the others have float32's
    exponents.
    """
    return underflow > torch.finfo(torch.float32).smallest_normal


def _inexact(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_inexact, value))
    return isinstance(value, Tensor) and value.dtype in (torch.float64, torch.complex128)
