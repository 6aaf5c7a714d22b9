"""The standard deviation of an oracle's results under random roundings.

A few perturbed runs tell little about one element, so its variance is that of its row, the last
dim, or its own if that is larger. A sum of few squares may be small by chance, so the variance is
divided by the 0.1 % quantile of chi-square over its degrees of freedom (Wilson and Hilferty).

With fewer than `DRAWS` runs it is a lower bound instead: the variance of the row, divided by the
99.9 % quantile of one element.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from properties.verdict.compare import incoherent
from properties.verdict.computation import Computation
from properties.verdict.noise import Rounding
from properties.verdict.precision import Precision, unit_roundoff

Tensors = Mapping[str, Tensor]
# It also runs within `torch.func.vmap`, so its gradients come from `torch.func`.
OracleFunction = Callable[[Tensors], dict[str, Tensor]]

DRAWS = 12
# Enough perturbed runs to accept most results.
FEW_DRAWS = 2
# Enough to meet rare deviations, see `budgets`: a number is an outlier of one sign in one of 32.
MANY_DRAWS = 192
# The most numbers that an operation on simultaneous runs makes on average: with fewer its overhead
# dominates, with more its memory. And the most that all operations make, since gradients keep them.
_AT_ONCE, _KEPT = 2**16, 2**26
# Narrower rows, and smaller differences, tell nothing about a systematic loss: once the part
# proportional to the result is removed, only the rounding of that subtraction remains.
NARROW = 4
NEGLIGIBLE = 1e-3
# A part of the result that no sum of roundings reaches, but another selected key does.
SELECTED = 1 / 8
# RMS of the relative error of one rounding to nearest, in units of u. The error is uniform and
# mantissas are logarithmically distributed, which gives sqrt(1/3 · 3/(8 ln 2)). The perturbed
# oracle uses a standard deviation of u, safe for a single element; over a whole tensor that
# overestimate would hide a loss.
ONE_ROUNDING = math.sqrt(1 / (8 * math.log(2)))


@dataclass(frozen=True)
class Spread:
    """The scatter of an oracle's perturbed runs around its exact run.

    Args:
        sigma: standard deviation, by element.
        largest: the largest deviation, by element; 0 with fewer than `DRAWS` runs.
        loss_limit: limit of the mean of |error|/sigma over the tensor: its mean in the perturbed
            runs plus six standard deviations, scaled to a kernel's roundings. Infinite where that
            mean tells nothing.
        between_forms: how far apart the exact runs of the oracle's two forms are, by element.
    """

    sigma: Tensor
    largest: Tensor
    loss_limit: float
    between_forms: Tensor


def sigma(
    oracle: OracleFunction,
    tensors: Tensors,
    want: Tensors,
    how: Computation,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Spread]:
    """Perturb every intermediate of an oracle by its rounding, and return the spread of results.

    Args:
        oracle, tensors, want, how, seed: as in `budgets`.
        draws: number of perturbed runs. With fewer than `DRAWS` the spreads are lower bounds.
            Those beyond `DRAWS` have outliers, and count for the largest deviation only.

    Returns:
        A spread for every name in `want`.
    """
    # Centre on its own exact run: a difference between the oracle's forms is no rounding.
    with _Count() as count:
        centre = {name: y for name, y in oracle(tensors).items() if name in want}
    most = min(_AT_ONCE * count.operations, _KEPT) / max(count.numbers, 1)
    at_once = max(1, min(draws, int(most)))
    perturbed = partial(_perturbed, oracle, tensors, centre, how, at_once)
    runs = perturbed(min(draws, DRAWS), seed)
    rare = perturbed(draws - DRAWS, seed, outliers=True) if draws > DRAWS else {}
    spreads = {}
    for name, y in want.items():
        apart = torch.where(y.isfinite(), (y - centre[name]).abs(), 0.0).nan_to_num()
        spread, largest = _scatter(runs[name], cautious=draws < DRAWS)
        if name in rare and rare[name].numel():
            largest = torch.maximum(largest, rare[name].abs().amax(0))
        counted = (spread > 0) & countable(y, spread, how.output_dtypes[name])
        limit = _loss_limit(runs[name], spread, y, counted, how.precision)
        spreads[name] = Spread(spread, largest, limit, apart)
    return spreads


class _Count(TorchDispatchMode):
    """Counts operations, and the numbers that they make."""

    operations, numbers = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        self.numbers += sum(y.numel() for y in tree_leaves(result) if isinstance(y, Tensor))
        return result


def _perturbed(
    oracle: OracleFunction,
    tensors: Tensors,
    centre: Tensors,
    how: Computation,
    most: int,
    draws: int,
    seed: int,
    *,
    outliers: bool = False,
) -> dict[str, Tensor]:
    """The deviations of `draws` perturbed runs, at most `most` at once, from the exact run, stacked
    by result.
    """
    generator = torch.Generator().manual_seed(seed)
    float32_logits = how.float32_logits and how.precision.coarse
    # Float32 intermediates may be biased, as everything is for float32 inputs: see `rules`.
    bias = 1 + math.sqrt(how.terms) / 6 if float32_logits else 1.0
    mode = Rounding(
        how.precision,
        generator,
        float32_logits=float32_logits,
        row_sums=how.row_sums,
        bias=bias,
        outliers=outliers,
    )
    floating = {n: x for n, x in tensors.items() if x.is_floating_point()}
    shared = {n: x for n, x in tensors.items() if n not in floating}
    at_once = torch.func.vmap(lambda own: oracle({**own, **shared}))
    deviations: dict[str, list[Tensor]] = {name: [] for name in centre}
    for first in range(0, draws, most):
        times = min(most, draws - first)
        copies = {n: x.expand(times, *x.shape) for n, x in floating.items()}
        for name, error in how.inherited.items():
            noise = torch.randn(times, *error.shape, dtype=torch.float64, generator=generator)
            copies[name] = copies[name] + error.size * noise
        with mode:
            disturbed = at_once(copies)
        for name, y in centre.items():
            results = mode.rounded(disturbed[name], unit_roundoff(how.output_dtypes[name]))
            deviations[name].append(torch.where(y.isfinite(), results - y, 0.0))
    return {name: torch.cat(each) for name, each in deviations.items()}


def _scatter(deviations: Tensor, *, cautious: bool) -> tuple[Tensor, Tensor]:
    """The standard deviation and the largest deviation, by element."""
    if not deviations.numel():
        return deviations.sum(0), deviations.sum(0)
    draws = len(deviations)
    element = deviations.square().mean(0)
    row = element.mean(-1, keepdim=True) if element.ndim else element
    if cautious:
        variance = row.expand_as(element) / _chi_square_quantile(draws, 3.09)
        return variance.sqrt(), torch.zeros_like(variance)
    width = element.shape[-1] if element.ndim else 1
    variance = torch.maximum(element, row) / _chi_square_quantile(draws * width)
    return variance.sqrt(), deviations.abs().amax(0)


def _loss_limit(
    deviations: Tensor, spread: Tensor, want: Tensor, counted: Tensor, precision: Precision
) -> float:
    """The limit of the mean of |error|/sigma over the counted elements; infinite if unknown."""
    if not counted.any() or not want.ndim or want.shape[-1] < NARROW:
        return math.inf
    finite = torch.where(want.isfinite(), want, 0.0)
    losses = [incoherent(deviation, finite)[counted].abs() for deviation in deviations]
    means = torch.stack([(loss / spread[counted]).mean() for loss in losses])
    cautious = len(deviations) < DRAWS
    # Student's t of 11 degrees of freedom exceeds 6 with a probability of 5e-5.
    limit = float(means.mean() if cautious else means.mean() + 6 * means.std())
    limit *= ONE_ROUNDING * math.sqrt(precision.operand_roundings)
    if cautious:
        # If all errors are proportional, only a loss of exactly 0 is certain.
        return max(limit, torch.finfo(torch.float64).tiny)
    return limit if limit > NEGLIGIBLE else math.inf


def countable(want: Tensor, spread: Tensor, dtype: torch.dtype) -> Tensor:
    """Elements whose errors can show a systematic loss.

    Float32 results are excluded, since their errors may share a bias, and so are elements near the
    subnormals of their dtype, whose errors are few and coarse. Where a perturbed run is as far off
    as the results are large, it selected another key of equal score: a kernel whose ties all go
    one way differs from the exact run more often than runs that decide by chance.
    """
    if dtype == torch.float32:
        return torch.zeros_like(want, dtype=torch.bool)
    row = want.square().mean(-1, keepdim=True).sqrt() if want.ndim else want.abs()
    return (want.abs() >= 8 * torch.finfo(dtype).smallest_normal) & (spread <= SELECTED * row)


def _chi_square_quantile(freedom: int, normal_quantile: float = -3.09) -> float:
    """A quantile of chi-square over its degrees of freedom, by default the 0.1 % quantile."""
    step = 2 / (9 * freedom)
    return (1 - step + normal_quantile * math.sqrt(step)) ** 3
