"""A bad argument raises the documented error, which names it, before any launch and before a tensor
that would be written in place has another gradient.

A library may raise anything, or interpret the argument sensibly, such as 4.0 for a window of 4: the
oracle then judges the results. It must not return other numbers or access memory out of bounds.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy
import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.contexts import CONTEXTS
from properties.cases.inputs import Inputs, Results
from properties.catalogue.op import Op, Role
from properties.device import recorded_launches
from properties.laws.expect import fail, is_right
from properties.laws.law import Law, Run, Subject, with_a_row
from properties.laws.mistakes import BOUNDARIES, SIZES, Mistake, mistakes
from properties.simulator import SimulationError
from properties.verdict.oracle import oracle_results

# Errors that mean harm: a kernel went out of bounds or does not terminate. On a GPU that raises
# nothing, or kills the device.
_HARM: tuple[type[Exception], ...] = (SimulationError, torch.AcceleratorError)


def check(run: Run) -> float:
    if not run.subject.target.documented_errors:
        _expect_no_harm(run)
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
    for mistake in _in_turn(op, case, inputs):
        given = {**inputs.given(), **mistake.arguments}
        extra = {n: given.pop(n, v) for n, v in implementation.items()}
        _expect_refusal(run, mistake, run.subject.function(op), {**given, **extra})
        if mistake.everywhere:
            _expect_refusal(run, mistake, op.oracle, given)


def _in_turn(op: Op, case: Case, inputs: Inputs) -> list[Mistake]:
    """All mistakes, in an order of the case's own: each kind is as likely to come first.

    The law ends with the first that is not refused, which would hide all others. A place follows
    from the name, so that another mistake in the list moves none.
    """

    def place(name: str) -> float:
        return Random(f"{case.seed} {name}").random()

    return sorted(mistakes(op, case, inputs), key=lambda m: (place(_kind(m)), place(m.what)))


def _kind(mistake: Mistake) -> str:
    return mistake.kind or mistake.what


def _expect_refusal(
    run: Run,
    mistake: Mistake,
    function: Callable[..., Any],
    given: dict[str, Any],
) -> None:
    op, case, subject = run.op, run.case, run.subject
    where = f"{function.__module__}.{op.name} with {mistake.what}"
    # Only kernels must handle autocast: PyTorch's operations reject float16 under bfloat16
    # autocast.
    context = "grad" if function is op.oracle else case.context
    given = _with_history(op, given)
    written = _written(op, given)
    before = None if written is None else written.grad_fn
    within = CONTEXTS[context](subject.device.type)
    with recorded_launches() as launched, subject.claiming(case), within:
        try:
            function(**given)
        except (ValueError, TypeError) as error:
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


def _expect_no_harm(run: Run) -> None:
    """Check that a library raises or is right on each mistake, if it is right without one."""
    op, inputs = run.op, run.inputs()
    nothing = Mistake("nothing", {}, ())
    if not _is_harmless(run, nothing, inputs):
        return
    for mistake in _in_turn(op, run.case, inputs):
        if _may_lose_the_device(mistake, run.subject) or not _has_one_meaning(op, mistake, inputs):
            continue
        if not _is_harmless(run, mistake, inputs):
            fault = f"{_kind(mistake)} was not refused"
            text = f"{mistake.what} was not refused, and what came of it is wrong"
            fail(run, text, fault=fault)


def _is_harmless(run: Run, mistake: Mistake, inputs: Inputs) -> bool:
    """Whether a call is rejected or right. An error inside a kernel is no rejection."""
    op, case, subject = run.op, run.case, run.subject
    given: dict[str, Any] = {"mode": case.mode, "tile": case.tile, **inputs.given()}
    try:
        with CONTEXTS[case.context](subject.device.type):
            returned = subject.function(op)(**{**given, **mistake.arguments})
        if subject.device.type == "cuda":
            torch.cuda.synchronize()
    except _HARM:
        return False
    except Exception:
        # A call without a mistake must not be rejected.
        return bool(mistake.arguments)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    got = {o.name: y for o, y in zip(op.outputs, outputs, strict=True) if y is not None}
    return _right(run, mistake, inputs, got)


def _may_lose_the_device(mistake: Mistake, subject: Subject) -> bool:
    """Whether an unnoticed mistake sends a kernel out of bounds, which only the simulator
    survives.
    """
    return subject.device.type == "cuda" and mistake.kind in (SIZES, BOUNDARIES)


def _has_one_meaning(op: Op, mistake: Mistake, inputs: Inputs) -> bool:
    """Whether numbers given for flags are truthy where the flag of the case is true."""
    flags = {o.name for o in op.options if isinstance(o.default, bool)} & set(mistake.arguments)
    return all(bool(mistake.arguments[name]) == inputs.options[name] for name in flags)


def _right(run: Run, mistake: Mistake, inputs: Inputs, got: Results) -> bool:
    """Whether results equal the oracle's for a legal value in place of the bad argument."""
    op, case = run.op, run.case
    if not all(isinstance(y, Tensor) and y.is_floating_point() for y in got.values()):
        return False
    # A library may return nothing for no heads: those are no other numbers.
    if not any(y.numel() for y in got.values()) or _announces_itself(op, mistake, inputs, got):
        return True
    legal_inputs = inputs
    dtype = case.dtype
    for name, bad in mistake.arguments.items():
        legal = _legal(op, name, bad, inputs)
        if isinstance(legal, Tensor):
            legal_inputs = legal_inputs.with_tensors({name: legal})
        else:
            kept = {n: x for n, x in legal_inputs.tensors.items() if n != name}
            legal_inputs = replace(legal_inputs, tensors=kept).with_options(**{name: legal})
        if isinstance(bad, Tensor) and bad.dtype == torch.bfloat16:
            dtype = "bfloat16"
    case = replace(case, dtype=dtype)
    # Nobody promises the dtype of what comes of a mistake.
    dtypes = {output.name: output.dtype_in(case) for output in op.outputs}
    cast = {name: y.to(dtypes[name]) for name, y in got.items()}
    try:
        right = is_right(replace(run, case=case), legal_inputs, cast)
    except (ValueError, TypeError):
        # The oracle rejects an argument without a legal value.
        return False
    return right or _fails_anyway(run, mistake, legal_inputs)


