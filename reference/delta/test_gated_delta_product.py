from typing import Any

import pytest
import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.gated_delta_product)


@both_forms
def test_two_tokens_of_two_steps_by_hand(form: Form) -> None:
    k = rows([[1, 0], [0, 1]], [[1, 1], [1, 0]])[None, :, :, None]
    v = rows([[4, 0], [0, 2]], [[1, 3], [2, 2]])[None, :, :, None]
    o, final_state = form(
        rows([1, 1], [1, 2])[None, :, None],
        k,
        v,
        rows(1 / 2, 1 / 4)[None, :, None].log(),
        rows([1, 1 / 2], [1, 2])[None, :, :, None],
        scale=1.0,
        initial_state=rows([2, 2], [4, 8])[None, None],
        output_final_state=True,
    )
    # Token 1 decays to (1 1; 2 4). Its first step replaces row 1 by (4 0), its second moves row 2
    # half of its way to (0 2): S1 = (4 0; 1 3).
    # Token 2 decays to (1 0; 1/4 3/4). Its first step finds (5/4 3/4) and adds (-1/4 9/4) to both
    # rows: (3/4 9/4; 0 3). Its second goes past (2 2) by as much: S2 = (13/4 7/4; 0 3).
    torch.testing.assert_close(o[0, :, 0], rows([5, 3], [3.25, 7.75]), rtol=1e-15, atol=0)
    state = rows([3.25, 1.75], [0, 3])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=1e-15)


@both_forms
def test_one_step_is_the_gated_delta_rule(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    g, beta = -draw(3, 2, 7, 3).abs(), torch.sigmoid(draw(4, 2, 7, 3))
    options: dict[str, Any] = {"initial_state": draw(5, 2, 3, 5, 2), "output_final_state": True}
    expected = reference.gated_delta_rule(q, k, v, g, beta, **options)
    got = form(q, k[:, :, None], v[:, :, None], g, beta[:, :, None], **options)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@both_forms
def test_no_steps_are_refused(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), draw(1, 2, 7, 0, 3, 5), draw(2, 2, 7, 0, 3, 2)
    with pytest.raises(ValueError, match="k: 0 steps, expected at least 1"):
        form(q, k, v)
