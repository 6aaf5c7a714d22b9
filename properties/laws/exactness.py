"""On small integers nothing rounds: kernel and oracle agree bit for bit in every dtype.

A state that sums is float32 in every dtype, so it must hold integers that the dtype cannot. The
same holds for the products and sums of an op with a weight shared by tokens, before they are
rounded once.
"""

from dataclasses import replace

from properties.cases.case import Case
from properties.cases.tensors import on_integers
from properties.catalogue.kinds import is_delta
from properties.catalogue.op import Argument, Op, Role
from properties.laws.expect import expect_identical
from properties.laws.law import Law, Run
from properties.verdict.oracle import oracle_results

# Values around 200 still fit into 8 bits, but a few of them sum to more than 8 or 11 bits.
_LARGE = 200
# A product such as 49 · 51 has 12 bits.
_WIDE = 50
# The sum of this many products of at most 2^14 stays within float32's exact integers, 2^24.
_MOST_TOKENS = 2**10


def check(run: Run) -> float:
    op, case = run.op, run.case
    if case.values != "integers":
        return 0.0  # a bound wants an option with which integers round
    inputs, cotangents = run.inputs(), run.cotangents()
    got = run.call(inputs, cotangents)
    want = oracle_results(op, inputs, cotangents)
    expect_identical(run, got, want, "the oracle")
    states = [o.name for o in op.outputs if o.dtype == "float32" and o.name in got]
    if states and returns_sums(op):
        value = next(a.name for a in op.arguments if a.role is Role.VALUE)
        large = inputs.with_tensors({value: inputs.tensors[value] + _LARGE})
        got, want = run.call(large), oracle_results(op, large, None)
        got, want = ({name: x[name] for name in states} for x in (got, want))
        against = f"the oracle with {_LARGE} added to {value}"
        expect_identical(run, got, want, against)
    tokens = case.sequences * max(case.lengths, default=0)
    if tokens <= _MOST_TOKENS and any(_is_weight(argument) for argument in op.arguments):
        wide = {n: x + _WIDE for n, x in inputs.tensors.items() if x.dtype == case.torch_dtype}
        inputs = inputs.with_tensors(wide)
        cotangents = {name: x + _LARGE for name, x in cotangents.items()}
        got = run.call(inputs, cotangents)
        want = oracle_results(op, inputs, cotangents)
        against = f"the oracle with {_WIDE} added to inputs, {_LARGE} to gradients of outputs"
        expect_identical(run, got, want, against)
    return 0.0


def returns_sums(op: Op) -> bool:
    """Whether it returns states that are sums of `k vᵀ` and never round; a delta rule's may."""
    roles = {argument.role for argument in op.arguments}
    returned = any(output.dtype == "float32" for output in op.outputs)
    return returned and {Role.QUERY, Role.KEY, Role.VALUE} <= roles and not is_delta(op)


def _is_weight(argument: Argument) -> bool:
    """Whether all tokens share an argument, so that its gradient sums over them."""
    shared = not {"T", "S", "N"} & {*argument.dims.split()}
    return shared and argument.dtype == "case" and argument.differentiable


def adapt(op: Op, case: Case) -> Case:
    """Use small integers, in separate tensors, since the law adds numbers to some."""
    return on_integers(op, replace(case, same={}))


LAW = Law("exactness", check, adapt, uses=("scale",))
