"""Weights by hand: a part of LSE log a counts a / (a + b) beside one of LSE log b."""

import math

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Bad, Form, assert_refused, both_forms_of, draw, each_bad, rows

both_forms = both_forms_of(reference.merge_attention)
INF = math.inf


def lse(*weights: float) -> Tensor:
    return rows(*weights).log()[None, None]


def o(*values: float) -> Tensor:
    return rows(*values)[None, :, None, None]


@both_forms
def test_parts_are_weighted_by_their_denominators_by_hand(form: Form) -> None:
    merged, total = form(o(4, 10), lse(1, 2), o(8, 40), lse(3, 8))
    torch.testing.assert_close(merged, o(7, 34), rtol=1e-15, atol=0)
    torch.testing.assert_close(total, lse(4, 10), rtol=1e-15, atol=0)


@both_forms
def test_logarithms_may_have_base_two_by_hand(form: Form) -> None:
    merged, total = form(
        o(4), rows(0)[None, None], o(8), rows(math.log2(3))[None, None], base2=True
    )
    torch.testing.assert_close(merged, o(7), rtol=1e-15, atol=0)
    torch.testing.assert_close(total, rows(2)[None, None], rtol=1e-15, atol=0)


@both_forms
def test_parts_whose_exponentials_overflow_are_merged_in_either_order(form: Form) -> None:
    low, high = rows(-2000)[None, None], rows(2000)[None, None]
    for merged, total in (form(o(4), low, o(8), high), form(o(8), high, o(4), low)):
        assert torch.equal(merged, o(8))
        assert torch.equal(total, high)


@both_forms
@pytest.mark.parametrize("base2", [False, True])
def test_an_empty_part_changes_nothing_even_where_it_holds_nan(form: Form, base2: bool) -> None:
    nan, some, nothing = o(math.nan), rows(-3)[None, None], rows(-INF)[None, None]
    for merged, total in (
        form(nan, nothing, o(5), some, base2=base2),
        form(o(5), some, nan, nothing, base2=base2),
    ):
        assert torch.equal(merged, o(5))
        torch.testing.assert_close(total, some, rtol=1e-15, atol=0)


@both_forms
def test_two_empty_parts_are_empty_and_have_no_gradient(form: Form) -> None:
    tensors = [o(3), rows(-INF)[None, None], o(math.nan), rows(-INF)[None, None]]
    leaves = [x.requires_grad_() for x in tensors]
    merged, total = form(*leaves)
    assert merged.item() == 0
    assert total.item() == -INF
    for gradient in torch.autograd.grad(merged.sum() + total.sum(), leaves):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@both_forms
def test_nan_in_an_empty_part_reaches_no_gradient(form: Form) -> None:
    leaves = [x.requires_grad_() for x in (o(math.nan), lse(0), o(5), lse(3))]
    merged, total = form(*leaves)
    gradients = torch.autograd.grad(merged.sum() + total.sum(), leaves)
    assert [x.item() for x in gradients] == [0, 0, 1, 1]


@both_forms
def test_gradients_by_hand(form: Form) -> None:
    """The weights are 1/4 and 3/4, and o - o_b = -1: dlse_a = 1/4 (1 + 4 - 7)."""
    leaves = [x.requires_grad_() for x in (o(4), lse(1), o(8), lse(3))]
    merged, total = form(*leaves)
    gradients = torch.autograd.grad(merged.sum() + total.sum(), leaves)
    expected = [0.25, 0.25 * (1 + 4 - 7), 0.75, 0.75 * (1 + 8 - 7)]
    assert [x.item() for x in gradients] == pytest.approx(expected, rel=1e-14)


@both_forms
def test_the_parts_of_attention_merge_to_attention(form: Form) -> None:
    q, k, v = draw(0, 2, 5, 6, 3), draw(1, 2, 7, 2, 3), draw(2, 2, 7, 2, 4)
    parts = [reference.attention(q, k[:, j], v[:, j], return_lse=True) for j in (_CUT[0], _CUT[1])]
    merged, total = form(*parts[0], *parts[1])
    whole = reference.attention(q, k, v, return_lse=True)
    torch.testing.assert_close(merged, whole[0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(total, whole[1], rtol=1e-13, atol=1e-13)


_CUT = ([0, 3, 4], [1, 2, 5, 6])


@both_forms
def test_numbers_far_from_zero_do_not_overflow(form: Form) -> None:
    for far in (1e4, -1e4):
        merged, total = form(o(4), lse(1) + far, o(8), lse(3) + far)
        torch.testing.assert_close(merged, o(7), rtol=1e-11, atol=0)
        torch.testing.assert_close(total, lse(4) + far, rtol=1e-15, atol=0)
        merged, total = form(o(4), lse(1), o(8), lse(1) + far)
        assert torch.equal(merged, o(8.0 if far > 0 else 4.0))


BAD: dict[str, Bad] = {
    "lse": ({"lse_b": draw(1, 2, 5, 3)}, ValueError, "lse_b: float64[2, 5, 3], expected"),
    "o": ({"o_b": draw(1, 2, 5, 3, 6)}, ValueError, "o_b: float64[2, 5, 3, 6], expected"),
    "dtype": (
        {"o_b": draw(1, 2, 5, 3, 4).float()},
        TypeError,
        "o_b: float32[2, 5, 3, 4]",
    ),
    "base2": ({"base2": 2}, TypeError, "base2: 2 (int), expected bool"),
}


@both_forms
@each_bad(BAD)
def test_a_bad_argument_is_named(form: Form, bad: Bad) -> None:
    outputs, sums = draw(0, 2, 5, 3, 4), draw(1, 2, 3, 5)
    given = {"o_a": outputs, "lse_a": sums, "o_b": outputs, "lse_b": sums}
    assert_refused(bad, form, **given)
