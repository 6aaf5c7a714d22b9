"""The same call gives the same bits again, and no others where nobody wants a gradient."""

from properties.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import expect_identical
from properties.laws.law import Law, Subject, bits_are_comparable


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    first = subject.run(op, case, inputs, gradients_of)
    again = subject.run(op, case, inputs, gradients_of)
    expect_identical("determinism", op, case, subject, again, first, "the call before")
    # Training and inference may well be two paths through an op, or two specialisations.
    if bits_are_comparable(op, case, subject):
        got = subject.run(op, case, inputs)
        want = {name: first[name] for name in got}
        against = "the same call with gradients"
        expect_identical("determinism", op, case, subject, got, want, against)
    return 0.0


LAW = Law("determinism", check)
