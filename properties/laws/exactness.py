"""On small integers nothing is rounded: kernel and oracle agree bit for bit in every precision.

A state that sums is float32 in every precision: it holds larger integers than the inputs' dtype.
"""

from properties.case import Case
from properties.catalogue.op import Op, Role
from properties.laws.judge import expect_identical, oracle_results
from properties.laws.law import Law, Subject, on_integers

# Beside these, 8 bits hold one more integer; a few of them sum to more than 8 bits, or 11, hold.
_LARGE = 200


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    got = subject.run(op, case, inputs, gradients_of)
    want = oracle_results(op, inputs, gradients_of)
    expect_identical("exactness", op, case, subject, got, want, "the oracle")
    states = [o.name for o in op.outputs if o.dtype == "float32" and o.name in got]
    if states and sums(op):
        value = next(a.name for a in op.arguments if a.role is Role.VALUE)
        large = inputs.with_tensors({value: inputs.tensors[value] + _LARGE})
        got, want = subject.run(op, case, large), oracle_results(op, large, None)
        got, want = ({name: x[name] for name in states} for x in (got, want))
        against = f"the oracle with {_LARGE} added to {value}"
        expect_identical("exactness", op, case, subject, got, want, against)
    return 0.0


def sums(op: Op) -> bool:
    """Whether states are sums of `k vᵀ`, with no delta rule: what that writes may be rounded."""
    roles = {argument.role for argument in op.arguments}
    delta = not {Role.UNIT_KEY, Role.LOW_RANK}.isdisjoint(roles)
    return {Role.QUERY, Role.KEY, Role.VALUE} <= roles and not delta


LAW = Law("exactness", check, on_integers, uses=("scale",))
