"""Strides and storage offsets change no result."""

from properties.cases.case import Case
from properties.cases.layouts import LAYOUTS, SHARING, relaid
from properties.cases.sequences import tensors_of
from properties.catalogue.op import Op
from properties.laws.judge import expect_same
from properties.laws.law import Law, Subject


def check(op: Op, case: Case, subject: Subject) -> float:
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    plain = {n: x.contiguous() for n, x in tensors_of(op, inputs).items()}
    dense = {n: x.contiguous() for n, x in gradients_of.items()}
    want = subject.run(op, case, inputs.with_tensors(plain), dense)
    call = "layout_invariance", op, case, subject, inputs, gradients_of
    # Each tensor gets its own layout, so that no stride can stand in for another tensor's.
    layouts = sorted(set(LAYOUTS) - set(SHARING))
    worst = 0.0
    for shift in (case.seed, case.seed + 2):
        names = [*plain, *(f"d{n}" for n in dense)]
        chosen = {n: layouts[(shift + i) % len(layouts)] for i, n in enumerate(names)}
        tensors = {n: relaid(x, chosen[n]) for n, x in plain.items()}
        incoming = {n: relaid(x, chosen[f"d{n}"]) for n, x in dense.items()}
        got = subject.run(op, case, inputs.with_tensors(tensors), incoming)
        against = f"contiguous inputs, where they are {chosen}"
        worst = max(worst, expect_same(*call, got, want, against))
    if case.layout in SHARING or case.layouts:
        got = subject.run(op, case, inputs, gradients_of)
        against = "contiguous inputs, where they lie as the case has them"
        worst = max(worst, expect_same(*call, got, want, against))
    return worst


LAW = Law("layout_invariance", check)
