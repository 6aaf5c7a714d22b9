"""The two forms of an oracle agree, and its gradients are those of its outputs."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from properties.cases.calls import outputs_and_gradients, transformable
from properties.cases.case import Case
from properties.cases.extents import ORDINARY
from properties.cases.inputs import Inputs, Results
from properties.cases.strategies import cases
from properties.cases.tensors import build, build_cotangents
from properties.catalogue import OPS, Op
from properties.catalogue.op import REFERENCE, Function, Role
from properties.targets.oracle import Oracle
from properties.verdict import Computation, Precision, budgets, compare
from properties.verdict.compare import Budget
from properties.verdict.oracle import exact_scores
from properties.verdict.sigma import DRAWS, FEW_DRAWS

FLOAT64 = Precision("float64", 2.0**-53, 2.0**-1022)


def _near(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether every element differs by at most twice the error of a sum of 256 terms without
    cancellation, which needs no budget, as is so in half of the cases.
    """
    return x.shape == y.shape and bool(torch.isclose(x, y, rtol=2.0**-44, atol=0.0).all())


def _forms_agree(op: Op, case: Case, inputs: Inputs) -> None:
    cotangents = {n: x.double() for n, x in build_cotangents(op, case).items()}
    first = outputs_and_gradients(op, op.oracle, inputs, cotangents)
    second = outputs_and_gradients(op, op.second_form, inputs, cotangents)

    def budget(form: Function, results: Results, draws: int) -> dict[str, Budget]:
        def of(tensors: Mapping[str, torch.Tensor]) -> Results:
            given = {n: x for n, x in tensors.items() if n in inputs.tensors}
            return transformable(op, form, replace(inputs, tensors=given), cotangents)

        how = Computation(
            precision=FLOAT64,
            output_dtypes=dict.fromkeys(results, torch.float64),
            terms=max(case.lengths + (case.key_lengths or ())) + max(case.dims.values()),
            gates=tuple(a.name for a in op.arguments if a.role is Role.LOG_DECAY),
        )
        exact = exact_scores(op, inputs).tensors
        return budgets(of, exact, results, how, draws=draws)

    # Each centred on its own form, or a difference of the forms would widen its own budget.
    assert set(first) == set(second)
    if all(_near(first[name], x) for name, x in second.items()):
        return
    allowed = budget(op.second_form, second, draws=FEW_DRAWS)
    if not all(compare(name, x, first[name], allowed[name]).passed for name, x in second.items()):
        of_first = budget(op.oracle, first, draws=DRAWS)
        for name, theirs in budget(op.second_form, second, draws=DRAWS).items():
            both = replace(theirs, allowed=theirs.allowed + of_first[name].allowed)
            one = compare(name, second[name], first[name], both)
            assert one.passed, f"{one.name}: {one.reason} ({one.ratio})"


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_second_form_agrees_with_the_first_in_float64(op: Op) -> None:
    @given(cases(op, REFERENCE, "float32", Oracle(), longest=20, extents=ORDINARY))
    def forms_agree(case: Case) -> None:
        _forms_agree(op, case, build(op, case).to(torch.float64))

    forms_agree()


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_forms_agree_beside_zeros_where_gradients_may_jump(op: Op) -> None:
    """A drawn case seldom has zeros in the tensor and the option that matter, beside numbers."""

    @settings(max_examples=24)
    @given(cases(op, REFERENCE, "float32", Oracle(), longest=4, widest=3, extents=ORDINARY))
    def forms_agree(drawn: Case) -> None:
        case = replace(drawn, values="gaussian", same={})
        inputs = build(op, case).to(torch.float64)
        generator = torch.Generator().manual_seed(case.seed)
        names = [
            # A ridge of 0 has no solution.
            a.name
            for a in op.arguments
            if a.differentiable and a.role is not Role.STEP and a.name in inputs.tensors
        ]
        some = {
            name: x.where(torch.rand(x.shape, generator=generator) < 1 / 2, 0.0)
            for name, x in inputs.tensors.items()
            if name in names
        }
        _forms_agree(op, case, replace(inputs, tensors={**inputs.tensors, **some}))

    forms_agree()


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_gradients_are_those_of_the_outputs(op: Op) -> None:
    """The second form's gradients agree with these."""

    @settings(max_examples=8)
    @given(cases(op, REFERENCE, "float32", Oracle(), longest=4, widest=3, extents=ORDINARY))
    def gradcheck_passes(drawn: Case) -> None:
        # Finite differences need copied inputs and moderate numbers.
        options = {n: False if n == "inplace" else v for n, v in drawn.options.items()}
        case = replace(drawn, options=options, values="gaussian")
        inputs = build(op, case).to(torch.float64)
        names = [a.name for a in op.arguments if a.differentiable and a.name in inputs.tensors]
        # Contiguous, which a copy of an empty expanded tensor need not be.
        own = {n: x.new_empty(x.shape).copy_(x) for n, x in inputs.tensors.items()}
        leaves = [own[n].requires_grad_() for n in names]

        def outputs(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            tensors = {**inputs.tensors, **dict(zip(names, values, strict=True))}
            returned = op.oracle(**inputs.given(tensors))
            each = returned if isinstance(returned, tuple) else (returned,)
            # A row without a visible key has the constant LSE -inf.
            return tuple(
                torch.where(y == -math.inf, 0.0, y) for y in each if y is not None and y.numel()
            )

        found = outputs(*leaves)
        if any(y.requires_grad for y in found):
            # A step of 1e-6 is too long where a function bends sharply, as beside an energy of 0;
            # over a shorter one the rounding of the outputs, some 2^-46 of them, weighs more.
            rounding = 2.0**-46 * max(1.0, *(float(y.detach().abs().max()) for y in found))

            def passes(step: float, *, fast: bool = False) -> bool:
                # Along unit vectors an element of a Jacobian of 100 x 100 counts for 1/100.
                part = 1 / 100 if fast else 1.0
                return torch.autograd.gradcheck(
                    outputs,
                    leaves,
                    eps=step,
                    atol=part * (1e-6 + rounding / step),
                    rtol=part * 1e-4,
                    fast_mode=fast,
                    raise_exception=False,
                )

            # Random directions take a tenth of the time; each element is compared where they fail.
            assert passes(1e-6, fast=True) or any(map(passes, (1e-6, 1e-8, 1e-10)))

    gradcheck_passes()
