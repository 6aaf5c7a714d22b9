from typing import Any

import torch

import reference
from reference.testing import Form, assert_nothing_grows, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.iplr)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    q, k, v = rows([2, 1], [2, 1]), rows([0, 1], [1, 0]), rows([1, 1, 1], [0, 0, 3])
    a, b = rows([1, 1], [0, 1]), rows([2, 0], [1, -1])
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v, a, b)),
        scale=1.0,
        initial_state=rows([1, 0, 2], [0, 2, 0])[None, None],
        output_final_state=True,
    )
    # Token 1 reads (1 2 2), the sum of both rows, and leaves
    # S1 = (1 0 2; 0 2 0) + (2 4 4; 0 0 0) + (0 0 0; 1 1 1) = (3 4 6; 1 3 1).
    # Token 2 reads (1 3 1), the second row, and leaves
    # S2 = (3 4 6; 1 3 1) + (1 3 1; -1 -3 -1) + (0 0 3; 0 0 0) = (4 7 10; 0 0 0).
    torch.testing.assert_close(o[0, :, 0], rows([7, 11, 13], [8, 14, 20]), rtol=1e-15, atol=0)
    state = rows([4, 7, 10], [0, 0, 0])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=1e-15)


@both_forms
def test_it_is_the_delta_rule_where_it_takes_what_it_reads(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    beta = 2 * torch.sigmoid(draw(4, 2, 7, 3))
    options: dict[str, Any] = {"initial_state": draw(5, 2, 3, 5, 2), "output_final_state": True}
    expected = reference.delta_rule(q, k, v, beta, **options)
    taken = beta[..., None] * k
    torch.testing.assert_close(
        form(q, taken, v, k, -taken, **options), expected, rtol=1e-13, atol=1e-13
    )


@both_forms
def test_nothing_grows_where_it_takes_at_most_twice_what_it_reads(form: Form) -> None:
    a = unit(draw(0, 1, 100, 3, 5))
    b = -2 * torch.sigmoid(draw(1, 1, 100, 3, 1)) * a
    assert_nothing_grows(lambda v, **options: form(a, b, v, a, b, **options), 100)
