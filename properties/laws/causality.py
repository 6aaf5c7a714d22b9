"""Changing later tokens changes no bit of earlier results."""

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.layouts import relaid
from properties.cases.sequences import dims_of, spans, tensors_of
from properties.cases.tensors import token_axis
from properties.catalogue.op import Op, Role
from properties.laws.expect import expect_identical
from properties.laws.law import Law, Run, with_known_options, with_own_elements

_OPTIONS = {"causal": True}


def check(run: Run) -> float:
    op, case = run.op, run.case
    inputs = run.inputs()
    cuts = _cuts(case)
    before = run.call(inputs)
    names = [name for name in before if {"T", "S"} & {*dims_of(op, name)}]
    after = run.call(_with_another_future(op, case, inputs, cuts))
    expect_identical(
        run,
        _past(op, case, {n: after[n] for n in names}, cuts),
        _past(op, case, {n: before[n] for n in names}, cuts),
        "the same call before tokens after the cut changed",
    )
    return 0.0


def _cuts(case: Case) -> list[int]:
    """For each sequence, the first position of the future; both sides are non-empty if possible.

    If keys are not the queries' own tokens, at least one query is past and one key future, if
    possible.
    """
    generator = torch.Generator().manual_seed(case.seed + 2)
    cuts = []
    for tokens, keys in zip(spans(case, "T"), spans(case, "S"), strict=True):
        queries, last = tokens[1] - tokens[0], keys[1] - keys[0]
        first = min(max(1, last - queries + 1), last)
        cuts.append(int(torch.randint(first, max(last, first + 1), (), generator=generator)))
    return cuts


def _future(op: Op, case: Case, dim: str, cuts: list[int], n: int) -> slice:
    """The tokens of sequence n that the past must not see, on the axis `dim`."""
    start, stop = spans(case, dim)[n]
    cut = cuts[n]
    if dim == "T" and op.own_keys:
        keys = spans(case, "S")[n]
        cut += (stop - start) - (keys[1] - keys[0])
    cut = min(max(cut, 0), stop - start)
    if case.options.get("reverse"):
        return slice(start, stop - cut)
    return slice(start + cut, stop)


def _with_another_future(op: Op, case: Case, inputs: Inputs, cuts: list[int]) -> Inputs:
    changed: Results = {}
    for name, x in tensors_of(op, inputs).items():
        dims = dims_of(op, name)
        # Future queries change as well; only past ones are compared.
        axis = token_axis(dims)
        if axis is None:
            continue
        x = x.clone(memory_format=torch.contiguous_format)
        batch = dims.index("B") if "B" in dims else 0
        for n in range(case.sequences):
            rows = x if case.packed else x.narrow(batch, n, 1)
            future = rows.movedim(axis, 0)[_future(op, case, dims[axis], cuts, n)]
            _change(op.argument(name).role, future)
        changed[name] = relaid(x, case.layout_of(name))
    return inputs.with_tensors(changed)


def _change(role: Role, future: Tensor) -> None:
    """Change future values within the range of their role; integers change places.

    Log decays stay negative, unsigned values stay unsigned, and a delta rule stays stable: an
    overflow would reach the past of its chunk as 0 times infinity.
    """
    match role:
        case Role.LOG_DECAY:
            future.mul_(2).sub_(0.25)
        case Role.UNIT_KEY | Role.LOW_RANK:
            future.neg_()
        case Role.STRENGTH:
            future.neg_().add_(2)
        case Role.RATE:
            future.neg_().add_(1)
        case Role.PARENT:
            future.fill_(-1)
        case Role.INDEX:
            future.copy_(future.flip(0))
        case _:
            future.mul_(2).add_(0.5)


def _past(op: Op, case: Case, results: Results, cuts: list[int]) -> Results:
    """The results with everything of the future set to zero."""
    kept = {}
    for name, y in results.items():
        dims = dims_of(op, name)
        axis = dims.index("T")
        y = y.clone()
        for n in range(case.sequences):
            rows = y if case.packed else y.narrow(0, n, 1)
            rows.movedim(axis, 0)[_future(op, case, "T", cuts, n)] = 0
        kept[name] = y
    return kept


def adapt(op: Op, case: Case) -> Case:
    """Make the case causal, with rows that do not share memory and so can have different pasts."""
    case = with_own_elements(case)
    return op.settle(with_known_options(case, **_OPTIONS))


LAW = Law("causality", check, adapt, uses=("causal",), options=_OPTIONS)