def _fails_anyway(run: Run, mistake: Mistake, legal_inputs: Inputs) -> bool:
    """Whether an option of a legal type gives wrong results too, which are then not those of the
    mistake.
    """
    options = {option.name for option in run.op.options}
    # A large number stands for infinity, which is itself no legal value.
    stands_in = any(isinstance(x, float) and math.isinf(x) for x in mistake.arguments.values())
    if not mistake.arguments or not options.issuperset(mistake.arguments) or stands_in:
        return False
    return not _is_harmless(run, Mistake("nothing", {}, ()), legal_inputs)


def _announces_itself(op: Op, mistake: Mistake, inputs: Inputs, got: Results) -> bool:
    """Whether a NaN or infinite argument shows up as NaN or infinity in every affected result."""
    numbers = [n for n, x in mistake.arguments.items() if isinstance(x, float)]
    if all(math.isfinite(mistake.arguments[name]) for name in numbers):
        return False
    try:
        want = oracle_results(op, inputs.with_options(**dict.fromkeys(numbers, 1.0)), None)
    except ValueError:
        # A bound from below is negative.
        want = oracle_results(op, inputs.with_options(**dict.fromkeys(numbers, -1.0)), None)
    shown = [o.name for o in op.outputs if o.asked_by is None]
    return all(bool((want[n][got[n].cpu().isfinite()] == 0).all()) for n in shown)


def _legal(op: Op, name: str, bad: Any, inputs: Inputs) -> Any:
    """The likely meaning of a bad argument: the same numbers in the right shape, dtype and type."""
    right = inputs.tensors.get(name)
    if right is not None and isinstance(bad, (Tensor, list)):
        numbers = torch.as_tensor(bad, device=right.device)
        same = numbers.numel() == right.numel()
        return numbers.reshape(right.shape).to(right.dtype) if same else bad
    option = next((o for o in op.options if o.name == name), None)
    if isinstance(bad, (Tensor, numpy.generic)) and numpy.ndim(bad) == 0:
        bad = bad.item()
    if option is not None and isinstance(option.default, bool):
        return bool(bad)
    if isinstance(bad, bool):
        return int(bad)
    if isinstance(bad, float) and math.isinf(bad):
        return math.copysign(1e300, bad)
    return int(bad) if isinstance(bad, float) and bad.is_integer() else bad


def adapt(op: Op, case: Case) -> Case:
    """Give each argument its own tensor, so that one can be wrong alone; avoid `torch.compile`,
    which raises errors of its own.
    """
    context = "grad" if case.context == "compiled" else case.context
    return with_a_row(op, op.settle(replace(case, same={}, context=context)))


LAW = Law("rejection", check, adapt)
