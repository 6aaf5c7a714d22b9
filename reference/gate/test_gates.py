import math

import pytest
import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

LOG2, LOG3 = math.log(2), math.log(3)


@both_forms_of(reference.decay_gate)
def test_decays_by_hand(form: Form) -> None:
    x = rows([0, LOG3], [-LOG3, -LOG3])[None, None]
    # softplus is log 2, log 4, and log(4/3) and log 2 where a bias of log 3 makes it 0.
    bias = rows([0, 0], [0, LOG3])
    g = form(x, rows(0, LOG2), bias)
    want = -rows([LOG2, 2 * LOG2], [2 * math.log(4 / 3), 2 * LOG2])
    torch.testing.assert_close(g[0, 0], want, rtol=1e-15, atol=0)
    g = form(x, rows(0, LOG2), bias, lower_bound=-5)
    # sigmoid of 0, log 3, -log 9 and 0.
    want = -5 * rows([1 / 2, 3 / 4], [1 / 10, 1 / 2])
    torch.testing.assert_close(g[0, 0], want, rtol=1e-15, atol=0)


@both_forms_of(reference.decay_gate)
def test_far_from_zero_it_is_a_line_and_an_exponential(form: Form) -> None:
    x = rows(800, -800, 0)[None, None, :, None].requires_grad_()
    g = form(x)
    (dx,) = torch.autograd.grad(g.sum(), x)
    assert torch.equal(g.flatten().detach(), rows(-800, 0, -LOG2))
    torch.testing.assert_close(dx.flatten(), rows(-1, 0, -1 / 2), rtol=1e-15, atol=0)


def test_small_decays_keep_their_digits() -> None:
    g = reference.decay_gate(rows(-30.0)[None, None, :, None])
    torch.testing.assert_close(g.item(), -math.log1p(math.exp(-30)), rtol=1e-15, atol=0)


@both_forms_of(reference.decay_gate)
def test_the_step_of_mamba_times_its_rate_is_a_gate(form: Form) -> None:
    x, A_log, bias = draw(0, 2, 5, 3, 1), draw(1, 3), draw(2, 3, 1)
    dt = torch.nn.functional.softplus(x + bias)
    want = -dt * A_log.exp()[:, None]
    torch.testing.assert_close(form(x, A_log, bias), want, rtol=1e-14, atol=0)


@both_forms_of(reference.decay_gate)
@pytest.mark.parametrize("bound", [0.0, 1.0, -math.inf, math.nan])
def test_bounds_that_are_none_are_refused(form: Form, bound: float) -> None:
    with pytest.raises(ValueError, match=r"lower_bound: .*, expected a negative finite number"):
        form(draw(0, 1, 1, 1, 1), lower_bound=bound)


@both_forms_of(reference.strength_gate)
def test_strengths_by_hand(form: Form) -> None:
    x = rows(0, LOG3, -LOG3)[None, None]
    torch.testing.assert_close(form(x)[0, 0], rows(1 / 2, 3 / 4, 1 / 4), rtol=1e-15, atol=0)
    twice = form(x, allow_neg_eigval=True)
    torch.testing.assert_close(twice[0, 0], rows(1, 3 / 2, 1 / 2), rtol=1e-15, atol=0)
