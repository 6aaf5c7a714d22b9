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
its two largest may choose the other key. `MANY_DRAWS` are for results that fewer would refuse. Nor
is the error of such a softmax least where the noise is: a row of equal logits keeps the gradient of
every key only as long as the noise is below 1. So a result that is still refused gets the larger of
its budgets for all ways to store operands, see `precision.finer_than`.

`rules` says which rule applies when, and with which z. The oracle is known only as well as its two
forms agree in float64: where a sum of theirs cancels to 0, one may give 0 and the other 1e-19. That
difference is added, up to 2^-40 of the largest number of the case.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from properties.catalogue.op import CHUNK
from properties.catalogue.telescope import Telescope
from properties.verdict.compare import Budget, incoherent
from properties.verdict.noise import Rounding
from properties.verdict.precision import ACCUMULATOR, Precision, underflow, unit_roundoff

Tensors = Mapping[str, Tensor]
# It also runs within `torch.func.vmap`, so its gradients come from `torch.func`.
Oracle = Callable[[Tensors], dict[str, Tensor]]

DRAWS = 12
# Enough perturbed runs to accept most results, and to meet rare deviations: see `budgets`.
FEW_DRAWS = 4
MANY_DRAWS = 96
# Numbers that simultaneous runs may hold. Below this the overhead of an operation dominates, above
# it memory does.
_AT_ONCE = 2**17
# Narrower rows, and smaller differences, tell nothing about a systematic loss: once the part
# proportional to the result is removed, only the rounding of that subtraction remains.
NARROW = 4
NEGLIGIBLE = 1e-3
# The largest difference between two exact runs, as a part of the largest number of the case.
NOISE_OF_FLOAT64 = 2.0**-40
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
        largest: the largest deviation, by element.
        loss_limit: limit of the mean of |error|/sigma over the tensor: its mean in the perturbed
            runs plus six standard deviations, scaled to a kernel's roundings.
        between_forms: how far apart the exact runs of the oracle's two forms are, by element.
    """

    sigma: Tensor
    largest: Tensor
    loss_limit: float
    between_forms: Tensor | float = 0.0


@dataclass(frozen=True)
class InheritedError:
    """The error that a tensor has before a perturbed run: one that kernels inherit.

    Args:
        size: standard deviation, by element.
        shape: shape of the shared factor: 1 along dims whose elements err together.
    """

    size: Tensor
    shape: tuple[int, ...]


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
    oracle: Oracle,
    tensors: Tensors,
    want: Tensors,
    *,
    precision: Precision,
    output_dtypes: Mapping[str, torch.dtype],
    terms: int,
    alike: bool = False,
    absolute: Oracle | None = None,
    gates: tuple[str, ...] = (),
    constant_decay: float = 0.0,
    telescopes: tuple[Telescope, ...] = (),
    float32_logits: bool = False,
    row_sums: float = 0.0,
    inherited: Mapping[str, InheritedError] | None = None,
    cotangents: frozenset[str] = frozenset(),
    size: float = 0.0,
    parts: Tensors | None = None,
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
        precision: how the kernel stores the operands of its products.
        output_dtypes: dtype of each returned result.
        terms: terms of the longest accumulation: tokens of the longest sequence plus head dim.
        alike: many terms are equal, so that their errors are no random walk.
        absolute: the oracle with |scale| if its map is multilinear, else None.
        gates: names of tensors that enter through an exponential, such as log decays.
        constant_decay: the largest constant log decay, without its sign. Its logarithm is rounded
            before it is summed, so it counts like a gate; its exponential has the same error at
            every token.
        telescopes: gradients that are differences of large sums.
        float32_logits: products of two inputs and elementwise functions of them are never stored,
            as in softmax attention. Not for maps whose products may be reordered.
        row_sums: relative error of what the gradient of a softmax subtracts in a row, beside the
            `inherited` error of an LSE.
        inherited: errors that tensors have before the perturbed runs, by name.
        cotangents: names of the cotangents and gradients, on whose size no other result depends.
        size: roughly how many numbers the oracle holds at once.
        parts: rounded gradients that are added up, stacked, by the name of their sum.
        draws: number of perturbed runs. With fewer than `DRAWS` the budgets are the smaller ones
            that they guarantee: a result within these passes with all runs too; a result outside
            may pass.
        seed: of the perturbed runs, so that the verdict is a function of the case.

    Returns:
        A budget for every name in `want`.
    """
    applying = rules(precision, multilinear=absolute is not None)
    values = {**tensors, **want}
    forward = terms * _largest_value([x for n, x in values.items() if n not in cotangents])
    backward = terms * _largest_value(list(values.values()))
    largest = {name: backward if name in cotangents else forward for name in want}
    bounds: list[dict[str, Tensor]] = []
    spreads: dict[str, Spread] = {}
    if absolute is not None and "magnitude" in applying:
        decay = chunk_decay(tensors, gates) + CHUNK * constant_decay
        steps = terms if constant_decay else 0
        factor = magnitude_factor(precision, terms, decay, alike=alike, steps=steps)
        Y = magnitude(absolute, tensors, gates=gates)
        bound = {name: factor * Y[name] + largest[name] * precision.underflow for name in want}
        for telescope in telescopes:
            if telescope.gradient in want:
                bound[telescope.gradient] += telescope.sum_of_errors(values, bound, power=1)
        bounds.append(bound)
    if "sigma" in applying:
        spreads = sigma(
            oracle,
            tensors,
            want,
            precision,
            output_dtypes=output_dtypes,
            float32_logits=float32_logits,
            row_sums=row_sums,
            terms=terms,
            inherited=inherited or {},
            size=size,
            draws=draws,
            seed=seed,
        )
        for telescope in telescopes:
            if telescope.gradient in want:
                spreads[telescope.gradient] = _telescoped(telescope, values, spreads)
        z = allowed_deviations(precision, terms, alike=alike)
        bounds.append(
            {
                name: torch.maximum(z * spread.sigma, spread.largest)
                + torch.as_tensor(spread.between_forms).clamp(max=NOISE_OF_FLOAT64 * largest[name])
                for name, spread in spreads.items()
            }
        )
    made = {}
    for name, y in want.items():
        dtype = output_dtypes[name]
        # Each term may have an operand that underflows, however the kernel scaled it.
        lost = math.sqrt(terms) * precision.underflow
        tiny = underflow(dtype) + largest[name] * (underflow(torch.float32) + lost)
        stored = y.abs() + (parts or {}).get(name, torch.zeros_like(y)[None]).abs().sum(0)
        rounded = unit_roundoff(dtype) * torch.where(stored.isfinite(), stored, 0.0)
        allowed = functools.reduce(torch.minimum, [bound[name] for bound in bounds])
        spread = spreads.get(name)
        made[name] = Budget(
            allowed + rounded + tiny,
            " and ".join(applying),
            torch.where(countable(y, dtype), spread.sigma + tiny, 0.0)
            if spread is not None
            else None,
            spread.loss_limit
            if spread is not None and precision.coarse and not alike
            else math.inf,
        )
    return made


