import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Bad, Form, assert_refused, both_forms_of, draw, each_bad, rows

both_forms = both_forms_of(reference.ttt_linear)


def inputs(B: int, T: int, H: int, K: int) -> tuple[Tensor, ...]:
    q, k, v = (draw(seed, B, T, H, K) for seed in range(3))
    return q, k, v, draw(3, H, K), draw(4, H, K), torch.sigmoid(draw(5, B, T, H))


@both_forms
@pytest.mark.parametrize("mini_batch_size", [1, 2])
def test_two_tokens_by_hand(form: Form, mini_batch_size: int) -> None:
    q, k, v = rows([1, 2], [3, 0]), rows([1, 0], [1, 0]), rows([1, 4], [-5, 0])
    o, state = form(
        *(x[None, :, None] for x in (q, k, v)),
        rows([2, 2]),
        rows([0, 1]),
        rows(1, 2)[None, :, None],
        scale=1.0,
        eps=3.0,
        mini_batch_size=mini_batch_size,
        initial_state=rows([1, 0], [0, 0], [2, 1])[None, None],
        output_final_state=True,
    )
    # The model makes (3, 1) of (1, 0): variance 1, deviation 2, normalized (1/2, -1/2), so the
    # layer norm is (1, 0). Token 1: the error is (1, -4), g = (2, -8), less its mean (5, -5), and
    # less (1/2, -1/2) · mean (1, 4) = (5/4, -5/4) it is (15/4, -15/4); u = (15/8, -15/8).
    # S1 = (-7/8, 15/8; 0, 0; 1/8, 23/8): it makes (-3/4, 19/4) of q.
    half = 11 / 4 / math.sqrt((11 / 4) ** 2 + 3)
    first = rows(-3 / 4 - 2 * half, 19 / 4 + 2 * half + 1)
    torch.testing.assert_close(o[0, 0, 0], first, rtol=1e-14, atol=0)
    if mini_batch_size == 1:
        # It makes (-3/4, 19/4) of the second key as well, minus the error (6, 0) of (-6, 0).
        n = rows(-half, half)
        g = 2 * (2 * n + rows(0, 1) - rows(-6, 0))
        u = (g - g.mean() - n * (n * g).mean()) / math.sqrt((11 / 4) ** 2 + 3)
        W, b = rows(-7 / 8, 15 / 8) - 2 * u, rows(1 / 8, 23 / 8) - 2 * u
    else:
        # The error is (7, 0), g = (14, 0), (7, -7), less (1/2, -1/2) · 7/2; u = (21/8, -21/8). Both
        # gradients count twice: (9/2, -9/2) · 2.
        W, b = rows(-8, 9), rows(-7, 10)
    torch.testing.assert_close(state[0, 0], torch.stack([W, 0 * W, b]), rtol=1e-13, atol=0)
    y = 3 * W + b
    n = (y - y.mean()) / math.sqrt((y - y.mean())[0].item() ** 2 + 3)
    torch.testing.assert_close(o[0, 1, 0], y + 2 * n + rows(0, 1), rtol=1e-14, atol=0)


@both_forms
def test_the_write_is_the_gradient_of_the_loss(form: Form) -> None:
    q, k, v, weight, bias, eta = inputs(1, 1, 1, 5)
    S = draw(6, 1, 1, 6, 5).requires_grad_()
    made = k[:, 0] @ S[0, :, :5] + S[0, :, 5:]
    normed = torch.nn.functional.layer_norm(made, (5,), weight[0], bias[0], eps=1e-3)
    loss = (normed - (v - k)[:, 0]).square().sum() / 2
    (expected,) = torch.autograd.grad(loss, S)
    options: dict[str, Any] = {"eps": 1e-3, "output_final_state": True}
    _, state = form(q, k, v, weight, bias, eta, initial_state=S, **options)
    torch.testing.assert_close(state, S - eta[0, 0, 0] * expected, rtol=1e-13, atol=1e-13)


@both_forms
def test_gradients_of_a_mini_batch_are_taken_at_one_state(form: Form) -> None:
    q, k, v, weight, bias, eta = inputs(1, 6, 2, 3)
    S = draw(6, 1, 2, 4, 3)
    options: dict[str, Any] = {"initial_state": S, "output_final_state": True}
    eta = eta[:, :1].expand(-1, 6, -1)
    _, state = form(q, k, v, weight, bias, eta, mini_batch_size=6, **options)
    alone = [
        form(*(x[:, t : t + 1] for x in (q, k, v)), weight, bias, eta[:, :1], **options)[1] - S
        for t in range(6)
    ]
    torch.testing.assert_close(state, S + sum(alone), rtol=1e-13, atol=1e-13)


@both_forms
@pytest.mark.parametrize("cut", [0, 3, 6])
def test_a_sequence_goes_on_between_mini_batches(form: Form, cut: int) -> None:
    *tokens, weight, bias, eta = inputs(2, 8, 2, 3)
    options: dict[str, Any] = {"mini_batch_size": 3, "output_final_state": True}
    o, state = form(*tokens, weight, bias, eta, **options)
    early, between = form(*(x[:, :cut] for x in tokens), weight, bias, eta[:, :cut], **options)
    late, last = form(
        *(x[:, cut:] for x in tokens), weight, bias, eta[:, cut:], initial_state=between, **options
    )
    torch.testing.assert_close(torch.cat([early, late], 1), o, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last, state, rtol=1e-12, atol=1e-12)


@both_forms
@pytest.mark.parametrize("mini_batch_size", [1, 2, 3])
def test_gradients_agree_with_finite_differences(form: Form, mini_batch_size: int) -> None:
    tensors = (*inputs(1, 3, 2, 3), draw(6, 1, 2, 4, 3))
    leaves = [x.clone().requires_grad_() for x in tensors]

    def function(*tensors: Tensor) -> Any:
        *others, S = tensors
        options: dict[str, Any] = {"initial_state": S, "output_final_state": True}
        return form(*others, eps=0.1, mini_batch_size=mini_batch_size, **options)

    assert torch.autograd.gradcheck(function, leaves)


BAD: dict[str, Bad] = {
    "no tokens": ({"mini_batch_size": 0}, ValueError, "mini_batch_size: 0"),
    "half a token": ({"mini_batch_size": 0.5}, TypeError, "mini_batch_size: "),
    "no eps": ({"eps": 0.0}, ValueError, "eps: 0.0"),
    "a narrow value": ({"v": draw(0, 1, 2, 1, 2)}, ValueError, "v: "),
}


@both_forms
@each_bad(BAD)
def test_bad_arguments_are_refused(form: Form, bad: Bad) -> None:
    names = ("q", "k", "v", "weight", "bias", "eta")
    assert_refused(bad, form, **dict(zip(names, inputs(1, 2, 1, 3), strict=True)))
