from typing import Any

import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.rwkv6)


@both_forms
def test_two_tokens_by_hand_the_state_is_read_before_the_token(form: Form) -> None:
    r, k, v = rows([1, 2], [2, 1]), rows([1, 1], [2, 0]), rows([1, 0, 2], [0, 3, 1])
    w, u = rows([1 / 2, 1], [1 / 4, 1 / 2]).log(), rows([3, -1])
    o, final_state = form(
        *(x[None, :, None] for x in (r, k, v, w)),
        u,
        scale=1.0,
        initial_state=rows([2, 4, 0], [0, 2, 2])[None, None],
        output_final_state=True,
    )
    # Token 1 reads (2 8 4) of the state, and 3 - 2 = 1 times v1.
    # S1 = (1 2 0; 0 2 2) + (1 0 2; 1 0 2) = (2 2 2; 1 2 4)
    # Token 2 reads (5 6 8), and 2 · 3 · 2 = 12 times v2.
    # S2 = (1/2 1/2 1/2; 1/2 1 2) + (0 6 2; 0 0 0)
    torch.testing.assert_close(o[0, :, 0], rows([3, 8, 6], [5, 42, 20]), rtol=1e-15, atol=0)
    state = rows([0.5, 6.5, 2.5], [0.5, 1, 2])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=0)


@both_forms
def test_with_the_bonus_for_a_decay_it_is_gla_whose_query_decays(form: Form) -> None:
    """S_tᵀ q = (diag(exp w) S_{t-1} + k vᵀ)ᵀ q is what r = exp(w) ∘ q reads with u = exp(-w)."""
    q, k, v = draw(0, 2, 7, 3, 5), draw(1, 2, 7, 3, 5), draw(2, 2, 7, 3, 2)
    w = -draw(3, 3, 5).abs()
    g = w.expand(2, 7, 3, 5)
    options: dict[str, Any] = {"initial_state": draw(5, 2, 3, 5, 2), "output_final_state": True}
    expected = reference.gla(q, k, v, g, **options)
    torch.testing.assert_close(
        form(g.exp() * q, k, v, g, (-w).exp(), **options), expected, rtol=1e-13, atol=1e-13
    )
