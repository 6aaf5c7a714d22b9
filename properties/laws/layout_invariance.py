"""Strides and storage offsets change no result."""

from properties.cases.layouts import LAYOUTS, OVERLAPPING, relaid
from properties.cases.sequences import tensors_of
from properties.laws.expect import expect_same
from properties.laws.law import Law, Run


def check(run: Run) -> float:
    op, case = run.op, run.case
    inputs, cotangents = run.inputs(), run.cotangents()
    plain = {n: x.contiguous() for n, x in tensors_of(op, inputs).items()}
    dense = {n: x.contiguous() for n, x in cotangents.items()}
    want = run.call(inputs.with_tensors(plain), dense)
    # Each tensor gets its own layout, so that no stride can stand in for another tensor's.
    layouts = sorted(set(LAYOUTS) - set(OVERLAPPING))
    worst = 0.0
    for shift in (case.seed, case.seed + 2):
        names = [*plain, *(f"d{n}" for n in dense)]
        chosen = {n: layouts[(shift + i) % len(layouts)] for i, n in enumerate(names)}
        tensors = {n: relaid(x, chosen[n]) for n, x in plain.items()}
        relaid_cotangents = {n: relaid(x, chosen[f"d{n}"]) for n, x in dense.items()}
        got = run.call(inputs.with_tensors(tensors), relaid_cotangents)
        against = f"contiguous inputs, where they are {chosen}"
        worst = max(worst, expect_same(run, inputs, cotangents, got, want, against))
    if case.layout in OVERLAPPING or case.layouts:
        got = run.call(inputs, cotangents)
        against = "contiguous inputs, where they lie as the case has them"
        worst = max(worst, expect_same(run, inputs, cotangents, got, want, against))
    return worst


LAW = Law("layout_invariance", check)
