import math
from typing import Any

import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.titans)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    q, k, v = rows([1, 1], [2, 1]), rows([1, 0], [1, 1]), rows([4], [3])
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v)),
        rows(1 / 4, 1 / 2)[None, :, None],
        *(x[None, :, None] for x in (rows(1 / 2, 1).log(), rows(1 / 2, 1 / 4).log())),
        initial_state=rows([[2], [0]], [[2], [4]])[None, None],
        output_final_state=True,
    )
    # Token 1: the gradient is 2 (2 - 4) (1, 0); S1 = (1, 2) + (1, 0), M1 = (1, 0) + (2, 2).
    # Token 2: the gradient is 2 (5 - 3) (1, 1); S2 = (1/2, 1/2) - (2, 2), M2 = (3, 2) + S2.
    torch.testing.assert_close(o[0, :, 0], rows([5], [3.5]), rtol=1e-15, atol=1e-15)
    state = rows([[1.5], [0.5]], [[-1.5], [-1.5]])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=1e-15)


@both_forms
def test_the_surprise_is_the_gradient_of_the_loss(form: Form) -> None:
    q, k, v = draw(0, 1, 1, 1, 5), draw(1, 1, 1, 1, 5), draw(2, 1, 1, 1, 3)
    state = draw(3, 1, 1, 2, 5, 3)
    M = state[:, :, 0].clone().requires_grad_()
    loss = (k[0, 0, 0] @ M[0, 0] - v[0, 0, 0]).square().sum()
    (gradient,) = torch.autograd.grad(loss, M)
    theta = rows([[0.3]])
    _, after = form(q, k, v, theta, initial_state=state, output_final_state=True)
    expected = state[:, :, 1] - 0.3 * gradient
    torch.testing.assert_close(after[:, :, 1], expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(after[:, :, 0], M + expected, rtol=1e-13, atol=1e-13)


@both_forms
def test_without_momentum_and_decay_it_is_the_delta_rule(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    theta, S = torch.sigmoid(draw(4, 2, 7, 3)), draw(5, 2, 3, 5, 2)
    nothing = torch.full_like(theta, -math.inf)
    options: dict[str, Any] = {"output_final_state": True}
    both = torch.stack([S, draw(6, 2, 3, 5, 2)], dim=2)
    o, state = form(q, k, v, theta, None, nothing, initial_state=both, **options)
    rule = reference.delta_rule
    expected, last = rule(q, k, v, 2 * theta, scale=1.0, initial_state=S, **options)
    torch.testing.assert_close(o, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state[:, :, 0], last, rtol=1e-13, atol=1e-13)


@both_forms
def test_it_is_the_momentum_delta_rule_with_one_key(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    theta = torch.sigmoid(draw(3, 2, 7, 3)) / 2
    gates = [-draw(seed, 2, 7, 3).abs() for seed in (4, 5)]
    options: dict[str, Any] = {"output_final_state": True, "initial_state": draw(6, 2, 3, 2, 5, 2)}
    o, state = form(q, k, v, theta, *gates, **options)
    rule: Any = reference.momentum_delta_rule
    expected, last = rule(q, k, v, k, *gates, None, 2 * theta, scale=1.0, **options)
    torch.testing.assert_close(o, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)
