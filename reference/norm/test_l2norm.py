import math

import pytest
import torch

import reference
from reference.testing import Form, both_forms_of, draw

both_forms = both_forms_of(reference.l2norm)


@both_forms
def test_by_hand_epsilon_is_added_to_the_sum_of_squares(form: Form) -> None:
    x = torch.tensor([[[[3.0, 4.0]]]], dtype=torch.float64)
    want = torch.tensor([1 / 2, 2 / 3], dtype=torch.float64)  # 9 + 16 + 11 = 6²
    torch.testing.assert_close(form(x, eps=11.0)[0, 0, 0], want, rtol=4e-16, atol=0)
    want = torch.tensor([0.6, 0.8], dtype=torch.float64) / math.sqrt(1 + 1e-6 / 25)
    torch.testing.assert_close(form(x)[0, 0, 0], want, rtol=4e-16, atol=0)


def test_the_scaled_form_takes_vectors_whose_squares_overflow() -> None:
    x = torch.tensor([[[[3e200, 4e200]]]], dtype=torch.float64)
    want = torch.tensor([0.6, 0.8], dtype=torch.float64)
    torch.testing.assert_close(reference.l2norm.second_form(x)[0, 0, 0], want, rtol=4e-16, atol=0)


@both_forms
def test_a_zero_vector_stays_zero_and_has_a_finite_gradient(form: Form) -> None:
    x = torch.zeros(1, 1, 1, 3, dtype=torch.float64, requires_grad=True)
    y = form(x, eps=1 / 16)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y, torch.zeros_like(x))
    assert torch.equal(gradient, torch.full_like(x, 4.0))


@pytest.mark.parametrize("length", [1e-150, 1e-6, 1e-3, 1.0, 1e3, 1e150])
@pytest.mark.parametrize("eps", [1e-6, 2.0**-126, 2.0])
def test_both_forms_agree(length: float, eps: float) -> None:
    """Each takes D squares, D sums, a root and two quotients: within (D + 4) u of the truth."""
    x = length * draw(0, 2, 7, 3, 5)
    first, second = (f(x, eps=eps) for f in (reference.l2norm, reference.l2norm.second_form))
    assert ((first - second).abs() <= 2 * (5 + 4) * 2.0**-53 * first.abs()).all()
    norm = first.norm(dim=-1)
    want = (x.norm(dim=-1).square() / (x.norm(dim=-1).square() + eps)).sqrt()
    torch.testing.assert_close(norm, want, rtol=1e-14, atol=0)


@both_forms
@pytest.mark.parametrize("length", [1e-6, 1e-3, 1.0, 1e3])
def test_the_gradient_is_at_right_angles_to_a_long_vector(form: Form, length: float) -> None:
    """dx = (dy - y (y · dy)) / sqrt(|x|² + ε)"""
    x, dy = (length * draw(0, 2, 3, 2, 5)).requires_grad_(), draw(1, 2, 3, 2, 5)
    y = form(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    root = (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    want = (dy - y * (y * dy).sum(-1, keepdim=True)) / root
    torch.testing.assert_close(dx, want, rtol=1e-12, atol=1e-14 / length)


@both_forms
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_no_dtype_is_forced(form: Form, dtype: torch.dtype) -> None:
    assert form(draw(0, 2, 3, 2, 5).to(dtype)).dtype == dtype


@both_forms
@pytest.mark.parametrize("eps", [0.0, -1e-6, 1e-50, 1e39, math.nan, math.inf])
def test_an_epsilon_that_float32_does_not_hold_is_refused(form: Form, eps: float) -> None:
    with pytest.raises(ValueError, match=r"^eps: .*, expected a positive finite number, normal"):
        form(torch.ones(1, 1, 1, 2), eps=eps)
