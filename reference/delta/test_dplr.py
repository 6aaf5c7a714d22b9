from typing import Any

import pytest
import torch

import reference
from reference.testing import Form, assert_nothing_grows, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.dplr)


@both_forms
def test_two_tokens_by_hand_what_is_read_has_not_decayed(form: Form) -> None:
    q, k, v = rows([2, 1], [2, 1]), rows([0, 1], [1, 0]), rows([1, 1, 1], [0, 0, 3])
    a, b, gk = rows([1, 1], [0, 1]), rows([2, 0], [1, -1]), rows([1 / 2, 1], [1, 1 / 2]).log()
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v, a, b, gk)),
        scale=1.0,
        initial_state=rows([1, 0, 2], [0, 2, 0])[None, None],
        output_final_state=True,
    )
    # Token 1 reads r1 = (1, 2, 2), the sum of both rows, and leaves
    # S1 = (1/2 0 1; 0 2 0) + (2 4 4; 0 0 0) + (0 0 0; 1 1 1) = (5/2 4 5; 1 3 1).
    # Token 2 reads r2 = (1, 3, 1), the second row, and leaves
    # S2 = (5/2 4 5; 1/2 3/2 1/2) + (1 3 1; -1 -3 -1) + (0 0 3; 0 0 0)
    expected = rows([6, 11, 11], [6.5, 12.5, 17.5])
    torch.testing.assert_close(o[0, :, 0], expected, rtol=1e-15, atol=0)
    state = rows([3.5, 7, 9], [-0.5, -1.5, -0.5])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=0)


@both_forms
def test_it_is_kda_where_it_reads_what_has_decayed_of_a_key_and_takes_it_from_there(
    form: Form,
) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    g, beta = -draw(3, 2, 7, 3, 5).abs(), 2 * torch.sigmoid(draw(4, 2, 7, 3))
    options: dict[str, Any] = {"initial_state": draw(5, 2, 3, 5, 2), "output_final_state": True}
    expected = reference.kda(q, k, v, g, beta, **options)
    taken = beta[..., None] * k
    got = form(q, taken, v, g.exp() * k, -taken, g, **options)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@both_forms
@pytest.mark.parametrize("nothing", ["a", "b"])
def test_without_what_it_reads_or_writes_besides_it_is_gla(form: Form, nothing: str) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), draw(1, 2, 7, 3, 5), draw(2, 2, 7, 3, 2)
    a, b, gk = draw(3, 2, 7, 3, 5), draw(4, 2, 7, 3, 5), -draw(5, 2, 7, 3, 5).abs()
    options: dict[str, Any] = {"initial_state": draw(6, 2, 3, 5, 2), "output_final_state": True}
    expected = reference.gla(q, k, v, gk, **options)
    (a if nothing == "a" else b).zero_()
    torch.testing.assert_close(form(q, k, v, a, b, gk, **options), expected, rtol=1e-13, atol=1e-13)


@both_forms
def test_nothing_grows_where_the_rank_one_part_is_no_larger_than_what_decays(form: Form) -> None:
    T = 100
    gk = -draw(0, 1, T, 3, 5).abs()
    room = (1 - gk.exp().amax(-1, keepdim=True)).sqrt()
    a, b = room * unit(draw(1, 1, T, 3, 5)), room * unit(draw(2, 1, T, 3, 5))
    assert_nothing_grows(lambda v, **options: form(a, b, v, a, b, gk, **options), T)
