"""Options reach the kernel and affect only what they should.

An auxiliary flag changes no other output. An option that changes the oracle changes the
implementation. A call with another option leaves nothing behind: repeating the first call gives the
same bits. A float32 tensor beside 16-bit ones is not rounded to theirs.
"""

from dataclasses import replace

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.tensors import shape, sizes
from properties.catalogue.op import Op, Option
from properties.laws.expect import expect_identical, expect_same, fail, is_right
from properties.laws.law import Law, Run, within_bounds
from properties.verdict.oracle import oracle_results

# So many changed elements are no accident of a kernel's own roundings.
_ENOUGH = 4
# A kernel may round a number's product with another, which often comes out alike whether the number
# was rounded or not: of so many numbers, not for all.
_MANY = 64


def check(run: Run) -> float:
    op, case = run.op, run.case
    inputs = run.inputs()
    changed = [o for o in op.options if not o.auxiliary and _may_be_default(op, case, o)]
    option = changed[case.seed % len(changed)] if changed else None
    other = inputs
    if option is not None:
        inputs, other = _with_default(op, case, inputs, option)
    first = run.call(inputs)
    for name in case.float32:
        _expect_all_digits_are_read(run, inputs, name, first)
    worst = _compare_with_less(run, inputs, first)
    if option is not None:
        _expect_an_effect(run, inputs, other, option, first)
    return worst


def _compare_with_less(run: Run, inputs: Inputs, first: Results) -> float:
    """Compare a call with one that asks for no additional output."""
    op, case = run.op, run.case
    unasked = {o.name: False for o in op.options if o.auxiliary and o.name in inputs.options}
    less = run.on(case.with_options(**unasked))
    if not unasked or not within_bounds(op, less.case):
        return 0.0
    fewer = inputs.with_options(**unasked)
    asked = {o.name for o in op.outputs if o.asked_by in unasked}
    want = {name: y for name, y in first.items() if name not in asked}
    against = f"the call with {', '.join(unasked)}"
    return expect_same(less, fewer, {}, less.call(fewer), want, against)


def _expect_an_effect(
    run: Run, inputs: Inputs, other: Inputs, option: Option, first: Results
) -> None:
    """Check that an option changes what it changes in the oracle, and no later call without it.

    Args:
        other: the inputs with the option at its default.
        first: the results for `inputs`.
    """
    op = run.op
    different = run.call(other)
    again = run.call(inputs)
    against = f"the same call before one with the default of {option.name}"
    expect_identical(run, again, first, against)
    before, after = oracle_results(op, inputs, None), oracle_results(op, other, None)
    for name, y in first.items():
        # Compare in the returned dtype: in float16 all of a result may be 0 or infinite.
        told = (x[name].to(y.dtype).double() for x in (before, after))
        ignored = _far_apart(*told) and torch.equal(y, different[name])
        # A result that cancels to its last digits may be 0 with any option.
        if ignored and not (is_right(run, inputs, first) and is_right(run, other, different)):
            value = _value(run.case, option)
            fail(run, f"{option.name}={value!r} gives the same {name} as its default")


def _expect_all_digits_are_read(run: Run, inputs: Inputs, name: str, first: Results) -> None:
    """Check that some bit changes where a float32 tensor is rounded to 16 bits, if that changes a
    tenth of a result of the oracle, rounded to 16 bits too.

    All that depends on one number may round alike: if few numbers are rounded, results must change
    by more than a unit. A tensor of ones, as unit keys of one channel, decides nothing: a kernel
    may round its product with another, which is the other itself.
    """
    op, case = run.op, run.case
    # The argument may be another argument's tensor, or one that a bound or the default leaves out.
    if name not in inputs.tensors:
        return
    rounded = inputs.tensors[name].to(case.torch_dtype).to(torch.float32)
    if torch.equal(rounded, inputs.tensors[name]):
        return
    others = [x for n, x in inputs.tensors.items() if n != name and x.is_floating_point()]
    if any(((x == 0) | (x.abs() == 1)).all() for x in others):
        return
    other = inputs.with_tensors({name: rounded})
    before, after = (oracle_results(op, each, None) for each in (inputs, other))
    few = (rounded != inputs.tensors[name]).sum() < _MANY
    unit = torch.finfo(case.torch_dtype).eps if few else 0.0
    changed = {}
    for n in first:
        x, y = (each[n].to(case.torch_dtype).double() for each in (before, after))
        changed[n] = (x - y).abs() > unit * x.abs()
    if not any(x.sum() >= max(_ENOUGH, x.numel() / 10) for x in changed.values()):
        return
    got = run.call(other)
    if all(torch.equal(y, got[n]) for n, y in first.items()):
        text = f"{name} in float32 gives the same as {name} rounded to {case.dtype}"
        fail(run, text)


def _value(case: Case, option: Option) -> object:
    return case.options.get(option.name, option.default)


def _may_be_default(op: Op, case: Case, option: Option) -> bool:
    """Whether an option is not at its default but could be, with the others and the numbers
    unchanged.
    """
    moved = case.with_options(**{option.name: option.default})
    if _value(case, option) == option.default or not within_bounds(op, moved):
        return False
    return case.values != "wide_range" or op.of_any_size(moved) == op.of_any_size(case)


def _with_default(op: Op, case: Case, inputs: Inputs, option: Option) -> tuple[Inputs, Inputs]:
    """The inputs, and the same with one option at its default.

    Both omit optional tensors whose size depends on the option, such as a state.
    """
    other = op.settle(case.with_options(**{option.name: option.default}))
    known = sizes(op, other)
    kept = dict(inputs.tensors)
    for argument in op.arguments:
        expected = shape(other, argument, known)
        if argument.optional and argument.name in kept and kept[argument.name].shape != expected:
            del kept[argument.name]
    kept = op.carried_over(other, kept)
    # An option that is a list is passed as a tensor.
    rest = {name: x for name, x in kept.items() if name != option.name}
    options = {**inputs.options, option.name: other.options[option.name]}
    return replace(inputs, tensors=kept), replace(inputs, tensors=rest, options=options)


def _far_apart(x: Tensor, y: Tensor) -> bool:
    """Whether two results of the oracle differ by more than any rounding."""
    if x.shape != y.shape:
        return False
    x, y = x.nan_to_num(), y.nan_to_num()
    largest = torch.maximum(x.abs(), y.abs()).max() if x.numel() else torch.zeros(())
    return bool((x - y).abs().max() > 0.1 * largest) if largest > 0 else False


LAW = Law("plumbing", check)
