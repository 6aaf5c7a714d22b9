"""Judge what another library makes of a bad argument, for the law `rejection`.

It may raise anything or be right. It must not return other numbers or access memory out of bounds.
"""

import math
from dataclasses import replace
from typing import Any

import numpy
import torch
from torch import Tensor

from properties.cases.contexts import CONTEXTS
from properties.cases.inputs import Inputs, Results
from properties.catalogue.op import Op
from properties.device import calling
from properties.laws.expect import fail, is_right
from properties.laws.law import Run, Subject
from properties.laws.mistakes import BOUNDARIES, SIZES, Mistake, in_turn, mistakes
from properties.simulator import SimulationError
from properties.verdict.oracle import oracle_results

# Errors that mean harm: a kernel went out of bounds or does not terminate. On a GPU that raises
# nothing, or kills the device.
_HARM: tuple[type[Exception], ...] = (SimulationError, torch.AcceleratorError)
_NOTHING = Mistake("nothing", {}, ())


def expect_no_harm(run: Run) -> None:
    """Check that a library raises or is right on each mistake, if it is right without one."""
    op, inputs = run.op, run.inputs()
    if not _is_harmless(run, _NOTHING, inputs):
        return
    for mistake in in_turn(mistakes(op, run.case, inputs), run.case):
        if _may_lose_the_device(mistake, run.subject) or not _has_one_meaning(op, mistake, inputs):
            continue
        if not _is_harmless(run, mistake, inputs):
            fault = f"{mistake.group} was not refused"
            text = f"{mistake.what} was not refused, and what came of it is wrong"
            fail(run, text, fault=fault)


def _is_harmless(run: Run, mistake: Mistake, inputs: Inputs) -> bool:
    """Whether a call is rejected or right. An error inside a kernel is no rejection."""
    op, case, subject = run.op, run.case, run.subject
    given: dict[str, Any] = {"mode": case.mode, "tile": case.tile, **inputs.given()}
    try:
        with CONTEXTS[case.context](subject.device.type), calling():
            returned = subject.function(op)(**{**given, **mistake.arguments})
        if subject.device.type == "cuda":
            torch.cuda.synchronize()
    except _HARM:
        return False
    except Exception:
        # A call without a mistake must not be rejected.
        return bool(mistake.arguments)
    return _right(run, mistake, inputs, op.named(returned))


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
    # The dtype of the result of a bad call is not promised.
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
    return not _is_harmless(run, _NOTHING, legal_inputs)


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
