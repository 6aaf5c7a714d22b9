"""Comparison of results: bit for bit, or with the oracle within the error budget."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from properties.cases.calls import outputs_and_gradients, transformable
from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.sequences import dims_of
from properties.cases.tensors import differentiable_outputs, largest_logit, trained, work
from properties.catalogue.op import Function, Op, Role
from properties.laws.law import Run, Violation
from properties.verdict import BY_DTYPE, Budget, Comparison, Computation, budgets, compare
from properties.verdict.computation import InheritedError
from properties.verdict.precision import ACCUMULATOR, Precision, finer_than, unit_roundoff
from properties.verdict.report import report, repro
from properties.verdict.sigma import DRAWS, FEW_DRAWS, MANY_DRAWS, OracleFunction

_INCOMING = "gradient of "
# Beyond this many numbers, in some tens of tensors each, the form over all pairs of tokens, whose
# budgets are sharper, may not fit into memory.
_MOST_WORK = 1e7
# Up to this many times its budget an error may be a rare deviation, which few perturbed runs miss.
_RARE = 8.0


def oracle_results(op: Op, inputs: Inputs, gradients_of: Results | None) -> Results:
    """Run the oracle in float64 on the numbers that the implementation gets."""
    return outputs_and_gradients(op, op.oracle, inputs.to(torch.float64), _in_float64(gradients_of))


def compare_with_oracle(
    run: Run,
    inputs: Inputs,
    gradients_of: Results,
    got: Results,
    left_out: Results | None = None,
) -> float:
    """Compare results with the oracle; return the worst error as a fraction of its budget.

    A budget comes from perturbed runs of a form of the oracle. Results beyond one budget are held
    to the next: of more runs, of the definition in mode `fused_recurrent`, of many runs; and then
    to the larger of the last and those of finer precisions.

    Args:
        left_out: result → bool, true where an element is not judged.

    Raises:
        Violation: an error exceeds its budget, or a result is missing.
    """
    op, case, subject = run.op, run.case, run.subject
    asked = op.name, case.to_json(), inputs.tensors, inputs.options, gradients_of
    want = subject.recall(asked, lambda: oracle_results(op, inputs, gradients_of))
    got, want = _matched(run, got, want)
    left_out = dict(left_out or {})
    parts = _parts(op, inputs, gradients_of)
    for name in _shared(case, got):
        left_out[name] = ~got[name].isfinite() & _near_infinity(parts[name])
    for name, mask in left_out.items():
        got[name] = torch.where(mask, want[name].to(got[name]), got[name])

    def compared(allowed: Mapping[str, Budget | None]) -> list[Comparison]:
        return [compare(name, x, want[name], allowed[name]) for name, x in got.items()]

    # A result equal to the rounded oracle needs no budget, which takes a minute for integers in
    # thousands of tokens.
    if all(one.passed for one in compared(dict.fromkeys(got))):
        return 0.0
    dtypes = {name: x.dtype for name, x in got.items()}
    # Other laws join the results of calls, which were rounded in between, as autograd adds rounded
    # gradients of a tensor that is passed twice.
    alone = run.law == "differential" and not case.same
    within = torch.float32 if op.in_float32 and alone else case.torch_dtype
    precision = BY_DTYPE[within]
    make = partial(_allowed, op, case, inputs, gradients_of, want, dtypes, parts)
    of_budgets = *asked, dtypes, within
    attempts = _attempts(op, case, quick=subject.quick)
    _, quiet = attempts[0]
    comparisons: list[Comparison] = []
    allowed: dict[str, Budget] = {}
    for draws, form in attempts:
        if draws == MANY_DRAWS and max(one.ratio for one in comparisons) > _RARE:
            break
        key = *of_budgets, draws, form is quiet
        allowed = subject.recall(key, partial(make, precision, form=form, draws=draws))
        comparisons = compared(allowed)
        if all(one.passed for one in comparisons):
            return _verdict(run, comparisons, "the oracle")
    for finer in () if op.multilinear(case) else finer_than(precision):
        theirs = subject.recall((*of_budgets, finer), partial(make, finer, form=quiet, draws=DRAWS))
        allowed = {name: budget.joined(theirs[name]) for name, budget in allowed.items()}
        comparisons = compared(allowed)
    return _verdict(run, comparisons, "the oracle")


def _attempts(op: Op, case: Case, *, quick: bool) -> list[tuple[int, Function]]:
    """How many perturbed runs of which form give each budget to try, the cheapest first."""
    quiet = op.quiet_form if work(op, case) <= _MOST_WORK else op.oracle
    attempts = [(FEW_DRAWS, quiet), (DRAWS, quiet)] if quick else [(DRAWS, quiet)]
    if case.mode == "fused_recurrent":
        # Token by token, as the definition, whose sums may be noisier than those over pairs.
        attempts.append((DRAWS, op.oracle))
    if not op.multilinear(case):
        attempts.append((MANY_DRAWS, quiet))
    return list(dict.fromkeys(attempts))


def _allowed(
    op: Op,
    case: Case,
    inputs: Inputs,
    gradients_of: Results,
    want: Results,
    dtypes: Mapping[str, torch.dtype],
    parts: Results,
    precision: Precision,
    *,
    form: Function,
    draws: int,
) -> dict[str, Budget]:
    incoming = _in_float64(gradients_of) or {}
    telescopes = tuple(t for t in op.telescopes(case) if t.gradient in want)
    if telescopes:
        # Telescoping gradients inherit errors even from results that the case does not request.
        inputs = replace(inputs, trained=trained(op, replace(case, frozen=())))
        silent = {o.name for o in differentiable_outputs(op, case)} - set(incoming)
        incoming |= {name: torch.zeros_like(want[name]) for name in silent}
        want = oracle_results(op, inputs, incoming)
        dtypes = {name: dtypes.get(name, case.torch_dtype) for name in want}
    softmax = op.float32_logits and len(incoming) > 0
    has_lse = any(o.name == "lse" for o in op.outputs)
    if softmax:
        inputs = inputs.with_options(**op.asks_for_all)
        nothing = torch.zeros_like(want["o"])
        incoming = {"o": nothing, "lse": nothing[..., 0].transpose(1, 2), **incoming}
    exact = exact_scores(op, inputs.to(torch.float64))
    tensors = {**exact.tensors, **{_INCOMING + name: x for name, x in incoming.items()}}
    absolute = (
        exact.with_options(scale=_absolute_scale(exact)) if "scale" in exact.options else exact
    )
    how = Computation(
        precision=precision,
        output_dtypes=dtypes,
        terms=max(case.lengths + (case.key_lengths or ())) + max(case.dims.values()),
        alike=_has_equal_terms(case),
        gates=tuple(a.name for a in op.arguments if a.role is Role.LOG_DECAY),
        constant_decay=op.constant_decay(case),
        telescopes=telescopes,
        float32_logits=op.float32_logits,
        row_sums=_of_a_row_sum(want["o"], dtypes["o"]) if softmax and not has_lse else 0.0,
        inherited=_inherited(op, inputs, incoming, want, dtypes) if softmax else {},
        cotangents=frozenset(n for n in (*tensors, *want) if _follows_cotangents(op, n)),
        parts=parts,
    )
    return budgets(
        _by_tensors(op, form, exact),
        tensors,
        want,
        how,
        absolute=_by_tensors(op, form, absolute) if op.multilinear(case) else None,
        size=work(op, case),
        steps=_steps(op, case, form),
        draws=draws,
        seed=case.seed,
    )


def _steps(op: Op, case: Case, form: Function) -> int:
    """How many steps a form takes one after the other: the definition of a recurrence has one for
    each token.
    """
    walks = form is op.oracle and any(a.name == "initial_state" for a in op.arguments)
    return max(case.lengths) if walks else 1


def exact_scores(op: Op, inputs: Inputs) -> Inputs:
    """Put what decides a selection into float32: the noise of a budget would break ties."""
    scores = {a.name for a in op.arguments if a.role is Role.SCORE}
    kept = {n: x.float() if n in scores else x for n, x in inputs.tensors.items()}
    return replace(inputs, tensors=kept)


def _has_equal_terms(case: Case) -> bool:
    """Whether many terms of a sum are equal, so that their rounding errors are too.

    Tokens are, if a tensor repeats one. If logits are zeros, so that all weights round alike, heads
    of a group are as well, if a tensor repeats one head.
    """
    layouts = {case.layout, *case.layouts.values()}
    return "repeated" in layouts or (case.values == "zeros" and "expanded" in layouts)


def _follows_cotangents(op: Op, name: str) -> bool:
    """Whether it is a cotangent or the gradient "dx" of an argument x."""
    arguments = {argument.name for argument in op.arguments}
    return name.startswith(_INCOMING) or (name[0] == "d" and name[1:] in arguments)


def _of_a_row_sum(o: Tensor, dtype: torch.dtype) -> float:
    """The relative error of `do · o` beside `dp`: of the rounded output, and of two sums."""
    return math.hypot(unit_roundoff(dtype), ACCUMULATOR * math.sqrt(2 * o.shape[-1]))


def _inherited(
    op: Op, inputs: Inputs, incoming: Results, want: Results, dtypes: Mapping[str, torch.dtype]
) -> dict[str, InheritedError]:
    """Errors that softmax gradients inherit from the forward pass, as errors of the cotangents.

    The backward kernels recompute the logits but reuse the normalizer. If one weight is nearly 1,
    the rounding errors of both, each relative to the logit, cancel in the oracle and not in the
    kernel: the weights of a query are off by a common factor, like its cotangents. Kernels also
    compute `Σ p dp` of a query, which is subtracted from all its `dp`, as `do · o` from the rounded
    output. The cotangent of the LSE enters at the same place.
    """
    factor = ACCUMULATOR * (largest_logit(op, inputs.given(), inputs.options.get("scale")) or 0.0)
    do, dlse = incoming["o"], incoming["lse"]
    sums = unit_roundoff(dtypes["o"]) * (do * want["o"]).nan_to_num(0, 0, 0).norm(dim=-1)
    return {
        f"{_INCOMING}o": InheritedError(factor * do, (*do.shape[:-1], 1)),
        f"{_INCOMING}lse": InheritedError(
            torch.hypot(factor * dlse, sums.transpose(1, 2)), dlse.shape
        ),
    }


def expect_identical(
    run: Run,
    got: Results,
    want: Results,
    against: str,
    *,
    normal: float = 0.0,
) -> None:
    """Require equal bits, after rounding `want` to the dtype of `got`.

    Args:
        normal: treat two elements as equal that are nearly subnormal if divided by this, since
            scaling by a power of two does not commute with rounding there. 0 treats none so.

    Raises:
        Violation: a result differs or is missing.
    """
    got, want = _matched(run, got, want)
    for name in _shared(run.case, got):
        alike = got[name].isnan() & want[name].isnan()
        got[name], want[name] = (x.masked_fill(alike, 0.0) for x in (got[name], want[name]))
    if normal:
        small = {n: _subnormal(x / normal) & _subnormal(want[n] / normal) for n, x in got.items()}
        got = {name: x.masked_fill(small[name], 0.0) for name, x in got.items()}
        want = {name: want[name].masked_fill(small[name], 0.0) for name in got}
    comparisons = [compare(name, x, want[name], None) for name, x in got.items()]
    _verdict(run, comparisons, against)


def expect_same(
    run: Run,
    inputs: Inputs,
    gradients_of: Results,
    got: Results,
    want: Results,
    against: str,
) -> float:
    """Require equal bits; if bits are not comparable, require that `got` is within its budget.

    Returns:
        The worst error as a fraction of its budget, or 0 if bits were compared.
    """
    if not run.compares_bits:
        return compare_with_oracle(run, inputs, gradients_of, got)
    expect_identical(run, got, want, against)
    return 0.0


def _shared(case: Case, got: Results) -> list[str]:
    """The float16 gradients, not all finite, of tensors that are two arguments: autograd adds two
    parts, of which one or both may be infinite where the sum is not.
    """
    names = {f"d{other}" for other in case.same.values()} if case.dtype == "float16" else set()
    return [name for name in names if name in got and not bool(got[name].isfinite().all())]


def _near_infinity(parts: Tensor) -> Tensor:
    """Where the oracle's gradient of one of the arguments is more than half of float16's range."""
    return (parts.abs() > torch.finfo(torch.float16).max / 2).any(0)


def _parts(op: Op, inputs: Inputs, gradients_of: Results | None) -> Results:
    """The gradients that autograd adds, rounded, for tensors that are several arguments: "dx" →
    those of all these arguments, stacked.
    """
    alone = {n: inputs.tensors[other].clone() for n, other in inputs.same.items()}
    together: dict[str, list[str]] = {}
    for n, other in inputs.same.items():
        if other in inputs.trained:
            together.setdefault(other, [other]).append(n)
    apart = replace(
        inputs,
        tensors={**inputs.tensors, **alone},
        same={},
        trained=(*inputs.trained, *(n for names in together.values() for n in names[1:])),
    )
    if not together or not gradients_of:
        return {}
    found = oracle_results(op, apart, gradients_of)
    return {
        f"d{name}": torch.stack([found[f"d{n}"] for n in names]) for name, names in together.items()
    }


def _subnormal(x: Tensor) -> Tensor:
    """Which elements are so small that they, or a factor of them, may be subnormal."""
    return x.abs() < max(8 * torch.finfo(x.dtype).smallest_normal, 2.0**-100)


def fail(run: Run, text: str, fault: str | None = None) -> None:
    """Report a violation by a message instead of a comparison.

    Args:
        fault: the message that ledgers know, if `text` says more.

    Raises:
        Violation: the target's ledger does not excuse it.
    """
    law, case, subject = run.law, run.case, run.subject
    command = repro(law, case, subject.device, subject.target.name)
    message = f"{law} does not hold: {text}\n{case.line()}\n\n{command}"
    subject.report(Violation(law, case, message, fault or text))


def _matched(run: Run, got: Results, want: Results) -> tuple[Results, Results]:
    """Keep the results that are present and expected; report any others."""
    if set(got) != set(want):
        fail(run, f"it returns {sorted(got)}, expected {sorted(want)}")
    for output in run.op.outputs:
        if output.name in got:
            dtypes = got[output.name].dtype, output.dtype_in(run.case)
            found, promised = (str(dtype).removeprefix("torch.") for dtype in dtypes)
            if found != promised:
                fail(run, f"it returns {output.name} in {found}, expected {promised}")
    both = [name for name in got if name in want]
    return {name: got[name] for name in both}, {name: want[name] for name in both}


def _verdict(run: Run, comparisons: list[Comparison], against: str) -> float:
    """Report each failed comparison; return the worst error of the others."""
    law, case, subject = run.law, run.case, run.subject
    failed = [comparison for comparison in comparisons if not comparison.passed]
    for number, comparison in enumerate(failed):
        dims = dims_of(run.op, comparison.name)
        text = report(law, case, comparison, dims, against, subject.device, subject.target.name)
        also = tuple(other.name for other in failed[number + 1 :])
        subject.report(Violation(law, case, text, comparison, also))
    return max((c.ratio for c in comparisons if c.passed), default=0.0)


def _by_tensors(op: Op, function: Function, inputs: Inputs) -> OracleFunction:
    """The op as a function of its tensors and cotangents only."""

    def of(tensors: Mapping[str, Tensor]) -> Results:
        given = {n: x for n, x in tensors.items() if not n.startswith(_INCOMING)}
        incoming = {
            n.removeprefix(_INCOMING): x for n, x in tensors.items() if n.startswith(_INCOMING)
        }
        return transformable(op, function, replace(inputs, tensors=given), incoming)

    return of


def _absolute_scale(inputs: Inputs) -> float | None:
    """Return |scale|; None and the sentinel -1 stand for a positive scale and stay."""
    scale: float | None = inputs.options["scale"]
    return scale if scale is None or scale == -1 else abs(scale)


def _in_float64(tensors: Results | None) -> Results | None:
    if tensors is None:
        return None
    return {name: x.to("cpu", torch.float64) for name, x in tensors.items()}
