"""Queries times -2 with the scale divided by -2 give the same bits, as only `scale · q` matters.

The factor is 2 for an implementation that takes positive scales only.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from properties.cases.case import Case
from properties.cases.inputs import Results
from properties.cases.layouts import relaid
from properties.catalogue.op import Op, Role
from properties.laws.expect import compare_with_oracle, expect_identical
from properties.laws.law import (
    Law,
    Run,
    with_known_options,
    within_bounds,
    without_float16_subnormals,
)

_OPTIONS = {"normalize": False, "use_qk_l2norm_in_kernel": False}


def check(run: Run) -> float:
    op, case = run.op, run.case
    scale = _literal(case)
    factor = next(_factors(op, case, scale), None)
    if factor is None:
        return 0.0
    inputs, cotangents = run.inputs(), run.cotangents()
    queries = [a.name for a in op.arguments if a.role is Role.QUERY]
    # Keep the layout: with another alignment a GPU need not give the same bits.
    larger = inputs.with_tensors(
        {q: relaid(factor * inputs.tensors[q], case.layout_of(q)) for q in queries}
    )
    larger = larger.with_options(scale=scale / factor)
    moved = run.call(larger, cotangents)
    if not run.subject.target.bitwise:
        # An implementation may apply the scale as two square roots, which round differently.
        return compare_with_oracle(run, larger, cotangents, moved)
    plain = run.call(inputs.with_options(scale=scale), cotangents)
    want = dict(plain)
    for name in {f"d{q}" for q in queries} & plain.keys():
        # A gradient that overflows may be finite in the call where it is smaller.
        x = plain[name]
        want[name] = torch.where(x.isinf(), moved[name], x / factor)
    which = " and ".join(queries)
    against = f"scale {scale} where {which} is {factor} times larger and scale {scale / factor}"
    expect_identical(run, moved, want, against, divisor=_divisor(case, cotangents))
    return 0.0


def _divisor(case: Case, cotangents: Results) -> float:
    """By how much a kernel may divide gradients on the way, so that they stay in float16's range:
    at most the largest cotangent, as values are not as large.
    """
    if case.dtype != "float16":
        return 1.0
    return max([1.0, *(float(x.abs().max()) for x in cotangents.values() if x.numel())])


def _literal(case: Case) -> float:
    """The number that the case's scale stands for."""
    scale = case.options["scale"]
    return case.dims["K"] ** -0.5 if scale is None or scale == -1 else float(scale)


def _factors(op: Op, case: Case, scale: float) -> Iterator[float]:
    """Factors that keep the scale within the implementation's bounds."""
    for factor in (-2.0, -4.0, 2.0, 4.0):
        moved = case.with_options(scale=scale / factor)
        # A scale of -1 is the sentinel.
        if scale != -factor and within_bounds(op, moved):
            yield factor


def adapt(op: Op, case: Case) -> Case:
    """Allow queries of any length and sign, with no option that undoes them."""
    case = without_float16_subnormals(op, with_known_options(case, **_OPTIONS))
    return op.settle(replace(case, same={}))


LAW = Law("scale_equivariance", check, adapt, uses=("scale",), options=_OPTIONS)
