"""A result does not depend on which other outputs or gradients are requested.

Each tensor is trained alone and frozen alone, optional outputs are requested or not, and a
cotangent for one output alone equals zeros for the others.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch

from properties.cases.case import Case
from properties.cases.inputs import Results
from properties.cases.tensors import trained
from properties.catalogue.op import Op
from properties.laws.expect import expect_same
from properties.laws.law import Law, Run, within_bounds

SOME = 6


def check(run: Run) -> float:
    op, case = run.op, run.case
    inputs, every = run.inputs(), run.cotangents()

    @cache
    def whole(loud: tuple[str, ...]) -> Results:
        cotangents = {n: x if n in loud else torch.zeros_like(x) for n, x in every.items()}
        return run.call(inputs, cotangents)

    worst = 0.0
    some = [r for r in requests(op, case, tuple(every)) if within_bounds(op, r)]
    # Each request costs a call or two; a few cases together try them all.
    for request in random.Random(case.seed).sample(some, min(SOME, len(some))):
        less = run.on(request)
        asked, cotangents = less.inputs(), less.cotangents()
        got = less.call(asked, cotangents)
        full = whole(tuple(cotangents) or tuple(every))
        want = {name: full[name] for name in got}
        against = "the call that asks for everything"
        worst = max(worst, expect_same(less, asked, cotangents, got, want, against))
    return worst


def _loud(outputs: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Sets of outputs with a cotangent: all of them, and each alone."""
    return list(dict.fromkeys([outputs, *((name,) for name in outputs)]))


def requests(op: Op, case: Case, outputs: tuple[str, ...]) -> Iterator[Case]:
    """Variants of the case's call that request less."""
    tensors = trained(op, case)
    alone = [tuple(n for n in tensors if n != one) for one in tensors]
    for frozen in (*alone, *((one,) for one in tensors if len(tensors) > 1)):
        yield replace(case, frozen=frozen)
    for loud in _loud(outputs):
        silent = tuple(name for name in outputs if name not in loud)
        yield replace(case, silent=silent, frozen=alone[case.seed % len(alone)] if alone else ())
    auxiliary = [o for o in op.outputs if o.asked_by is not None and case.options.get(o.asked_by)]
    if auxiliary:
        unasked = {o.asked_by: False for o in auxiliary if o.asked_by is not None}
        names = {o.name for o in auxiliary}
        layouts = {n: x for n, x in case.layouts.items() if n.removeprefix("d") not in names}
        for frozen in ((), *alone):
            options = {**case.options, **unasked}
            yield replace(case, options=options, frozen=frozen, layouts=layouts)


def adapt(op: Op, case: Case) -> Case:
    """Request and train everything, in a plain call."""
    asked = {o.asked_by: True for o in op.outputs if o.asked_by in case.options}
    options = {**case.options, **{name: True for name in asked if name is not None}}
    plain = replace(case, options=options, frozen=(), silent=(), context="grad", earlier=None)
    return op.settle(plain)


LAW = Law("request_invariance", check, adapt)
