"""The hand-computed values below share two tokens, K = 2, V = 2, one head and one group:

x1 = (2, 4)    B1 = (1, 2)    C1 = (1, 1)    dt1 = 1/2     A = log 1/4     D = 10
x2 = (3, 1)    B2 = (0, 1)    C2 = (2, 1)    dt2 = 1
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.mamba2)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    y, final_state = form(
        rows([2, 4], [3, 1])[None, :, None],
        rows(1 / 2, 1)[None, :, None],
        rows(1 / 4).log(),
        rows([1, 2], [0, 1])[None, :, None],
        rows([1, 1], [2, 1])[None, :, None],
        rows(10),
        initial_state=rows([4, 0], [0, 8])[None, None],
        output_final_state=True,
    )
    # The state decays by exp(dt A) = 1/2, and 1/4:
    # S1 = (4 0; 0 8) / 2 + B1 x1ᵀ / 2 = (3 2; 2 8),    y1 = (5, 10) + 10 x1
    # S2 = S1 / 4 + B2 x2ᵀ = (3/4 1/2; 7/2 3),          y2 = (5, 4) + 10 x2
    expected = rows([25, 50], [35, 14])
    torch.testing.assert_close(y[0, :, 0], expected, rtol=4e-16, atol=0)
    state = rows([0.75, 0.5], [3.5, 3])
    torch.testing.assert_close(final_state[0, 0], state, rtol=4e-16, atol=0)


@both_forms
@pytest.mark.parametrize("cu_seqlens", [None, torch.tensor([0, 3, 3, 7])], ids=["dense", "packed"])
def test_it_is_simple_gla_of_b_and_c_with_a_skip(form: Form, cu_seqlens: Tensor | None) -> None:
    N, batch = (2, 2) if cu_seqlens is None else (3, 1)
    x, dt = draw(0, batch, 7, 4, 3), torch.nn.functional.softplus(draw(1, batch, 7, 4))
    B, C = draw(2, batch, 7, 2, 5), draw(3, batch, 7, 2, 5)
    A, D = -draw(4, 4).exp(), draw(5, 4)
    options: dict[str, Any] = {
        "initial_state": draw(6, N, 4, 5, 3),
        "output_final_state": True,
        "cu_seqlens": cu_seqlens,
    }
    y, state = form(x, dt, A, B, C, D, **options)
    q, k = (z[:, :, [0, 0, 1, 1]] for z in (C, B))
    o, expected = reference.simple_gla(q, k, dt[..., None] * x, dt * A, scale=1.0, **options)
    torch.testing.assert_close(y, o + D[:, None] * x, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state, expected, rtol=1e-13, atol=1e-13)


@both_forms
def test_a_step_of_zero_changes_nothing(form: Form) -> None:
    x, B, C = draw(0, 1, 3, 2, 3), draw(1, 1, 3, 1, 5), draw(2, 1, 3, 1, 5)
    S, dt = draw(3, 1, 2, 5, 3), torch.zeros(1, 3, 2, dtype=torch.float64)
    y, state = form(x, dt, -torch.ones(2), B, C, initial_state=S, output_final_state=True)
    assert torch.equal(state, S)
    torch.testing.assert_close(y, torch.einsum("btk,bhkv->bthv", C[:, :, 0], S))


@both_forms
def test_one_rate_per_head_is_expected(form: Form) -> None:
    x, B = draw(0, 1, 3, 2, 3), draw(1, 1, 3, 1, 5)
    with pytest.raises(ValueError, match=r"^A: float64\[3\], expected \[H\] with H=2"):
        form(x, draw(2, 1, 3, 2).abs(), -draw(3, 3).abs(), B, B)
