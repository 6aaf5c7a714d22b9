"""A bad argument raises the documented error, a TypeError where the spec does, which names it,
before any launch and before a tensor that would be written in place has another gradient.

A library may raise anything, or interpret the argument sensibly, such as 4.0 for a window of 4: the
oracle then judges the results. It must not return other numbers or access memory out of bounds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from properties.cases.case import Case
from properties.cases.contexts import CONTEXTS
from properties.catalogue.op import Op, Role
from properties.device import calling, recorded_launches
from properties.laws.expect import fail
from properties.laws.harm import expect_no_harm
from properties.laws.law import Law, Run, with_a_row
from properties.laws.mistakes import Mistake, in_turn, mistakes


def check(run: Run) -> float:
    if not run.subject.target.documented_errors:
        expect_no_harm(run)
        return 0.0
    for case in (run.case, _decoding(run.op, run.case)):
        _expect_refusals(run.on(case))
    return 0.0


def _decoding(op: Op, case: Case) -> Case:
    """A step of decoding, which an op may take another way: a token, its states, no gradient."""
    refused = op.mode(case.mode).refuses
    states = {a.name for a in op.arguments if a.optional and a.role is Role.STATE} - refused
    given = tuple(a.name for a in op.arguments if a.name in {*case.given, *states})
    step = replace(case, lengths=(1,) * len(case.lengths), given=given, context="no_grad")
    return op.settle(step)


def _expect_refusals(run: Run) -> None:
    op, case = run.op, run.case
    inputs = run.inputs()
    implementation = {"mode": case.mode, "tile": case.tile}
    refuses = op.mode(case.mode).refuses
    for mistake in in_turn(mistakes(op, case, inputs), case):
        given = {**inputs.given(), **mistake.arguments}
        extra = {n: given.pop(n, v) for n, v in implementation.items()}
        function = run.subject.function(op)
        kind = _expect_refusal(run, mistake, function, {**given, **extra})
        wanted = _expect_refusal(run, mistake, op.oracle, given) if mistake.everywhere else kind
        # A mode that lacks an argument refuses each value alike, whatever its type.
        if kind is not wanted and refuses.isdisjoint(mistake.arguments):
            where = f"{function.__module__}.{op.name} with {mistake.what}"
            text = f"{where} raised {kind.__name__}, expected {wanted.__name__} as in the spec"
            fail(run, text)


def _expect_refusal(
    run: Run,
    mistake: Mistake,
    function: Callable[..., Any],
    given: dict[str, Any],
) -> type[Exception]:
    """Check a call, and return the kind of its error."""
    op, case, subject = run.op, run.case, run.subject
    where = f"{function.__module__}.{op.name} with {mistake.what}"
    # Only kernels must handle autocast: PyTorch's operations reject float16 under bfloat16
    # autocast.
    context = "grad" if function is op.oracle else case.context
    refusal: type[Exception] = ValueError
    given = _with_history(op, given)
    written = _written(op, given)
    before = None if written is None else written.grad_fn
    within = CONTEXTS[context](subject.device.type)
    with recorded_launches() as launched, subject.set_up_for(case), within:
        try:
            with calling():
                function(**given)
        except (ValueError, TypeError) as error:
            refusal = TypeError if isinstance(error, TypeError) else ValueError
            if not any(name in str(error) for name in mistake.names):
                expected = " or ".join(mistake.names)
                fail(run, f"{where} names no {expected}: {error}")
        except Exception as error:
            kind = type(error).__name__
            text = f"{where} raised {kind}, expected ValueError or TypeError: {error}"
            fail(run, text)
        else:
            fail(run, f"{where} was accepted")
    if launched:
        text = f"{where} launched {launched[0]} before it was refused"
        fail(run, text)
    if written is not None and written.grad_fn is not before:
        fail(run, f"{where} gave {op.arguments[0].name} another gradient before it was refused")
    return refusal


def _written(op: Op, given: dict[str, Any]) -> Tensor | None:
    """The tensor that a call writes in place."""
    x = given.get(op.arguments[0].name)
    return x if given.get("inplace") is True and isinstance(x, Tensor) else None


def _with_history(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, where a tensor that is written in place comes from a differentiable call."""
    x = _written(op, given)
    if x is None or not x.is_floating_point():
        return given
    # Strides may be the mistake.
    y = x.detach().requires_grad_() * 1
    return {**given, op.arguments[0].name: y} if y.stride() == x.stride() else given


def adapt(op: Op, case: Case) -> Case:
    """Give each argument its own tensor, so that one can be wrong alone; avoid `torch.compile`,
    which raises errors of its own.
    """
    context = "grad" if case.context == "compiled" else case.context
    return with_a_row(op, op.settle(replace(case, same={}, context=context)))


LAW = Law("rejection", check, adapt)
