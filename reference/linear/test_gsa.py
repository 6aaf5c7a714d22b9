import math
from typing import Any

import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.gsa)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    q, k, v = rows([math.log(2), 0], [0, math.log(3)]), rows([1, 0], [0, 2]), rows([6], [4])
    s, g = rows([1, 0], [1, 1 / 2]), rows([1, 1], [1 / 2, 1]).log()
    o, final_state = form(
        *(x[None, :, None] for x in (q, k, v, s, g)),
        scale=1.0,
        initial_state=rows([0, 0, 0], [0, 0, 3])[None, None],
        output_final_state=True,
    )
    # After token 1: keys (1 0; 0 0), values (6; 3). Logits (log 2, 0), p = (2/3, 1/3): o1 = 5.
    # After token 2: keys (1/2 2; 0 1), values (3 + 4; 3 + 2). Logits (2 log 3, log 3),
    # p = (3/4, 1/4): o2 = 6.5.
    torch.testing.assert_close(o[0, :, 0], rows([5], [6.5]), rtol=1e-15, atol=0)
    state = rows([0.5, 2, 7], [0, 1, 5])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=0)


@both_forms
def test_a_slot_for_each_token_is_softmax_attention(form: Form) -> None:
    """At the last token all slots are full."""
    q, k, v = draw(0, 2, 5, 3, 4), draw(1, 2, 5, 3, 4), draw(2, 2, 5, 3, 2)
    s = torch.eye(5, dtype=torch.float64)[None, :, None].expand(2, 5, 3, 5)
    o, _ = form(q, k, v, s)
    expected: Any = reference.attention(q, k, v, causal=True)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(o[:, -1], expected[:, -1], rtol=1e-13, atol=1e-13)
