"""Error budgets, derived from the oracle and the storage precision, never fitted to a kernel.

Two rules give each element of each result its budget.

*Magnitude*, with `Y` the oracle on absolute values:

    |error| <= (c·u + (4·sqrt(n) + 4Γ)·2^-24)·Y + u_out·|y| + tiny

- `u` is the unit round-off of the operands, and `c` how often an operand is rounded.
- `n` is the number of terms of the accumulation. Their errors add like a random walk (Higham and
  Mary, 2019, doi 10.1137/18M1226312); 4 is in standard deviations.
- `Γ` is the largest sum of log decays over a chunk. A chunk form computes exp(G_i - G_j) from
  cumulative sums, each of which, added up as a tree, has an absolute error of up to 2^-24·(Γ + Γ/2
  + Γ/4 + ...) = 2·2^-24·Γ.
- `u_out·|y|` is the rounding of the result.
- `tiny` is the underflow of the result, of operands and of float32 intermediates.

*Sigma*, with `σ` the standard deviation of the oracle when every intermediate is perturbed by its
rounding (see `noise`):

    |error| <= max(z·σ, the largest deviation of a perturbed run) + u_out·|y| + tiny

Few runs miss what happens rarely: a softmax whose logits are rounded by more than the difference of
its two largest may choose the other key. And z·σ is what an error of z standard deviations costs
only where the result is linear in it: a logit that is off by 3 multiplies its weight by 20, however
small that was, and one that is off by 30 takes it all. `MANY_DRAWS` are for results that fewer
would refuse; most of them have outliers of 6 standard deviations. Nor is the error of such a
softmax least where the noise is: a row of equal logits keeps the gradient of every key only as long
as the noise is below 1. So a result that is still refused gets the larger of its budgets for all
ways to store operands, see `precision.finer_than`.

`rules` says which rule applies when, and with which z. The oracle is known only as well as its two
forms agree in float64: where a sum of theirs cancels to 0, one may give 0 and the other 1e-19. That
difference is added, up to 2^-40 of the largest number of the case.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from properties.catalogue.op import CHUNK
from properties.verdict.compare import Budget
from properties.verdict.computation import Computation
from properties.verdict.precision import ACCUMULATOR, Precision, underflow, unit_roundoff
from properties.verdict.sigma import DRAWS, OracleFunction, Spread, Tensors, countable, sigma

# The largest difference between two exact runs, as a part of the largest number of the case.
NOISE_OF_FLOAT64 = 2.0**-40


def rules(precision: Precision, *, multilinear: bool) -> tuple[str, ...]:
    """Return the rules that apply; if there are two, each element gets the smaller budget.

    - Multilinear maps (sums of products: linear attention, gla, rotary) have a magnitude budget in
      every precision. It holds for errors of any distribution and is sharp in float32: a missing
      key exceeds it thousands of times.
    - In bfloat16 and float16 the magnitude budget is loose, since `c·u·Y` assumes that all
      roundings have one sign. They are many, independent and unbiased, so their sum is gaussian: 6σ
      as well.
    - Maps that are not multilinear (softmax, a normalizer) use sigma alone. In float32 and TF32 a
      kernel's errors can be biased: an approximate exponential, a tensor core that truncates. n
      terms with one common error sum to at most sqrt(n) times their root sum of squares
      (Cauchy-Schwarz), so z is 6 + sqrt(n). That is still sharp: the whole budget is about 1e-5 of
      the result.
    - Multilinear maps in float32 and TF32 use magnitude alone, for the same bias.
    - Equal terms have equal errors. Their sum is bounded like that of biased ones in every
      precision. In float32, where additions err, the oracle's form may add them in one product, and
      z is 6 + n.
    - The mean over the tensor is judged only in bfloat16 and float16, again because of bias, and
      only if terms differ.
    """
    if multilinear:
        return ("magnitude", "sigma") if precision.coarse else ("magnitude",)
    return ("sigma",)


def allowed_deviations(precision: Precision, terms: int, *, alike: bool = False) -> float:
    """Return `z`, the allowed number of standard deviations; see `rules`."""
    if precision.coarse:
        return 6.0 + (math.sqrt(terms) if alike else 0.0)
    return 6.0 + (terms if alike else math.sqrt(terms))


def budgets(
    oracle: OracleFunction,
    tensors: Tensors,
    want: Tensors,
    how: Computation,
    *,
    absolute: OracleFunction | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Budget]:
    """Compute the budget of every result of one call.

    Args:
        oracle: maps tensors to outputs and gradients, both by name. Take the form with the fewest
            roundings on the path (the parallel one): a recurrence that rounds its state at every
            token is noisier than a kernel.
        tensors: float64 inputs, and cotangents if the oracle returns gradients.
        want: the oracle's results for them.
        how: how the kernel computes them.
        absolute: the oracle with |scale| if its map is multilinear, else None.
        draws: number of perturbed runs. With fewer than `DRAWS` the budgets are the smaller ones
            that they guarantee: a result within these passes with all runs too; a result outside
            may pass.
        seed: of the perturbed runs, so that the verdict is a function of the case.

    Returns:
        A budget for every name in `want`.
    """
    applying = rules(how.precision, multilinear=absolute is not None)
    values = {**tensors, **want}
    forward = how.terms * _largest_value(
        [x for name, x in values.items() if name not in how.backward]
    )
    backward = how.terms * _largest_value(list(values.values()))
    largest = {name: backward if name in how.backward else forward for name in want}
    bounds: list[dict[str, Tensor]] = []
    spreads: dict[str, Spread] = {}
    if absolute is not None:
        bounds.append(_magnitude_bounds(absolute, tensors, values, how, largest))
    if "sigma" in applying:
        spreads = sigma(oracle, tensors, want, how, draws=draws, seed=seed)
        spreads = _with_telescopes(spreads, values, how)
        bounds.append(_sigma_bounds(spreads, how, largest))
    made = {}
    for name, y in want.items():
        dtype = how.output_dtypes[name]
        # Each term may have an operand that underflows, however the kernel scaled it.
        lost = math.sqrt(how.terms) * how.precision.underflow
        tiny = underflow(dtype) + largest[name] * (underflow(torch.float32) + lost)
        stored = y.abs() + (how.parts[name].abs().sum(0) if name in how.parts else 0.0)
        rounded = unit_roundoff(dtype) * torch.where(stored.isfinite(), stored, 0.0)
        allowed = functools.reduce(torch.minimum, [bound[name] for bound in bounds])
        budget = Budget(allowed + rounded + tiny, " and ".join(applying))
        if name in spreads:
            scatter = spreads[name].sigma
            spread = torch.where(countable(y, scatter, dtype), scatter + tiny, 0.0)
            judged = how.precision.coarse and not how.alike
            limit = spreads[name].loss_limit if judged else math.inf
            budget = replace(budget, sigma=spread, loss_limit=limit)
        made[name] = budget
    return made


def _with_telescopes(
    spreads: Mapping[str, Spread], values: Tensors, how: Computation
) -> dict[str, Spread]:
    """Add the errors that remain of the sums whose difference a result is."""
    enlarged = dict(spreads)
    for telescope in how.telescopes:
        errors = {name: spread.sigma for name, spread in enlarged.items()}
        inherited = telescope.sum_of_errors(values, errors, power=2)
        own = enlarged[telescope.gradient]
        total = torch.hypot(own.sigma, inherited)
        # The limit of its loss is then unknown.
        enlarged[telescope.gradient] = replace(own, sigma=total, loss_limit=math.inf)
    return enlarged


def _magnitude_bounds(
    absolute: OracleFunction,
    tensors: Tensors,
    values: Tensors,
    how: Computation,
    largest: Mapping[str, float],
) -> dict[str, Tensor]:
    """Bound each result that has a `largest` value, given the values of tensors and results."""
    decay = chunk_decay(tensors, how.gates) + CHUNK * how.constant_decay
    steps = how.terms if how.constant_decay else 0
    factor = magnitude_factor(how.precision, how.terms, decay, alike=how.alike, steps=steps)
    Y = magnitude(absolute, tensors, gates=how.gates)
    bounds = {name: factor * Y[name] + largest[name] * how.precision.underflow for name in largest}
    for telescope in how.telescopes:
        bounds[telescope.gradient] += telescope.sum_of_errors(values, bounds, power=1)
    return bounds


def _sigma_bounds(
    spreads: Mapping[str, Spread], how: Computation, largest: Mapping[str, float]
) -> dict[str, Tensor]:
    z = allowed_deviations(how.precision, how.terms, alike=how.alike)
    return {
        name: torch.maximum(z * spread.sigma, spread.largest)
        + spread.between_forms.clamp(max=NOISE_OF_FLOAT64 * largest[name])
        for name, spread in spreads.items()
    }


def magnitude(
    oracle: OracleFunction, tensors: Tensors, gates: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """Return `Y`: every result with all its terms made positive, those of cotangents too.

    Args:
        oracle: of a multilinear map, with |scale|.
        tensors: float64 inputs and cotangents, and integer tensors, which stay.
        gates: names of log decays. They stay, since exp(g) is positive.
    """
    positive = {
        name: x if name in gates or not x.is_floating_point() else x.abs()
        for name, x in tensors.items()
    }
    return {name: y.abs() for name, y in oracle(positive).items()}


def magnitude_factor(
    precision: Precision, terms: int, decay: float = 0.0, *, alike: bool = False, steps: int = 0
) -> float:
    """Return the factor of `Y`: `c·u + (4·sqrt(n) + 4Γ)·2^-24`.

    A recurrence multiplies by the same computed decay at each of up to `steps` tokens. Its
    exponential may be off by an ulp, 2·2^-24, at each: that adds `2·steps` to `4Γ`.

    Equal terms round the same way each time: then `n` replaces `4·sqrt(n)`, the bound of any sum
    (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
    """
    rounded = precision.operand_roundings * precision.unit
    walked = 4 * math.sqrt(terms)
    summed = max(walked, terms) if alike else walked
    return rounded + (summed + 4 * decay + 2 * steps) * ACCUMULATOR


def chunk_decay(tensors: Tensors, gates: tuple[str, ...]) -> float:
    """Return `Γ`: the largest sum of finite log decays over at most `CHUNK` successive tokens."""
    largest = 0.0
    for name in gates:
        if name in tensors and tensors[name].numel():
            total = tensors[name].abs().nan_to_num(posinf=0.0).cumsum(1)
            before = total.roll(CHUNK, 1)
            before[:, :CHUNK] = 0.0
            largest = max(largest, float((total - before).max()))
    return largest


def _largest_value(tensors: list[Tensor]) -> float:
    """The largest finite absolute value, at least 1."""
    largest = 1.0
    for x in tensors:
        if x.is_floating_point() and x.numel():
            largest = max(largest, float(x.abs().nan_to_num(posinf=0.0).max()))
    return largest
