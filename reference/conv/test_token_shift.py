import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.token_shift)


@both_forms
def test_three_tokens_by_hand(form: Form) -> None:
    x, before = rows([1, 2], [4, 2], [3, 7])[None], rows([5, 5])[None]
    y, final_state = form(x, initial_state=before, output_final_state=True)
    assert torch.equal(y[0], rows([4, 3], [-3, 0], [1, -5]))
    assert torch.equal(final_state[0], rows([3, 7]))


@both_forms
def test_it_is_a_convolution_of_two_taps(form: Form) -> None:
    x, taps = draw(0, 2, 7, 3), rows(1, -1).expand(3, 2)
    state = draw(1, 2, 1, 3)
    expected, _ = reference.short_conv(x, taps, initial_state=state)
    y, _ = form(x, initial_state=state)
    torch.testing.assert_close(y, expected, rtol=1e-15, atol=1e-15)
