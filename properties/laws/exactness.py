"""On small integers nothing is rounded: kernel and oracle agree bit for bit in every precision.

A state that sums is float32 in every precision: it holds larger integers than the inputs' dtype.
So do the products and sums of an op whose tokens share a weight, until a result is rounded once.
"""

from dataclasses import replace

from properties.cases.case import Case
from properties.cases.tensors import on_integers
from properties.catalogue.kinds import is_delta
from properties.catalogue.op import Argument, Op, Role
from properties.laws.judge import expect_identical, oracle_results
from properties.laws.law import Law, Subject

# Beside these, 8 bits hold one more integer; a few of them sum to more than 8 bits, or 11, hold.
_LARGE = 200
# A product of 49 and 51 has 12 bits.
_WIDE = 50
# Of so many tokens the sum of such products, at most 2^14 each, is below 2^24, float32's integers.
_MOST_TOKENS = 2**10


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
    tokens = case.sequences * max(case.lengths, default=0)
    if tokens <= _MOST_TOKENS and any(_is_weight(argument) for argument in op.arguments):
        wide = {n: x + _WIDE for n, x in inputs.tensors.items() if x.dtype == case.torch_dtype}
        inputs = inputs.with_tensors(wide)
        gradients_of = {name: x + _LARGE for name, x in gradients_of.items()}
        got = subject.run(op, case, inputs, gradients_of)
        want = oracle_results(op, inputs, gradients_of)
        against = f"the oracle with {_WIDE} added to inputs, {_LARGE} to gradients of outputs"
        expect_identical("exactness", op, case, subject, got, want, against)
    return 0.0


def sums(op: Op) -> bool:
    """Whether states are sums of `k vᵀ`, with no delta rule: what that writes may be rounded."""
    roles = {argument.role for argument in op.arguments}
    return {Role.QUERY, Role.KEY, Role.VALUE} <= roles and not is_delta(op)


def _is_weight(argument: Argument) -> bool:
    """Whether all tokens share an argument, so that its gradient is a sum over them."""
    shared = not {"T", "S", "N"} & {*argument.dims.split()}
    return shared and argument.dtype == "case" and argument.differentiable


def adapt(op: Op, case: Case) -> Case:
    """Small integers in tensors of their own, as some of them get a number added."""
    return on_integers(op, replace(case, same={}))


LAW = Law("exactness", check, adapt, uses=("scale",))
