"""Outputs, states and all gradients agree with the oracle within the error budget."""

from properties.laws.expect import compare_with_oracle
from properties.laws.law import Law, Run


def check(run: Run) -> float:
    inputs, gradients_of = run.inputs(), run.cotangents()
    got = run.call(inputs, gradients_of)
    return compare_with_oracle(run, inputs, gradients_of, got)


LAW = Law("differential", check)
