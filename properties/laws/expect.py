"""Comparison of results: bit for bit, or with the oracle within the error budget."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.sequences import dims_of
from properties.cases.tensors import work
from properties.catalogue.op import Function, Op
from properties.laws.law import Run, Violation
from properties.targets.ledger import Ledger
from properties.verdict import BY_DTYPE, Budget, Comparison, compare
from properties.verdict.oracle import OracleCall, gradient_parts, in_float64, oracle_results
from properties.verdict.precision import finer_than
from properties.verdict.report import report
from properties.verdict.sigma import DRAWS, FEW_DRAWS, MANY_DRAWS

# Beyond this many numbers, in some tens of tensors each, the form over all pairs of tokens, whose
# budgets are sharper, may not fit into memory.
_MOST_WORK = 1e7


def compare_with_oracle(
    run: Run,
    inputs: Inputs,
    cotangents: Results,
    got: Results,
    left_out: Results | None = None,
    called: Callable[[Function], Function] | None = None,
) -> float:
    """Compare results with the oracle; return the worst error as a fraction of its budget.

    A budget comes from perturbed runs of a form of the oracle. Results beyond one budget are held
    to the next: of more runs, of the definition in mode `fused_recurrent`, of many runs; and then
    to the larger of the last and those of finer precisions.

    Args:
        left_out: result → bool, true where an element is not judged.
        called: turns a form of the oracle into a function that calls it as the law calls the
            target, if that is not once: budgets are of that function.

    Raises:
        Violation: an error exceeds its budget, or a result is missing.
    """
    op, case = run.op, run.case
    asked = case.to_json(), inputs.tensors, inputs.options, cotangents
    make = partial(oracle_results, op, inputs, cotangents)
    want = run.subject.recall((op.name, "results", *asked), make)
    got, want = _matched(run, got, want)
    # The oracle is on the CPU.
    got = {name: x.cpu() for name, x in got.items()}
    left_out = {name: x.cpu() for name, x in (left_out or {}).items()}
    parts = gradient_parts(op, inputs, cotangents)
    for name in _overflowing_twins(case, got):
        left_out[name] = ~got[name].isfinite() & _near_infinity(parts[name])
    for name, mask in left_out.items():
        got[name] = torch.where(mask, want[name].to(got[name]), got[name])

    # A result equal to the rounded oracle needs no budget, which takes a minute for integers in
    # thousands of tokens.
    if _all_passed(_compared(got, want, dict.fromkeys(got))):
        return 0.0
    dtypes = {name: x.dtype for name, x in got.items()}
    call = OracleCall(op, case, inputs, in_float64(cotangents), want, dtypes, parts, called)
    return _verdict(run, _within_a_budget(run, call, got, (*asked, called is None)), "the oracle")


def _within_a_budget(
    run: Run, call: OracleCall, got: Results, asked: tuple[object, ...]
) -> list[Comparison]:
    """Compare results with the oracle's within one budget after the other, until all pass that can.

    Args:
        asked: what the oracle's answer depends on.
    """
    op, case, recall = run.op, run.case, run.subject.recall
    # Other laws join the results of calls, which were rounded in between, as autograd adds rounded
    # gradients of a tensor that is passed twice.
    alone = run.law == "differential" and not case.same
    within = torch.float32 if op.in_float32 and alone else case.torch_dtype
    precision = BY_DTYPE[within]
    about = op.name, "budgets", *asked, call.dtypes, within
    attempts = _attempts(op, case, quick=run.subject.quick)
    _, quiet = attempts[0]
    comparisons: list[Comparison] = []
    allowed: dict[str, Budget] = {}
    for draws, form in attempts:
        make = partial(call.budgets, precision, form=form, draws=draws)
        allowed = recall((*about, draws, form is quiet), make)
        comparisons = _compared(got, call.want, allowed)
        if all(c.passed or c.hopeless for c in comparisons):
            return comparisons
    for finer in () if op.multilinear(case) else finer_than(precision):
        make = partial(call.budgets, finer, form=quiet, draws=DRAWS)
        theirs = recall((*about, finer), make)
        allowed = {name: budget.joined(theirs[name]) for name, budget in allowed.items()}
        comparisons = _compared(got, call.want, allowed)
    return comparisons


def _compared(
    got: Results, want: Results, allowed: Mapping[str, Budget | None]
) -> list[Comparison]:
    return [compare(name, x, want[name], allowed[name]) for name, x in got.items()]


def _all_passed(comparisons: list[Comparison]) -> bool:
    return all(comparison.passed for comparison in comparisons)


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


def is_right(run: Run, inputs: Inputs, got: Results) -> bool:
    """Whether results without gradients are the oracle's within the budget, no known failure being
    excused.
    """
    strict = replace(run, subject=replace(run.subject, ledger=Ledger()))
    try:
        compare_with_oracle(strict, inputs, {}, got)
    except Violation:
        return False
    return True


def expect_identical(
    run: Run,
    got: Results,
    want: Results,
    against: str,
    *,
    divisor: float | None = None,
) -> None:
    """Require equal bits, after rounding `want` to the dtype of `got`.

    Args:
        divisor: treat two elements as equal that are nearly subnormal if divided by this, since
            scaling by a power of two does not commute with rounding there.

    Raises:
        Violation: a result differs or is missing.
    """
    got, want = _matched(run, got, want)
    for name in _overflowing_twins(run.case, got):
        alike = got[name].isnan() & want[name].isnan()
        got[name], want[name] = (x.masked_fill(alike, 0.0) for x in (got[name], want[name]))
    if divisor is not None:
        small = {n: _subnormal(x / divisor) & _subnormal(want[n] / divisor) for n, x in got.items()}
        got = {name: x.masked_fill(small[name], 0.0) for name, x in got.items()}
        want = {name: want[name].masked_fill(small[name], 0.0) for name in got}
    _verdict(run, _compared(got, want, dict.fromkeys(got)), against)


def expect_same(
    run: Run,
    inputs: Inputs,
    cotangents: Results,
    got: Results,
    want: Results,
    against: str,
) -> float:
    """Require equal bits; if bits are not comparable, require that `got` is within its budget.

    Returns:
        The worst error as a fraction of its budget, or 0 if bits were compared.
    """
    if not run.compares_bits:
        return compare_with_oracle(run, inputs, cotangents, got)
    expect_identical(run, got, want, against)
    return 0.0


def _overflowing_twins(case: Case, got: Results) -> list[str]:
    """The float16 gradients, not all finite, of tensors that are two arguments: autograd adds two
    parts, of which one or both may be infinite where the sum is not.
    """
    names = {f"d{other}" for other in case.same.values()} if case.dtype == "float16" else set()
    return [name for name in names if name in got and not bool(got[name].isfinite().all())]


def _near_infinity(parts: Tensor) -> Tensor:
    """Mark elements where one of the parts exceeds half of float16's range."""
    return (parts.abs() > torch.finfo(torch.float16).max / 2).any(0)


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
    message = f"{law} does not hold: {text}\n{case.line()}\n\n{subject.repro(law, case).line}"
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
        text = report(subject.repro(law, case), comparison, dims, against)
        also = tuple(other.name for other in failed[number + 1 :])
        excess = max(other.excess for other in failed[number:])
        subject.report(Violation(law, case, text, comparison, also, excess))
    return max((c.ratio for c in comparisons if c.passed), default=0.0)
