from typing import Any

import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.gated_oja_rule)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    q, k, v = rows([1, 0], [1, 2]), rows([1, 3], [0, 2]), rows([1, 0], [1, 1])
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v)),
        rows([1 / 2, 1], [1, 1 / 2])[None, :, None].log(),
        rows(1, 1 / 2)[None, :, None],
        scale=1.0,
        initial_state=rows([4, 2], [0, 6])[None, None],
        output_final_state=True,
    )
    # Token 1 decays to (2 2; 0 6), finds (2, 0) and adds (1, 3) - (2, 0) to the first column:
    # S1 = (1 2; 3 6). Token 2 decays to (1 1; 3 3), finds (2, 6) and adds half of (-2, -4) to both
    # columns: S2 = (0 0; 1 1).
    torch.testing.assert_close(o[0, :, 0], rows([1, 2], [2, 2]), rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(final_state[0, 0], rows([0, 0], [1, 1]), rtol=1e-15, atol=1e-15)


@both_forms
def test_its_state_is_the_transpose_of_that_of_kda(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), draw(1, 2, 7, 3, 5), unit(draw(2, 2, 7, 3, 2))
    gv, beta, S = -draw(3, 2, 7, 3, 2).abs(), torch.sigmoid(draw(4, 2, 7, 3)), draw(5, 2, 3, 5, 2)
    options: dict[str, Any] = {"output_final_state": True}
    _, state = form(q, k, v, gv, beta, initial_state=S, **options)
    _, expected = reference.kda(v, v, k, gv, beta, initial_state=S.mT, **options)
    assert expected is not None
    torch.testing.assert_close(state, expected.mT, rtol=1e-13, atol=1e-13)
