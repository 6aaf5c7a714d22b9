import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.hgrn)


@both_forms
def test_three_tokens_by_hand(form: Form) -> None:
    x, g = rows([1, 2], [4, -1], [0, 3]), rows([1 / 2, 1 / 4], [1, 1 / 2], [1 / 4, 0]).log()
    o, final_state = form(x[None], g[None], initial_state=rows([2, 8]), output_final_state=True)
    # h1 = (1, 2) + (1, 2),   h2 = (2, 2) + (4, -1),   h3 = (6, 0) / 4 + (0, 3)
    torch.testing.assert_close(o[0], rows([2, 4], [6, 1], [1.5, 3]), rtol=1e-15, atol=0)
    torch.testing.assert_close(final_state, rows([1.5, 3]), rtol=1e-15, atol=0)


@both_forms
def test_it_is_gla_of_one_key_and_one_value(form: Form) -> None:
    x, g = draw(0, 2, 7, 3), -draw(1, 2, 7, 3).abs()
    one = torch.ones(2, 7, 3, 1, dtype=torch.float64)
    expected, _ = reference.gla(one, one, x[..., None], g[..., None], scale=1.0)
    o, _ = form(x, g)
    torch.testing.assert_close(o, expected[..., 0], rtol=1e-13, atol=1e-13)