def magnitude(oracle: Oracle, tensors: Tensors, gates: tuple[str, ...] = ()) -> dict[str, Tensor]:
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


def sigma(
    oracle: Oracle,
    tensors: Tensors,
    want: Tensors,
    precision: Precision,
    *,
    output_dtypes: Mapping[str, torch.dtype],
    float32_logits: bool = False,
    row_sums: float = 0.0,
    terms: int = 1,
    inherited: Mapping[str, InheritedError] | None = None,
    size: float = 0.0,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Spread]:
    """Standard deviations of an oracle whose every intermediate is rounded at random.

    A few draws tell little about one element, so the variance is pooled over the last dim; an
    element that scatters more than its row keeps its own. A sum of few squares may be small by
    chance, so the variance is divided by the 0.1 % quantile of chi-square over its degrees of
    freedom (Wilson and Hilferty).

    Args:
        draws: number of perturbed runs. With fewer than `DRAWS`, underestimate instead: divide by
            the 99.9 % quantile of a row with one element, and give no element more than its row.
        The rest as in `budgets`.
    """
    generator = torch.Generator().manual_seed(seed)
    deviations: dict[str, list[Tensor]] = {name: [] for name in want}
    float32_logits = float32_logits and precision.coarse
    # Float32 intermediates may be biased, as everything is for float32 inputs: see `rules`.
    bias = 1 + math.sqrt(terms) / 6 if float32_logits else 1.0
    mode = Rounding(
        precision, generator, float32_logits=float32_logits, row_sums=row_sums, bias=bias
    )
    # Centre on its own exact run: a difference between the oracle's forms is no rounding.
    centre = {name: y for name, y in oracle(tensors).items() if name in want}
    at_once = max(1, min(draws, int(_AT_ONCE / max(size, 1.0))))
    for first in range(0, draws, at_once):
        times = min(at_once, draws - first)
        copies = {n: x.expand(times, *x.shape) for n, x in tensors.items() if x.is_floating_point()}
        for name, error in (inherited or {}).items():
            noise = torch.randn(times, *error.shape, dtype=torch.float64, generator=generator)
            copies[name] = copies[name] + error.size * noise
        with mode:
            disturbed = _repeated(oracle, copies, tensors)
        for name, y in centre.items():
            results = mode.round(disturbed[name], unit_roundoff(output_dtypes[name]))
            deviations[name].append(torch.where(y.isfinite(), results - y, 0.0))
    spreads = {}
    for name, each in deviations.items():
        y = want[name]
        spread = _spread(torch.cat(each), y, precision, output_dtypes[name], draws < DRAWS)
        apart = torch.where(y.isfinite(), (y - centre[name]).abs(), 0.0).nan_to_num()
        spreads[name] = replace(spread, between_forms=apart)
    return spreads


