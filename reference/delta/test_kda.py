from typing import Any

import pytest
import torch

import reference
from reference.testing import Form, assert_nothing_grows, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.kda)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    q, k, v = rows([1, 2], [1, 2]), rows([1, 1], [0, 2]), rows([4, 6], [5, 0])
    g = rows([1 / 2, 1 / 4], [1, 1 / 2]).log()
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v, g)),
        rows(1 / 2, 1 / 4)[None, :, None],
        scale=1.0,
        initial_state=rows([4, 0], [0, 8])[None, None],
        output_final_state=True,
    )
    # Token 1 finds (2 0; 0 2), in it (2, 2), and writes ((4, 6) - (2, 2)) / 2 = (1, 2):
    # S1 = (3 2; 1 4).
    # Token 2 finds (3 2; 1/2 2), in it (1, 4), and writes ((5, 0) - (1, 4)) / 4 = (1, -1)
    # with a key of norm 2: S2 = (3 2; 5/2 0).
    torch.testing.assert_close(o[0, :, 0], rows([5, 10], [8, 2]), rtol=1e-15, atol=0)
    want = rows([3, 2], [2.5, 0])
    torch.testing.assert_close(final_state[0, 0], want, rtol=1e-15, atol=1e-15)


@both_forms
def test_it_is_the_gated_delta_rule_or_gla_in_special_cases(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 2, 5), unit(draw(1, 2, 7, 2, 5)), draw(2, 2, 7, 4, 3)
    g, beta = -draw(3, 2, 7, 4, 5).abs(), 2 * torch.sigmoid(draw(4, 2, 7, 4))
    options: dict[str, Any] = {"initial_state": draw(5, 2, 4, 5, 3), "output_final_state": True}
    gated = reference.gated_delta_rule(q, k, v, g[..., 0], beta, **options)
    got = form(q, k, v, g[..., :1].expand_as(g), beta, **options)
    torch.testing.assert_close(got, gated, rtol=1e-13, atol=1e-13)
    q = q.repeat_interleave(2, 2)
    forgetting = reference.gla(q, 0 * q, v, g, **options)
    got = form(q, k.repeat_interleave(2, 2), v, g, 0 * beta, **options)
    torch.testing.assert_close(got, forgetting, rtol=1e-13, atol=1e-13)


@both_forms
@pytest.mark.parametrize("closed", [-torch.inf, -1e4])
def test_a_closed_channel_is_forgotten_and_has_finite_gradients(form: Form, closed: float) -> None:
    q, k, v = draw(0, 1, 7, 1, 5), unit(draw(1, 1, 7, 1, 5)), draw(2, 1, 7, 1, 2)
    g, beta = -draw(3, 1, 7, 1, 5).abs(), 2 * torch.sigmoid(draw(4, 1, 7, 1))
    g[:, 3, :, :4], k[:, 3:, :, 4], q[:, 3:, :, 4] = closed, 0, 0
    leaves = [x.requires_grad_() for x in (q, k, v, g, beta)]
    o, _ = form(*leaves)
    # The last channel, which token 3 keeps, is read and written by none of those that follow.
    expected, _ = reference.kda(q, k, v, g, beta, cu_seqlens=torch.tensor([0, 3, 7]))
    torch.testing.assert_close(o, expected, rtol=1e-13, atol=1e-13)
    gradients = torch.autograd.grad(o.sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)


@both_forms
@pytest.mark.parametrize("strongest", [0.0, -1e-3, -1.0, -100.0])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e3])
def test_nothing_grows_if_beta_kk_is_at_most_2(form: Form, strongest: float, spread: float) -> None:
    T = 100
    k = 3 * unit(draw(0, 1, 1, 3, 5) + spread * draw(1, 1, T, 3, 5))
    g = strongest * torch.sigmoid(4 * draw(4, 1, T, 3, 5))
    beta = 2 / 9 * torch.sigmoid(4 * draw(2, 1, T, 3))
    assert_nothing_grows(lambda v, **options: form(k, k, v, g, beta, **options), T)
