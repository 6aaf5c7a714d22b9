"""A bad argument raises the documented error, which names it, before anything is launched.

The bad arguments follow from the declaration: each tensor gets another rank, another dtype and,
alone and with all of the same dims, another size along each shared one; each option gets the values
that it declares bad.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from properties.case import Case
from properties.catalogue.op import Op
from properties.contexts import CONTEXTS
from properties.device import recorded_launches
from properties.laws.judge import fail
from properties.laws.law import Law, Subject, with_a_row
from properties.sequences import dims_of, tensors_of
from properties.tensors import Inputs


@dataclass(frozen=True)
class Mistake:
    """A call that must be refused.

    Args:
        names: arguments of which the message must name one.
        everywhere: the oracle has to refuse it as well; False where only kernels have the argument.
    """

    what: str
    arguments: dict[str, Any]
    names: tuple[str, ...]
    everywhere: bool = True


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs = subject.inputs(op, case)
    implementation = {"mode": case.mode, "tile": case.tile}
    for mistake in mistakes(op, case, inputs):
        given = {**inputs.given(), **mistake.arguments}
        extra = {n: given.pop(n, v) for n, v in implementation.items()}
        _expect_refusal(op, case, subject, mistake, subject.function(op), {**given, **extra})
        if mistake.everywhere:
            _expect_refusal(op, case, subject, mistake, op.oracle, given)
    return 0.0


def _expect_refusal(
    op: Op,
    case: Case,
    subject: Subject,
    mistake: Mistake,
    function: Callable[..., Any],
    given: dict[str, Any],
) -> None:
    where = f"{function.__module__}.{op.name} with {mistake.what}"
    there = subject.claiming(case), CONTEXTS[case.context](subject.device.type)
    with recorded_launches() as launched, there[0], there[1]:
        try:
            function(**given)
        except (ValueError, TypeError) as error:
            if not any(name in str(error) for name in mistake.names):
                expected = " or ".join(mistake.names)
                fail("rejection", op, case, subject, f"{where} names no {expected}: {error}")
        except Exception as error:
            kind = type(error).__name__
            text = f"{where} raised {kind}, expected ValueError or TypeError: {error}"
            fail("rejection", op, case, subject, text)
        else:
            fail("rejection", op, case, subject, f"{where} was accepted")
    if launched:
        text = f"{where} launched {', '.join(launched)} before it was refused"
        fail("rejection", op, case, subject, text)


def mistakes(op: Op, case: Case, inputs: Inputs) -> Iterator[Mistake]:
    """Every bad argument that the declaration of `op` implies for this case."""
    tensors = tensors_of(op, inputs)
    for name, x in tensors.items():
        yield Mistake(f"{name} of another rank", {name: x[None]}, (name,))
        yield Mistake(f"{name} of integers", {name: x.to(torch.int32)}, (name,))
        yield Mistake(f"{name} that is a list", {name: [1.0]}, (name,))
        yield Mistake(f"{name} in float64", {name: x.double()}, (name,), everywhere=False)
    dims = {n: dims_of(op, n) for n in tensors}
    alike = [[n for n in dims if dims[n] == those] for those in dict.fromkeys(dims.values())]
    for names in [*([n] for n in dims), *(those for those in alike if len(those) > 1)]:
        for axis, dim in enumerate(dims[names[0]]):
            sharing = [n for n in dims if n not in names and dim in dims[n]]
            if sharing and tensors[names[0]].shape[axis]:
                what = f"{' and '.join(names)} with {dim} larger by one"
                longer = {n: _longer(tensors[n], axis) for n in names}
                yield Mistake(what, longer, (*names, *sharing, *op.packed_by))
    for option in op.options:
        for bad in option.bad:
            yield Mistake(f"{option.name}={bad!r}", {option.name: bad}, (option.name,))
    for name in op.packed_by:
        if name in inputs.tensors:
            yield from _bad_boundaries(name, inputs.tensors[name])
    if case.packed:
        yield Mistake("packed sequences in a batch of two", _twice(op, tensors), op.packed_by)
    yield Mistake("a mode that does not exist", {"mode": "no_such_mode"}, ("mode",), False)
    for tile in (10**6, -1, "large", 1.0):
        yield Mistake(f"tile={tile!r}", {"tile": tile}, ("tile",), False)
    yield from _refused(op, case, inputs)
    yield from (Mistake(what, given, (name,)) for what, given, name in op.mistakes(case, inputs))


def _longer(x: Tensor, axis: int) -> Tensor:
    return torch.cat([x, x.narrow(axis, 0, 1)], axis)


def _twice(op: Op, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    batched = {n: dims_of(op, n).index("B") for n in tensors if "B" in dims_of(op, n)}
    return {n: torch.cat([tensors[n]] * 2, axis) for n, axis in batched.items()}


def _bad_boundaries(name: str, cu_seqlens: Tensor) -> Iterator[Mistake]:
    longer = cu_seqlens.clone()
    longer[-1] += 1
    first = cu_seqlens + 1
    first[-1] -= 1
    yield Mistake(f"{name} that ends past the tokens", {name: longer}, (name,))
    if cu_seqlens[-1] > 0:
        yield Mistake(f"{name} that ends before the tokens", {name: cu_seqlens * 0}, (name,))
        yield Mistake(f"{name} that starts at 1", {name: first}, (name,))
    if len(cu_seqlens) > 2:
        falling = cu_seqlens.clone()
        falling[1] = falling[-1] + 1
        yield Mistake(f"{name} that decreases", {name: falling}, (name,))
    yield Mistake(f"{name} of floats", {name: cu_seqlens.float()}, (name,))
    yield Mistake(f"{name} that is a list", {name: cu_seqlens.tolist()}, (name,))
    yield Mistake(f"{name} of another rank", {name: cu_seqlens[None]}, (name,))
    yield Mistake(f"{name} that is empty", {name: cu_seqlens[:0]}, (name,))


def _refused(op: Op, case: Case, inputs: Inputs) -> Iterator[Mistake]:
    """What this mode cannot do, it says."""
    for name in op.mode(case.mode).refuses:
        option = next((o for o in op.options if o.name == name), None)
        if option is not None:
            yield Mistake(f"{name} in mode {case.mode}", {name: not option.default}, (name,), False)
            continue
        model = next(x for n, x in inputs.tensors.items() if _same_dims(op, n, name))
        yield Mistake(f"{name} in mode {case.mode}", {name: -model.abs()}, (name,), False)


def _same_dims(op: Op, name: str, other: str) -> bool:
    named = {argument.name for argument in op.arguments}
    return name in named and dims_of(op, name) == dims_of(op, other)


def adapt(op: Op, case: Case) -> Case:
    """Each argument a tensor of its own, so that one alone may be wrong. No compiler, whose errors
    are of its own types."""
    context = "grad" if case.context == "compiled" else case.context
    return with_a_row(op, op.settle(replace(case, same={}, context=context)))


LAW = Law("rejection", check, adapt)