def _repeated(oracle: Oracle, copies: Tensors, tensors: Tensors) -> dict[str, Tensor]:
    """Stacked results of one run for each copy of the floating tensors."""
    shared = {n: x for n, x in tensors.items() if n not in copies}
    return dict(torch.func.vmap(lambda own: oracle({**own, **shared}))(dict(copies)))


def _telescoped(telescope: Telescope, values: Tensors, spreads: Mapping[str, Spread]) -> Spread:
    """Add the errors of a telescope to the spread of its gradient; the limit of its loss is then
    unknown.
    """
    errors = {name: spread.sigma for name, spread in spreads.items()}
    own = errors[telescope.gradient]
    sigma = torch.hypot(own, telescope.sum_of_errors(values, errors, power=2))
    return replace(spreads[telescope.gradient], sigma=sigma, loss_limit=math.inf)


def countable(want: Tensor, dtype: torch.dtype) -> Tensor:
    """Elements whose errors can show a systematic loss.

    Float32 results are excluded, since their errors may share a bias, and so are elements near the
    subnormals of their dtype, whose errors are few and coarse.
    """
    if dtype == torch.float32:
        return torch.zeros_like(want, dtype=torch.bool)
    return want.abs() >= 8 * torch.finfo(dtype).smallest_normal


def _spread(
    deviations: Tensor, want: Tensor, precision: Precision, dtype: torch.dtype, cautious: bool
) -> Spread:
    draws = len(deviations)
    if not deviations.numel():
        nothing = deviations.sum(0)
        return Spread(nothing, nothing, math.inf)
    element = deviations.square().mean(0)
    row = element.mean(-1, keepdim=True) if element.ndim else element
    width = element.shape[-1] if element.ndim else 1
    if cautious:
        variance = row.expand_as(element) / _chi_square_quantile(draws, 3.09)
    else:
        variance = torch.maximum(element, row) / _chi_square_quantile(draws * width)
    spread = variance.sqrt()
    largest = torch.zeros_like(spread) if cautious else deviations.abs().amax(0)
    counted = (spread > 0) & countable(want, dtype)
    if not counted.any() or width < NARROW:
        return Spread(spread, largest, math.inf)
    finite = torch.where(want.isfinite(), want, 0.0)
    losses = [incoherent(deviation, finite)[counted].abs() for deviation in deviations]
    means = torch.stack([(loss / spread[counted]).mean() for loss in losses])
    # Student's t of 11 degrees of freedom exceeds 6 with a probability of 5e-5.
    limit = float(means.mean() if cautious else means.mean() + 6 * means.std())
    limit *= ONE_ROUNDING * math.sqrt(precision.operand_roundings)
    if cautious:
        # If all errors are proportional, only a loss of exactly 0 is certain.
        return Spread(spread, largest, max(limit, torch.finfo(torch.float64).tiny))
    return Spread(spread, largest, limit if limit > NEGLIGIBLE else math.inf)


def _chi_square_quantile(freedom: int, normal_quantile: float = -3.09) -> float:
    """A quantile of chi-square over its degrees of freedom, by default the 0.1 % quantile."""
    step = 2 / (9 * freedom)
    return (1 - step + normal_quantile * math.sqrt(step)) ** 3


def _largest_value(tensors: list[Tensor]) -> float:
    """The largest finite absolute value, at least 1."""
    largest = 1.0
    for x in tensors:
        if x.is_floating_point() and x.numel():
            largest = max(largest, float(x.abs().nan_to_num(posinf=0.0).max()))
    return largest
