"""Outputs, states and all gradients agree with the oracle within the error budget."""

from properties.cases.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import compare_with_oracle
from properties.laws.law import Law, Subject


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    got = subject.run(op, case, inputs, gradients_of)
    return compare_with_oracle("differential", op, case, subject, inputs, gradients_of, got)


LAW = Law("differential", check)
