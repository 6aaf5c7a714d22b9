"""The hand-computed values below share two tokens, K = 3, V = 5 and a state a bᵀ:

    q1 = (1, 2, 3)    k1 = (1, 0, 2)    v1 = (1, 2, 3, 4, 5)    d1 = (1/4, 1/2, 1/2)
    q2 = (2, 1, -1)   k2 = (2, 1, 0)    v2 = (1, 0, -1, 0, 2)   d2 = (1/2, 1/4, 1)
    a  = (1, 1, 1)    b  = (4, 0, 0, 0, 0)

where d is exp(g), and e = exp(gv) is e1 = (1/2, 1, 1, 1, 1), e2 = (1/2, 1, 1, 1, 1/4).
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import (
    Bad,
    Form,
    assert_refused,
    bad_boundaries,
    both_forms_of,
    draw,
    each_bad,
    rows,
)

both_forms = both_forms_of(reference.gla)

Q = rows([1, 2, 3], [2, 1, -1])[None, :, None]
K = rows([1, 0, 2], [2, 1, 0])[None, :, None]
V = rows([1, 2, 3, 4, 5], [1, 0, -1, 0, 2])[None, :, None]
G = rows([1 / 4, 1 / 2, 1 / 2], [1 / 2, 1 / 4, 1])[None, :, None].log()
GV = rows([1 / 2, 1, 1, 1, 1], [1 / 2, 1, 1, 1, 1 / 4])[None, :, None].log()
S0 = (rows(1, 1, 1)[:, None] * rows(4, 0, 0, 0, 0))[None, None]


def inputs(B: int = 2, T: int = 7, H: int = 3, K: int = 5, V: int = 2) -> Any:
    """q, k, v, g, gv and a state."""
    q, k, v = draw(0, B, T, H, K), draw(1, B, T, H, K), draw(2, B, T, H, V)
    g, gv = -draw(4, B, T, H, K).abs(), -draw(5, B, T, H, V).abs()
    return q, k, v, g, gv, draw(3, B, H, K, V)


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=4e-16, atol=4e-16)


@both_forms
def test_two_tokens_by_hand_with_gates_in_natural_log_space(form: Form) -> None:
    o, final_state = form(Q, K, V, G, gv=GV, scale=1.0, initial_state=S0, output_final_state=True)
    # Token 1 finds the state (1/4, 1/2, 1/2) (2, 0, 0, 0, 0)ᵀ: o1 = 7 v1 + (5.5, 0, 0, 0, 0).
    # Token 2 finds it as (1/8, 1/8, 1/2) (1, 0, 0, 0, 0)ᵀ, k1 as (1/2, 0, 2) and v1 as
    # (1/2, 2, 3, 4, 5/4): o2 = 5 v2 - 1 (1/2, 2, 3, 4, 5/4) - (1/8, 0, 0, 0, 0).
    assert_close(o[0, :, 0], rows([12.5, 14, 21, 28, 35], [4.375, -2, -8, -4, 8.75]))
    # S2 = k2 v2ᵀ + (1/2, 0, 2) (1/2, 2, 3, 4, 5/4)ᵀ + (1/8, 1/8, 1/2) (1, 0, 0, 0, 0)ᵀ
    state = rows([2.375, 1, -0.5, 2, 4.625], [1.125, 0, -1, 0, 2], [1.5, 4, 6, 8, 2.5])
    assert_close(final_state[0, 0], state)


@both_forms
def test_two_tokens_in_reverse_by_hand(form: Form) -> None:
    o, final_state = form(
        Q, K, V, G, scale=1.0, initial_state=S0, output_final_state=True, reverse=True
    )
    # Token 2 comes first and finds the state (1/2, 1/4, 1) bᵀ: o2 = 5 v2 + 1/4 b.
    # Token 1 finds it as (1/8, 1/8, 1/2) bᵀ and k2 as (1/2, 1/2, 0):
    # o1 = 7 v1 + 3/2 v2 + 15/8 b.
    assert_close(o[0, :, 0], rows([16, 14, 19.5, 28, 38], [6, 0, -5, 0, 10]))
    # S = k1 v1ᵀ + (1/2, 1/2, 0) v2ᵀ + (1/8, 1/8, 1/2) bᵀ
    state = rows([2, 2, 2.5, 4, 6], [1, 0, -0.5, 0, 1], [4, 4, 6, 8, 10])
    assert_close(final_state[0, 0], state)


@both_forms
def test_the_normalizer_is_decayed_by_g_and_not_by_gv(form: Form) -> None:
    q = Q.abs()
    o, final_state = form(q, K, V, G, gv=GV, normalize=True, output_final_state=True)
    # z1 = k1, z2 = (1/2, 0, 2) + k2 = (5/2, 1, 2);  |q2|·z2 = 8, |q2|·(1/2, 0, 2) = 3
    assert_close(final_state[0, 0, :, -1], rows(2.5, 1, 2))
    # o1 = 7 v1 / 7,  o2 = (5 v2 + 3 (1/2, 2, 3, 4, 5/4)) / 8
    expected = rows([1, 2, 3, 4, 5], [6.5 / 8, 6 / 8, 4 / 8, 12 / 8, 13.75 / 8])
    assert_close(o[0, :, 0], expected)


@both_forms
def test_without_gates_it_is_linear_attention(form: Form) -> None:
    q, k, v, _, _, S = inputs()
    options = {"initial_state": S, "output_final_state": True}
    expected = reference.linear_attn(q, k, v, **options)
    torch.testing.assert_close(form(q, k, v, **options), expected, rtol=1e-14, atol=1e-14)


@both_forms
@pytest.mark.parametrize("closed", [-math.inf, -1e4])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_closed_gate_forgets_everything_before_it_and_leaves_finite_gradients(
    form: Form, closed: float, reverse: bool
) -> None:
    """Token 3 forgets, in the order in which tokens are run, so it starts a sequence anew."""
    q, k, v, g, gv, _ = inputs(B=1)
    g, gv = g.clone(), gv.clone()
    g[:, 3] = closed
    cut = torch.tensor([0, 4, 7]) if reverse else torch.tensor([0, 3, 7])
    leaves = [x.requires_grad_() for x in (q, k, v, g, gv)]
    o, final_state = form(*leaves[:4], gv=leaves[4], output_final_state=True, reverse=reverse)
    expected, states = reference.gla(
        q, k, v, g, gv=gv, output_final_state=True, reverse=reverse, cu_seqlens=cut
    )
    torch.testing.assert_close(o, expected, rtol=1e-14, atol=1e-14)
    assert states is not None
    last = states[0 if reverse else 1]
    torch.testing.assert_close(final_state[0], last, rtol=1e-14, atol=1e-14)
    gradients = torch.autograd.grad(o.sum() + final_state.sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert torch.equal(gradients[3][:, 3], torch.zeros_like(g[:, 3]))


@both_forms
def test_small_gates_behind_a_large_one_keep_their_digits(form: Form) -> None:
    """A difference of prefix sums would round the small gates to multiples of 2^-40."""
    q, k, v = torch.ones(3, 1, 3, 1, 1, dtype=torch.float64)
    v = rows(0, 1, 0)[None, :, None, None]
    g = rows(-1e4, 0, -0.1)[None, :, None, None]
    o, _ = form(q, k, v, g, scale=1.0)
    assert_close(o[0, 2, 0, 0], torch.tensor(math.exp(-0.1), dtype=torch.float64))


@both_forms
def test_the_state_is_as_wide_as_the_gate(form: Form) -> None:
    q, k, v, g, _, _ = inputs()
    narrow = [x.bfloat16() for x in (q, k, v)]
    o, final_state = form(*narrow, g.float(), output_final_state=True)
    assert (o.dtype, final_state.dtype) == (torch.bfloat16, torch.float32)
    o, final_state = form(q, k, v, g.bfloat16(), output_final_state=True)
    assert (o.dtype, final_state.dtype) == (torch.float64, torch.float64)


q, k, v, g, gv, S = inputs()
BAD: dict[str, Bad] = {
    "g per head": ({"g": g[..., 0]}, ValueError, "g: float64[2, 7, 3], expected [B, T, H, K]"),
    "g of values": ({"g": gv}, ValueError, "g: float64[2, 7, 3, 2], expected [B, T, H, K]"),
    "gv of keys": ({"gv": g}, ValueError, "gv: float64[2, 7, 3, 5], expected [B, T, H, V]"),
    "g integer": ({"g": g.long()}, TypeError, "g: int64[2, 7, 3, 5], expected float[B, T, H, K]"),
    "no z": (
        {"initial_state": S, "normalize": True},
        ValueError,
        "initial_state: float64[2, 3, 5, 2], expected [N, H, K, V+normalize]",
    ),
}
BAD |= bad_boundaries(q=q, k=k, v=v)


@both_forms
@each_bad(BAD)
def test_a_bad_argument_is_named(form: Form, bad: Bad) -> None:
    assert_refused(bad, form, q=q, k=k, v=v)
