import math
from typing import Any

import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.momentum_delta_rule)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    q, k, v, p = rows([1, 1], [2, 1]), rows([1, 0], [0, 1]), rows([4], [3]), rows([1, 1], [1, 0])
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v, p)),
        *(x[None, :, None] for x in (rows(1 / 2, 1).log(), rows(1 / 2, 1 / 4).log())),
        *(x[None, :, None] for x in (rows(1, 2), rows(1, 1 / 2))),
        scale=1.0,
        initial_state=rows([[2], [0]], [[2], [4]])[None, None],
        output_final_state=True,
    )
    # Token 1: the error is 4 - 2, M1 = (1, 2) + (2, 0) = (3, 2), S1 = (1, 0) + (3, 2) = (4, 2).
    # Token 2: half the error is (3 - 4) / 2, M2 = (3/4, 1/2) + (0, -1/2) = (3/4, 0),
    # S2 = (4, 2) + 2 (3/4, 0) = (11/2, 2).
    torch.testing.assert_close(o[0, :, 0], rows([6], [13]), rtol=1e-15, atol=0)
    state = rows([[5.5], [2]], [[0.75], [0]])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=1e-15)


@both_forms
def test_without_momentum_it_is_comba(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    g, eta, S = -draw(3, 2, 7, 3).abs(), torch.sigmoid(draw(4, 2, 7, 3)), draw(5, 2, 3, 5, 2)
    nothing = torch.full_like(g, -math.inf)
    options: dict[str, Any] = {"output_final_state": True}
    both = torch.stack([S, draw(6, 2, 3, 5, 2)], dim=2)
    o, state = form(q, k, v, k, g, nothing, None, eta, initial_state=both, **options)
    expected, last = reference.comba(q, k, v, k, g, eta, initial_state=S, **options)
    torch.testing.assert_close(o, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state[:, :, 0], last, rtol=1e-13, atol=1e-13)
