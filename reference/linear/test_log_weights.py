"""Averages whose weights are exponentials: lightnet, abc, rwkv4 and mlstm."""

import math
from typing import Any

import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

LOG3 = math.log(3)


@both_forms_of(reference.lightnet)
def test_two_tokens_of_lightnet_by_hand(form: Form) -> None:
    o, final_state = form(
        rows([1, 1], [2, 1])[None, :, None],
        rows([LOG3, 0], [0, math.log(2)])[None, :, None],
        rows([4, 0], [0, 8])[None, :, None],
        scale=1.0,
        initial_state=rows([8, 4, 0], [4, 0, 0])[None, None],
        output_final_state=True,
    )
    # Each channel is an average: of (8 4) with weight 1, (4 0) with 3, (0 8) with 1; and of (4 0)
    # with 1, (4 0) with 1, (0 8) with 2. S1 = (5 1; 4 0), S2 = (4 12/5; 2 4).
    torch.testing.assert_close(o[0, :, 0], rows([9, 1], [10, 8.8]), rtol=1e-15, atol=1e-15)
    state = rows([4, 2.4, math.log(5)], [2, 4, math.log(4)])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-15, atol=1e-15)


@both_forms_of(reference.lightnet)
def test_lightnet_starts_with_the_value_of_the_first_token(form: Form) -> None:
    q, k, v = draw(0, 2, 3, 2, 4), draw(1, 2, 3, 2, 4), draw(2, 2, 3, 2, 5)
    o, _ = form(q, k, v, scale=1.0)
    expected = q[:, 0].sum(-1, keepdim=True) * v[:, 0]
    torch.testing.assert_close(o[:, 0], expected, rtol=1e-14, atol=1e-14)


@both_forms_of(reference.abc)
def test_two_tokens_of_abc_by_hand(form: Form) -> None:
    o, final_state = form(
        rows([0], [LOG3])[None, :, None],
        rows([2], [4])[None, :, None],
        rows([6], [0])[None, :, None],
        rows([0, LOG3], [math.log(2), 0])[None, :, None],
        scale=1.0,
        initial_state=rows([0, 2, 0], [2, 2, 0])[None, None],
        output_final_state=True,
    )
    # Slot 1 averages with weights 1, 1, 2, slot 2 with 1, 3, 1. Values after token 1: 4, 5, read
    # alike. After token 2: keys (1/2 + 2, 8/5 + 4/5) = (5/2, 12/5), values (2, 4), read with the
    # weights 3^(5/2) and 3^(12/5).
    w = 3**0.1
    expected = rows([4.5], [(2 * w + 4) / (w + 1)])
    torch.testing.assert_close(o[0, :, 0], expected, rtol=1e-14, atol=0)
    state = rows([2.5, 2, math.log(4)], [2.4, 4, math.log(5)])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-14, atol=0)


@both_forms_of(reference.rwkv4)
def test_two_tokens_of_rwkv4_by_hand(form: Form) -> None:
    half = math.log(math.log(2))  # a rate of log 2 halves a weight at each token
    o, final_state = form(
        rows([0], [math.log(2)])[None],
        rows([4], [3])[None],
        rows(half),
        rows(LOG3),
        initial_state=rows([8], [0])[None],
        output_final_state=True,
    )
    # o1 = (8 + 3 · 4) / 4. Then (4 + 4) / (1/2 + 1), of which o2 = (8 + 6 · 3) / (3/2 + 6), and
    # (4 + 6) / (3/4 + 2) is left.
    torch.testing.assert_close(o[0], rows([5], [26 / 7.5]), rtol=1e-14, atol=0)
    state = rows([10 / 2.75], [math.log(2.75)])
    torch.testing.assert_close(final_state[0], state, rtol=1e-14, atol=0)


@both_forms_of(reference.mlstm)
def test_two_tokens_of_mlstm_by_hand(form: Form) -> None:
    o, final_state = form(
        rows([1, 1], [0, 1 / 8])[None, :, None],
        rows([1, 0], [2, 2])[None, :, None],
        rows([4], [1])[None, :, None],
        rows(LOG3, 0)[None, :, None],
        rows(1 / 2, 1 / 4)[None, :, None].log(),
        scale=1.0,
        initial_state=rows([2, 1], [4, 0], [7, math.log(2)])[None, None],
        output_final_state=True,
    )
    # With weights: C0 = (4; 8), n0 = (2, 0). C1 = (2; 4) + 3 (4; 0) = (14; 4), n1 = (4, 0):
    # h1 = 18 / 4. C2 = (7/2; 1) + (2; 2), n2 = (1, 0) + (2, 2): h2 = (3/8) / max(1/4, 1).
    torch.testing.assert_close(o[0, :, 0], rows([4.5], [0.375]), rtol=1e-14, atol=0)
    # The total weight is 2 → 1 + 3 → 1 + 1.
    state = rows([2.75, 1.5], [1.5, 1], [7, math.log(2)])
    torch.testing.assert_close(final_state[0, 0], state, rtol=1e-14, atol=0)


@both_forms_of(reference.mlstm)
def test_the_gradient_of_a_gate_of_mlstm_where_the_stabilizer_is_0(form: Form) -> None:
    q, k, v = (rows([x])[None, :, None] for x in (0.5, 1, 3))
    i = rows(0)[None, :, None].requires_grad_()
    o, _ = form(q, k, v, i, rows(0)[None, :, None], scale=1.0)
    # h = 1.5 exp(i) / max(exp(i) / 2, 1).
    assert torch.autograd.grad(o.sum(), i)[0].item() == 1.5


@both_forms_of(reference.selective_scan)
def test_two_tokens_of_the_selective_scan_by_hand(form: Form) -> None:
    y, final_state = form(
        rows([2], [3])[None],
        rows([1], [2])[None],
        rows([1 / 2, 1 / 4]).log(),
        rows([1, 2], [1, 0])[None],
        rows([1, 1], [2, 1])[None],
        rows(10),
        initial_state=rows([4, 8])[None],
        output_final_state=True,
    )
    # S1 = (2, 2) + 2 (1, 2), S2 = (4/4, 6/16) + 6 (1, 0)
    torch.testing.assert_close(y[0], rows([30], [44.375]), rtol=1e-15, atol=0)
    torch.testing.assert_close(final_state[0], rows([7, 0.375]), rtol=1e-15, atol=0)


@both_forms_of(reference.selective_scan)
def test_with_one_rate_for_all_states_the_selective_scan_is_mamba2(form: Form) -> None:
    x, dt = draw(0, 2, 7, 3), draw(1, 2, 7, 3).abs()
    B, C, A, D = draw(2, 2, 7, 5), draw(3, 2, 7, 5), -draw(4, 3).abs(), draw(5, 3)
    S = draw(6, 2, 3, 5)
    options: dict[str, Any] = {"output_final_state": True}
    y, state = form(x, dt, A[:, None].expand(3, 5), B, C, D, initial_state=S, **options)
    B, C = B[:, :, None], C[:, :, None]
    expected, last = reference.mamba2(
        x[..., None], dt, A, B, C, D, initial_state=S[..., None], **options
    )
    assert last is not None
    torch.testing.assert_close(y, expected[..., 0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state, last[..., 0], rtol=1e-13, atol=1e-13)
