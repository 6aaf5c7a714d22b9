"""The same call gives the same bits again, whatever the process called before it.

Before the third call, the same tensor objects are called with other numbers (boundaries included)
and perhaps another option. Before its backward pass, other tensors of the same shapes are called.
This catches caches keyed by object, by address, or by too few arguments.
"""

from dataclasses import replace

from properties.cases.case import Case
from properties.catalogue.op import Op
from properties.laws.expect import expect_identical
from properties.laws.law import Law, Run, with_own_elements


def check(run: Run) -> float:
    inputs, cotangents = run.inputs(), run.cotangents()
    first = run.call(inputs, cotangents)
    again = run.call(inputs, cotangents)
    expect_identical(run, again, first, "the call before")
    later = run.on(replace(run.case, earlier=run.case.earlier or {}))
    # On tensor objects of its own, which the other call sees first.
    third = later.call(run.inputs(), cotangents)
    against = "the first call, before its tensors held other numbers for another call"
    expect_identical(later, third, first, against)
    return 0.0


def adapt(op: Op, case: Case) -> Case:
    """Make the case writable: no elements share an address."""
    return op.settle(with_own_elements(case))


LAW = Law("determinism", check, adapt)
