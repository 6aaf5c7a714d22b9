"""Outputs, states and all gradients agree with the oracle within the error budget."""

from properties.laws.expect import compare_with_oracle
from properties.laws.law import Law, Run


def check(run: Run) -> float:
    got = run.call(run.inputs(), run.cotangents())
    # Built again: a call that writes to its arguments breaks `untouched_inputs`, and may be right.
    return compare_with_oracle(run, run.inputs(), run.cotangents(), got)


LAW = Law("differential", check)
