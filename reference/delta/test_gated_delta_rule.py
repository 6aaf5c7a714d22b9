from typing import Any

import pytest
import torch

import reference
from reference.testing import (
    Form,
    assert_forgets,
    assert_nothing_grows,
    both_forms_of,
    draw,
    rows,
    unit,
)

both_forms = both_forms_of(reference.gated_delta_rule)


@both_forms
def test_two_tokens_of_two_value_heads_by_hand(form: Form) -> None:
    """Head 0 decays by 1/2 and 1/4 and writes with strengths 1 and 1/2; head 1 only reads."""
    q, k = rows([1, 1], [1, 1])[None, :, None], rows([1, 0], [0, 2])[None, :, None]
    v = rows([[1, 2], [9, 9]], [[3, 4], [9, 9]])[None]
    g = rows([1 / 2, 1], [1 / 4, 1])[None].log()
    beta = rows([1, 0], [1 / 2, 0])[None]
    S = rows([[4, 0], [0, 8]], [[4, 0], [0, 8]])[None]
    o, state = form(q, k, v, g, beta, scale=1.0, initial_state=S, output_final_state=True)
    # Token 1 finds (2 0; 0 4), in it (2, 0), and writes (1, 2) - (2, 0): S1 = (1 2; 0 4).
    # Token 2 finds (1/4 1/2; 0 1), in it (0, 2), and writes ((3, 4) - (0, 2)) / 2 = (3/2, 1)
    # with a key of norm 2: S2 = (1/4 1/2; 3 3).
    want = rows([[1, 6], [4, 8]], [[3.25, 3.5], [4, 8]])
    torch.testing.assert_close(o[0], want, rtol=1e-15, atol=0)
    want = rows([[0.25, 0.5], [3, 3]], [[4, 0], [0, 8]])
    torch.testing.assert_close(state[0], want, rtol=1e-15, atol=0)


@both_forms
def test_value_head_h_reads_key_head_h_over_the_heads_of_a_group(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 2, 5), unit(draw(1, 2, 7, 2, 5)), draw(2, 2, 7, 6, 3)
    g, beta = -draw(3, 2, 7, 6).abs(), torch.sigmoid(draw(4, 2, 7, 6))
    o, _ = form(q, k, v, g, beta)
    repeated = [x[:, :, [0, 0, 0, 1, 1, 1]] for x in (q, k)]
    assert torch.equal(o, form(*repeated, v, g, beta)[0])


@both_forms
def test_without_gates_it_is_the_delta_rule_and_without_strength_it_forgets_alone(
    form: Form,
) -> None:
    q, k, v = draw(0, 2, 7, 3, 5), unit(draw(1, 2, 7, 3, 5)), draw(2, 2, 7, 3, 2)
    g, beta = -draw(3, 2, 7, 3).abs(), 2 * torch.sigmoid(draw(4, 2, 7, 3))
    options: dict[str, Any] = {"initial_state": draw(5, 2, 3, 5, 2), "output_final_state": True}
    expected = reference.delta_rule(q, k, v, beta, **options)
    torch.testing.assert_close(
        form(q, k, v, None, beta, **options), expected, rtol=1e-13, atol=1e-13
    )
    expected = reference.simple_gla(q, 0 * k, v, g, **options)
    torch.testing.assert_close(
        form(q, k, v, g, 0 * beta, **options), expected, rtol=1e-13, atol=1e-13
    )


@both_forms
@pytest.mark.parametrize("closed", [-torch.inf, -1e4])
def test_a_closed_gate_forgets_everything_before_it_and_leaves_finite_gradients(
    form: Form, closed: float
) -> None:
    q, k, v = draw(0, 1, 7, 3, 5), unit(draw(1, 1, 7, 3, 5)), draw(2, 1, 7, 3, 2)
    g, beta = -draw(3, 1, 7, 3).abs(), 2 * torch.sigmoid(draw(4, 1, 7, 3))
    g[:, 3] = closed
    assert_forgets(form, reference.gated_delta_rule, q, k, v, g, beta, tolerance=1e-13)


@both_forms
@pytest.mark.parametrize("gate", [0.0, -1e-3, -1.0, -100.0])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e3])
def test_nothing_grows_while_gates_are_closed_or_open_and_beta_k_k_is_at_most_2(
    form: Form, gate: float, spread: float
) -> None:
    T = 200
    k = 3 * unit(draw(0, 1, 1, 3, 5) + spread * draw(1, 1, T, 3, 5))
    g, beta = torch.full((2, 1, T, 3), gate, dtype=torch.float64)
    beta = 2 / 9 * torch.sigmoid(beta + 4 * draw(2, 1, T, 3))
    assert_nothing_grows(lambda v, **options: form(k, k, v, g, beta, **options), T)
