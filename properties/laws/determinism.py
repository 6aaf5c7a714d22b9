"""The same call gives the same bits again."""

from properties.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import expect_identical
from properties.laws.law import Law, Subject


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    first = subject.run(op, case, inputs, gradients_of)
    again = subject.run(op, case, inputs, gradients_of)
    expect_identical("determinism", op, case, subject, again, first, "the call before")
    return 0.0


LAW = Law("determinism", check)
