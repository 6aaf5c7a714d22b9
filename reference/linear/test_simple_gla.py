"""The hand-computed values below share two tokens, K = 3, V = 5 and a state a bᵀ:

q1 = (1, 2, 3)    k1 = (1, 0, 2)    v1 = (1, 2, 3, 4, 5)    exp g1 = 1/2
q2 = (2, 1, 1)    k2 = (2, 1, 0)    v2 = (1, 0, -1, 0, 2)   exp g2 = 1/4
a  = (1, 1, 1)    b  = (4, 0, 0, 0, 0)

q1·k1 = 7    q1·k2 = 4    q1·a = 6    q2·k1 = 4    q2·k2 = 5    q2·a = 4
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Form, assert_forgets, both_forms_of, draw, rows

both_forms = both_forms_of(reference.simple_gla)


Q = rows([1, 2, 3], [2, 1, 1])[None, :, None]
K = rows([1, 0, 2], [2, 1, 0])[None, :, None]
V = rows([1, 2, 3, 4, 5], [1, 0, -1, 0, 2])[None, :, None]
G = rows(1 / 2, 1 / 4)[None, :, None].log()
S0 = (rows(1, 1, 1)[:, None] * rows(4, 0, 0, 0, 0))[None, None]


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=4e-16, atol=4e-16)


@both_forms
def test_two_tokens_by_hand_with_gates_in_natural_log_space(form: Form) -> None:
    o, final_state = form(Q, K, V, G, scale=1.0, initial_state=S0, output_final_state=True)
    # Token 1 finds the state a bᵀ / 2: o1 = 7 v1 + 6 b / 2.
    # Token 2 finds it as a bᵀ / 8, and k1 as k1 / 4: o2 = 5 v2 + 4 v1 / 4 + 4 b / 8.
    assert_close(o[0, :, 0], rows([19, 14, 21, 28, 35], [8, 2, -2, 4, 15]))
    # S2 = k2 v2ᵀ + k1 v1ᵀ / 4 + a bᵀ / 8
    state = rows([2.75, 0.5, -1.25, 1, 5.25], [1.5, 0, -1, 0, 2], [1, 1, 1.5, 2, 2.5])
    assert_close(final_state[0, 0], state)


@both_forms
def test_two_tokens_in_reverse_by_hand(form: Form) -> None:
    o, final_state = form(
        Q, K, V, G, scale=1.0, initial_state=S0, output_final_state=True, reverse=True
    )
    # Token 2 comes first and finds the state a bᵀ / 4: o2 = 5 v2 + 4 b / 4.
    # Token 1 finds it as a bᵀ / 8, and k2 as k2 / 2: o1 = 7 v1 + 4 v2 / 2 + 6 b / 8.
    assert_close(o[0, :, 0], rows([12, 14, 19, 28, 39], [9, 0, -5, 0, 10]))
    # S = k1 v1ᵀ + k2 v2ᵀ / 2 + a bᵀ / 8
    state = rows([2.5, 2, 2, 4, 7], [1, 0, -0.5, 0, 1], [2.5, 4, 6, 8, 10])
    assert_close(final_state[0, 0], state)


@both_forms
@pytest.mark.parametrize("reverse", [False, True])
def test_it_is_gla_with_the_same_decay_in_every_key_channel(form: Form, reverse: bool) -> None:
    q, k, v, S = draw(0, 2, 7, 3, 5), draw(1, 2, 7, 3, 5), draw(2, 2, 7, 3, 2), draw(3, 2, 3, 5, 2)
    g = -draw(4, 2, 7, 3).abs()
    options: dict[str, Any] = {
        "initial_state": S,
        "output_final_state": True,
        "reverse": reverse,
    }
    expected = reference.gla(q, k, v, g[..., None].expand_as(k), **options)
    torch.testing.assert_close(form(q, k, v, g, **options), expected, rtol=1e-13, atol=1e-13)


@both_forms
@pytest.mark.parametrize("closed", [-math.inf, -1e4])
def test_a_closed_gate_forgets_everything_before_it_and_leaves_finite_gradients(
    form: Form, closed: float
) -> None:
    q, k, v = draw(0, 1, 7, 3, 5), draw(1, 1, 7, 3, 5), draw(2, 1, 7, 3, 2)
    g = -draw(4, 1, 7, 3).abs()
    g[:, 3] = closed
    assert_forgets(form, reference.simple_gla, q, k, v, g, tolerance=1e-14)


@both_forms
def test_small_gates_behind_a_large_one_keep_their_digits(form: Form) -> None:
    """A difference of prefix sums would round the small gates to multiples of 2^-40."""
    q, k = torch.ones(2, 1, 3, 1, 1, dtype=torch.float64)
    v = rows(0, 1, 0)[None, :, None, None]
    o, _ = form(q, k, v, rows(-1e4, 0, -0.1)[None, :, None], scale=1.0)
    assert_close(o[0, 2, 0, 0], torch.tensor(math.exp(-0.1), dtype=torch.float64))


@both_forms
def test_a_gate_per_channel_is_refused(form: Form) -> None:
    with pytest.raises(ValueError, match=r"^g: float64\[1, 2, 1, 3\], expected \[B, T, H\]"):
        form(Q, K, V, torch.zeros_like(K))
