from typing import Any

import pytest
import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows, unit

both_forms = both_forms_of(reference.gdn2)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    q, k, v = rows([1, 1], [2, 1]), rows([1, 1], [0, 2]), rows([4, 0], [1, 3])
    g = rows([1 / 2, 1], [1, 1 / 2]).log()
    erase, write = rows([1, 1 / 2], [1, 1 / 4]), rows([1 / 2, 1], [1, 1 / 3])
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v, g, erase, write)),
        scale=1.0,
        initial_state=rows([2, 4], [2, 6])[None, None],
        output_final_state=True,
    )
    # Token 1 decays to (1 2; 2 6), finds (1 2) + (2 6) / 2 = (2 5) and writes (2 0) - (2 5) to both
    # rows: S1 = (1 -3; 2 1).
    # Token 2 decays to (1 -3; 1 1/2), finds 2/4 of the second row, (1/2 1/4), and writes twice
    # (1 1) - (1/2 1/4) to it: S2 = (1 -3; 2 2).
    torch.testing.assert_close(o[0, :, 0], rows([3, -2], [4, -4]), rtol=1e-15, atol=1e-15)
    state = rows([1, -3], [2, 2])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=1e-15)


@both_forms
@pytest.mark.parametrize("normalize", [False, True])
def test_with_one_number_for_both_gates_it_is_kda(form: Form, normalize: bool) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    g, beta = -draw(3, 2, 7, 3, 5).abs(), torch.sigmoid(draw(4, 2, 7, 3))
    options: dict[str, Any] = {
        "use_qk_l2norm_in_kernel": normalize,
        "initial_state": draw(5, 2, 3, 5, 2),
        "output_final_state": True,
    }
    expected = reference.kda(q, k, v, g, beta, **options)
    erase, write = beta[..., None].expand_as(k), beta[..., None].expand_as(v)
    torch.testing.assert_close(
        form(q, k, v, g, erase, write, **options), expected, rtol=1e-13, atol=1e-13
    )
