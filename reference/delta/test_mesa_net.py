import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.mesa_net)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    q, k = rows([2, 2], [9, 9]), rows([1, 0], [1, 1])
    o, state = form(
        q[None, :, None],
        k[None, :, None],
        rows([6], [4])[None, :, None],
        rows([1, 2]),
        rows(1, 1 / 2).log()[None, :, None],
        rows(2, 1)[None, :, None],
        output_final_state=True,
    )
    # Token 1: S = (2 0; 0 0), 12 and 0 of values; (3 0; 0 2) x = (2, 2), o = 12 · 2 / 3.
    # Token 2: S = (2 1; 1 1), 10 and 4 of values; (3 1; 1 3) x = (9, 9), x = (9/4, 9/4).
    torch.testing.assert_close(o.flatten(), rows(8, 14 * 9 / 4), rtol=1e-15, atol=0)
    assert torch.equal(state[0, 0], rows([2, 1, 10], [1, 1, 4]))


@both_forms
def test_it_is_the_ridge_regression_of_the_tokens_so_far(form: Form) -> None:
    q, k, v = draw(0, 1, 6, 1, 3), draw(1, 1, 6, 1, 3), draw(2, 1, 6, 1, 2)
    lamb = draw(3, 1, 3).exp()
    # Least squares of the tokens, with a row more for each channel.
    A = torch.cat([k[0, :, 0], torch.diag(lamb[0].sqrt())])
    b = torch.cat([v[0, :, 0], torch.zeros(3, 2, dtype=torch.float64)])
    W = torch.linalg.lstsq(A, b).solution
    o, _ = form(q, k, v, lamb)
    torch.testing.assert_close(o[0, -1, 0], q[0, -1, 0] @ W, rtol=1e-12, atol=1e-12)


@both_forms
def test_a_large_ridge_leaves_linear_attention(form: Form) -> None:
    q, k, v = draw(0, 2, 5, 3, 4), draw(1, 2, 5, 3, 4), draw(2, 2, 5, 3, 2)
    g = -draw(3, 2, 5, 3).abs()
    expected, _ = reference.simple_gla(q, k, v, g, scale=1.0)
    o, _ = form(q, k, v, torch.full((3, 4), 1e9, dtype=torch.float64), g)
    torch.testing.assert_close(1e9 * o, expected, rtol=1e-7, atol=1e-7)
