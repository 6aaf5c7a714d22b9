"""Both forms of the ops that normalize; linear attention and gla differ in their gates alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Form, draw

OPS: tuple[Any, ...] = (reference.linear_attn, reference.gla)

each_form = pytest.mark.parametrize(
    ("op", "form"),
    [pytest.param(op, form, id=form.__name__) for op in OPS for form in (op, op.second_form)],
)
each_scale = pytest.mark.parametrize("scale", [None, -0.7])
normalized_or_not = pytest.mark.parametrize("normalize", [False, True])
each_direction = pytest.mark.parametrize("reverse", [False, True])
each_packing = pytest.mark.parametrize("packed", [False, True])


def inputs(
    op: Form, T: int = 7, H: int = 3, K: int = 5, V: int = 2, *,
    normalize: bool = True, packed: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """q, k, v, a state and the gates of gla; q, k and the state are absolute if normalized."""
    N, B = (3, 1) if packed else (2, 2)
    tensors = {
        "q": draw(0, B, T, H, K),
        "k": draw(1, B, T, H, K),
        "v": draw(2, B, T, H, V),
        "initial_state": draw(3, N, H, K, V + normalize),
    }
    if normalize:
        tensors |= {name: tensors[name].abs() for name in ("q", "k", "initial_state")}
    if op is reference.gla:
        tensors |= {"g": -draw(4, B, T, H, K).abs(), "gv": -draw(5, B, T, H, V).abs()}
    return tensors


@pytest.mark.parametrize(
    ("op", "gates"),
    [(OPS[0], ""), *((OPS[1], gates) for gates in ("", "g", "gv", "g gv"))],
    ids=lambda x: getattr(x, "__name__", x),
)
@each_scale
@normalized_or_not
@each_direction
@each_packing
def test_both_forms_agree(
    op: Any, gates: str, scale: float | None, normalize: bool, reverse: bool, packed: bool
) -> None:
    """A term scale · q k v meets at most T + K + 4 roundings on its way into o, in either form:
    K of the inner product, T + 1 of the sum over tokens and the state, and three products. A decay
    is at worst T factors, each off by one unit of the exp and one of the product, or the exp of a
    sum L that is off by T u |L|: two decays add 4 T + 2 T L. With u = 2^-53, L the largest |L| of a
    sequence, and Y the op on absolute values, a form is within so many u Y of the truth. A quotient
    adds the relative error of its denominator, whose terms have one sign, and one more.
    """
    tensors = inputs(op, normalize=normalize, packed=packed)
    unused = {"g", "gv"} - set(gates.split())
    tensors = {name: x for name, x in tensors.items() if name not in unused}
    options: dict[str, Any] = {
        "normalize": normalize,
        "output_final_state": True,
        "reverse": reverse,
        "cu_seqlens": torch.tensor([0, 3, 3, 7]) if packed else None,
    }
    first, second = (form(**tensors, scale=scale, **options) for form in (op, op.second_form))
    absolute = {n: x if n in gates.split() else x.abs() for n, x in tensors.items()}
    magnitude = op(**absolute, scale=scale and abs(scale), **options)
    steps: float = 7 + 5 + 4
    if gates:
        steps += 4 * 7 + 2 * 7 * max(tensors[n].sum(1).abs().max().item() for n in gates.split())
    for x, y, Y in zip(first, second, magnitude, strict=True):
        bound = 2 * (2 * steps + 1 if normalize else steps) * 2.0**-53 * Y
        assert ((x - y).abs() <= bound).all()


@each_form
@normalized_or_not
@each_direction
@each_packing
def test_gradients_through_output_and_final_state(
    op: Form, form: Form, normalize: bool, reverse: bool, packed: bool
) -> None:
    tensors = inputs(op, 3, 1, 2, 3, normalize=normalize, packed=packed)

    def function(*values: Tensor) -> Any:
        return form(
            **dict(zip(tensors, values, strict=True)),
            scale=-0.7,
            normalize=normalize,
            output_final_state=True,
            reverse=reverse,
            cu_seqlens=torch.tensor([0, 2, 2, 3]) if packed else None,
        )

    assert torch.autograd.gradcheck(function, [x.requires_grad_() for x in tensors.values()])


@each_form
def test_a_row_without_weight_is_zero_and_has_zero_gradients(op: Form, form: Form) -> None:
    tensors = inputs(op)
    tensors["q"][:, 3] = 0
    leaves = {name: x.requires_grad_() for name, x in tensors.items()}
    o, _ = form(**leaves, normalize=True)
    assert torch.equal(o[:, 3], torch.zeros_like(o[:, 3]))
    for gradient in torch.autograd.grad(o[:, 3].sum(), list(leaves.values())):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@each_form
def test_a_normalized_row_does_not_depend_on_the_scale_unless_it_is_zero(
    op: Form, form: Form
) -> None:
    tensors = inputs(op)
    o, _ = form(**tensors, normalize=True)
    for scale in (-1, 3.0, -0.5, 1e-300):
        assert torch.equal(form(**tensors, scale=scale, normalize=True)[0], o)
    zero, _ = form(**tensors, scale=0.0, normalize=True)
    assert torch.equal(zero, torch.zeros_like(o))


@each_form
def test_without_tokens_the_state_passes_through(op: Form, form: Form) -> None:
    tensors = inputs(op, T=0)
    o, final_state = form(**tensors, normalize=True, output_final_state=True)
    assert o.shape == tensors["v"].shape
    assert torch.equal(final_state, tensors["initial_state"])
