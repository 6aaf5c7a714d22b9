"""Options reach the kernel and stay where they belong.

An auxiliary flag changes no other output, and a call leaves nothing behind: after another call with
other options, the first gives the same bits again.
"""

from dataclasses import replace

from properties.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import expect_identical
from properties.laws.law import Law, Subject
from properties.tensors import Inputs


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs = subject.inputs(op, case)
    first = subject.run(op, case, inputs)
    quiet = {o.name: False for o in op.options if o.auxiliary and o.name in inputs.options}
    if quiet:
        got = subject.run(op, case, inputs.with_options(**quiet))
        asked = {o.name for o in op.outputs if o.asked_by in quiet}
        want = {name: y for name, y in first.items() if name not in asked}
        against = f"the call with {', '.join(quiet)}"
        expect_identical("plumbing", op, case, subject, got, want, against)
    defaults = {o.name: o.default for o in op.options if o.name in inputs.options}
    subject.run(op, case, _legal(op, case, inputs, defaults))
    again = subject.run(op, case, inputs)
    against = "the same call before one with default options"
    expect_identical("plumbing", op, case, subject, again, first, against)
    return 0.0


def _legal(op: Op, case: Case, inputs: Inputs, options: dict[str, object]) -> Inputs:
    """Other options may need other tensors, a wider state for example; those are left out."""
    settled = op.settle(replace(case, options={**case.options, **options}))
    tensors = {n: x for n, x in inputs.tensors.items() if n != "initial_state"}
    kept = {n: v for n, v in settled.options.items() if n in inputs.options}
    return Inputs(tensors, {**inputs.options, **kept})


LAW = Law("plumbing", check)
