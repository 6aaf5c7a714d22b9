"""A declaration says what the oracle's signature says; what is new there stops nothing."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from jaxtyping import Float
from torch import Tensor

import reference
from properties.cases.calls import outputs_and_gradients
from properties.cases.case import Case
from properties.cases.strategies import cases
from properties.cases.tensors import build, sizes
from properties.catalogue import OPS, Mode
from properties.catalogue.declare import declare
from properties.catalogue.op import Argument, Op, Option, Output, Role
from properties.mutants.triggers.facts import VALUES
from properties.suite.test_library import _cases
from properties.targets.oracle import Oracle
from reference.op import op

MODE = Mode("fused")


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, kind: str | None, flip: bool
) -> Tensor:
    y = torch.einsum("bthd,de->bthe", x, weight) / temperature
    return y if bias is None else y + bias


def _sum(
    x: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, kind: str | None, flip: bool
) -> Tensor:
    y = (x[..., None] * weight).sum(-2) / temperature
    return y if bias is None else y + bias


@op(_product, _sum, outputs=("y",), texts=dict.fromkeys(("x", "weight", "bias", "y"), "New."))
def tempered(  # type: ignore[empty-body]
    x: Float[Tensor, "B T H D"],
    weight: Float[Tensor, "D E"],
    bias: Float[Tensor, "H E"] | None = None,
    *,
    temperature: float = 2.0,
    kind: str | None = None,
    flip: bool = False,
) -> Float[Tensor, "B T H E"]:
    """A product with names that no other op has.

    Args:
        temperature: Divides.
        kind: None.
        flip: Unused.

    Source: none.
    """


TEMPERED = declare(
    tempered,
    modes=(MODE,),
    recipes=("gaussian",),
    work=lambda n: n["T"] * n["H"] * n["D"] * n["E"],
)


def _option(op: Op, name: str) -> Option:
    return next(option for option in op.options if option.name == name)


def test_a_signature_is_read() -> None:
    assert TEMPERED.arguments == (
        Argument("x", "B T H D", Role.VALUE),
        Argument("weight", "D E", Role.VALUE, dtype="either"),
        Argument("bias", "H E", Role.VALUE, optional=True, dtype="either"),
    )
    assert TEMPERED.outputs == (Output("y", "B T H E"),)
    assert [(o.name, o.default) for o in TEMPERED.options] == [
        ("temperature", 2.0), ("kind", None), ("flip", False),
    ]  # fmt: skip
    assert list(TEMPERED.dims) == ["B", "H", "D", "E"]
    assert (TEMPERED.packed_by, TEMPERED.continues_by, TEMPERED.own_keys) == ((), "", False)
    kda = OPS["kda"]
    assert kda.outputs[1] == Output(
        "final_state", "N H K V", asked_by="output_final_state", dtype="float32"
    )
    assert [option.name for option in kda.options if option.auxiliary] == ["output_final_state"]
    assert list(kda.dims) == ["B", "G", "R", "K", "V"]


def test_laws_follow_from_what_an_op_has() -> None:
    assert TEMPERED.laws == (
        "differential", "causality", "permutation", "linearity", "layout_invariance",
        "context_invariance", "request_invariance", "determinism", "plumbing",
        "untouched_inputs", "written_outputs", "rejection",
    )  # fmt: skip
    silent = declare(tempered, modes=(MODE,), recipes=(), work=TEMPERED.work, linear_in=())
    assert set(TEMPERED.laws) - set(silent.laws) == {"linearity"}


def test_a_wrapper_has_the_modes_and_the_work_of_what_it_wraps() -> None:
    simple_gla, mamba2, retention = (OPS[n] for n in ("simple_gla", "mamba2", "retention"))
    assert retention.modes == simple_gla.modes
    assert retention.wraps == mamba2.wraps == simple_gla.name
    # It has no argument of that name.
    assert not any(mode.refuses for mode in mamba2.modes)
    assert mamba2.work is simple_gla.work
    with pytest.raises(ValueError, match="tempered: no work, expected some, or an op that it"):
        declare(tempered, recipes=())


def test_names_that_are_new_are_drawn() -> None:
    @given(cases(TEMPERED, MODE, "float32", Oracle(), longest=5))
    def both_forms_take_it(case: Case) -> None:
        inputs = build(TEMPERED, case).to(torch.float64)
        first, second = (
            outputs_and_gradients(TEMPERED, form, inputs)
            for form in (tempered, tempered.second_form)
        )
        torch.testing.assert_close(first["y"], second["y"])
        assert case.options["temperature"] == 2.0

    both_forms_take_it()
    found = _cases(TEMPERED, MODE)["dense-loaded"]
    assert found.options == {"temperature": 2.0, "kind": None, "flip": True}
    assert found.dims["E"] not in (0, 1, *(found.dims[letter] for letter in "BHD"))


def test_every_role_has_facts() -> None:
    assert set(VALUES) == set(Role)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_every_option_is_switched_to_something_else(op: Op) -> None:
    case = next(iter(_cases(op, op.modes_or_reference[0]).values()))
    for option in op.options:
        value = option.switched(case)
        assert value != option.default
        assert option.switched(case) == value
        free = replace(option, switch=None)
        assert free.switched(case) != option.default


def test_integers_have_exact_options() -> None:
    linear = OPS["linear_attn"]
    case = Case(
        op="linear_attn", mode="chunk", dtype="float32", dims={"B": 1, "H": 1, "K": 2, "V": 3},
        lengths=(4,), options={"normalize": True, "scale": 0.3},
    )  # fmt: skip
    assert linear.settle(case) == case
    exact = {"normalize": False, "scale": 0.3}
    assert linear.settle(replace(case, values="integers")).options == exact
    assert linear.settle(replace(case, values="integers", options={})).options == {}
    assert [sizes(linear, one)["V+normalize"] for one in (case, replace(case, options={}))] == [
        4,
        3,
    ]


def test_names_of_the_spec_are_read_as_its_authors_mean_them() -> None:
    assert OPS["attention"].argument("k").dims == "B S G K"
    assert OPS["attention"].packed_by == ("cu_seqlens", "cu_seqlens_k")
    assert reference.attention.outputs == ("o", "lse")
    assert not OPS["attention"].outputs[1].linear
