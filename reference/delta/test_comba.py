from typing import Any

import torch

import reference
from reference.testing import Form, assert_nothing_grows, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.comba)


@both_forms
def test_two_tokens_by_hand_the_error_is_that_of_the_state_before_it_decays(form: Form) -> None:
    q, k, v, p = rows([1, 1], [2, 1]), rows([1, 1], [0, 2]), rows([4, 0], [1, 3]), rows([1, 0])
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v, p.expand(2, 2))),
        rows(1 / 2, 1 / 4)[None, :, None].log(),
        rows(1 / 2, 2)[None, :, None],
        scale=1.0,
        initial_state=rows([2, 4], [2, 6])[None, None],
        output_final_state=True,
    )
    # Token 1 finds (2 4), writes half of (4 0) - (2 4) to both rows of what has decayed:
    # S1 = (1 2; 1 3) + (1 -2; 1 -2) = (2 0; 2 1).
    # Token 2 finds (2 0), writes four times (1 3) - (2 0) to the second row:
    # S2 = (1/2 0; 1/2 1/4) + (0 0; -4 12) = (1/2 0; -7/2 49/4).
    torch.testing.assert_close(o[0, :, 0], rows([4, 1], [-2.5, 12.25]), rtol=1e-15, atol=1e-15)
    state = rows([0.5, 0], [-3.5, 12.25])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=1e-15)


@both_forms
def test_with_the_decayed_key_it_is_the_gated_delta_rule(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 2, 5), unit(draw(1, 2, 7, 2, 5)), draw(2, 2, 7, 4, 3)
    g, beta = -draw(3, 2, 7, 1).abs().expand(2, 7, 4), torch.sigmoid(draw(4, 2, 7, 4))
    options: dict[str, Any] = {"initial_state": draw(5, 2, 4, 5, 3), "output_final_state": True}
    expected = reference.gated_delta_rule(q, k, v, g, beta, **options)
    got = form(q, k, v, g[:, :, :2, None].exp() * k, g, beta, **options)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@both_forms
def test_nothing_grows_where_it_takes_less_than_both_what_it_finds_and_what_is_left(
    form: Form,
) -> None:
    k, g = unit(draw(0, 1, 100, 3, 5)), -draw(1, 1, 100, 3).abs()
    beta = (1 + g.exp()) * torch.sigmoid(draw(2, 1, 100, 3))
    assert_nothing_grows(lambda v, **options: form(k, k, v, k, g, beta, **options), 100)
