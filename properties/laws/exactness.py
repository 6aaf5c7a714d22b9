"""On small integers nothing is rounded: kernel and oracle agree bit for bit in every precision."""

from properties.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import expect_identical, oracle_results
from properties.laws.law import Law, Subject, on_integers


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    got = subject.run(op, case, inputs, gradients_of)
    want = oracle_results(op, inputs, gradients_of)
    expect_identical("exactness", op, case, subject, got, want, "the oracle")
    return 0.0


LAW = Law("exactness", check, on_integers, uses=("scale",))
