"""On small integers nothing is rounded: kernel and oracle agree bit for bit in every precision."""

from dataclasses import replace

from properties.case import Case
from properties.catalogue.op import Op
from properties.laws.judge import expect_identical, oracle_results
from properties.laws.law import Law, Subject, with_options

# Powers of two, none of them the sentinel -1; a quotient is never exact.
SCALES = (0.5, -0.5, 2.0, -2.0, 1.0)


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    got = subject.run(op, case, inputs, gradients_of)
    want = oracle_results(op, inputs, gradients_of)
    expect_identical("exactness", op, case, subject, got, want, "the oracle")
    return 0.0


def adapt(op: Op, case: Case) -> Case:
    scale = SCALES[case.seed % len(SCALES)]
    options = with_options(case, scale=scale, normalize=False)
    return op.settle(replace(case, values="integers", options=options))


LAW = Law("exactness", check, adapt)
