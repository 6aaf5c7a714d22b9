"""Outputs, states and all gradients agree with the oracle within the error budget."""

from properties.laws.expect import compare_with_oracle
from properties.laws.law import Law, Run


def check(run: Run) -> float:
    inputs, cotangents = run.inputs(), run.cotangents()
    got = run.call(inputs, cotangents)
    return compare_with_oracle(run, inputs, cotangents, got)


LAW = Law("differential", check)
