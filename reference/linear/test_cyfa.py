import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.cyfa)


def _one_head(
    form: Form, key: float, k: Tensor, v: Tensor, delta: Tensor, **given: Any
) -> tuple[Tensor, Tensor]:
    """The rows of o, and the state, of a head with one channel and three slots, read as they are.

    Each query is 1. A key is `key` times the sign of k.
    """
    large = 2.0**20  # The norm's ε is nothing beside its square.
    tokens = (x.view(1, -1, 1, 1) for x in (torch.full_like(k, large), large * k, v))
    o, final_state = form(
        *tokens,
        delta.view(1, -1, 1),
        torch.eye(3, dtype=torch.float64)[None],
        rows(1),
        rows(key),
        **{name: x.view(1, -1, 1) for name, x in given.items()},
        scale=1.0,
        output_final_state=True,
    )
    return o.flatten(), final_state[0, 0]


@both_forms
def test_three_tokens_by_hand(form: Form) -> None:
    k, v, delta, g = rows(1, 1, 0), rows(9, 14, 36), rows(7, 1, 2), rows(0, 0, -math.inf)
    o, state = _one_head(form, math.log(2), k, v, delta, g=g, beta=rows(1, 2, 1))
    # After token 1: keys (log 2, 0, 0), values (9, 0, 0): p = (2, 1, 1) / 4.
    # After token 2: keys (2 log 2, log 2, 0), values (28, 9, 0): p = (4, 2, 1) / 7.
    # Token 3 forgets both: keys 0, values (36, 0, 0).
    torch.testing.assert_close(o, rows(4.5, 130 / 7, 12), rtol=1e-14, atol=0)
    # Angles up to 2π / 3 · 10 are rounded by 2e-15, beside values of 36.
    torch.testing.assert_close(state, rows([0, 36], [0, 0], [0, 0]), rtol=0, atol=1e-13)


@both_forms
def test_half_a_slot_by_hand(form: Form) -> None:
    """D(x) = (1 + 2 cos(2π x / 3)) / 3 is 2/3 at 1/2 and -1/2, and -1/3 at 3/2."""
    o, state = _one_head(form, math.log(8), rows(1, 0), rows(9, 0), rows(0, 0.5))
    # Keys (2, 2, -1) log 2, values (6, 6, -3): p = (4, 4, 1/2) / 8.5.
    log2 = math.log(2)
    expected = rows([2 * log2, 6], [2 * log2, 6], [-log2, -3])
    torch.testing.assert_close(state, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(o[1:], rows(46.5 / 8.5), rtol=1e-14, atol=0)


@both_forms
def test_a_ring_that_each_token_turns_by_a_slot_is_softmax_attention(form: Form) -> None:
    """At the last token each slot has one."""
    q, k, v = draw(0, 2, 5, 3, 4), draw(1, 2, 5, 3, 4), draw(2, 2, 5, 3, 2)
    weights = draw(3, 4), draw(4, 4)
    one = torch.eye(5, dtype=torch.float64).expand(3, 5, 5)
    o, _ = form(q, k, v, torch.ones(2, 5, 3).double(), one, *weights)
    q, k = (
        w * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        for w, x in zip(weights, (q, k), strict=True)
    )
    expected: Any = reference.attention(q, k, v, causal=True)
    torch.testing.assert_close(o[:, -1], expected[0][:, -1], rtol=1e-13, atol=1e-13)


@both_forms
def test_an_even_number_of_slots_is_refused(form: Form) -> None:
    x = torch.zeros(1, 1, 1, 2)
    with pytest.raises(ValueError, match="readout: 4 slots, expected an odd number"):
        form(x, x, x, x[..., 0], torch.zeros(1, 4, 4), x[0, 0, 0], x[0, 0, 0])
