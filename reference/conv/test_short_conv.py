import math

import pytest
import torch

import reference
from reference.testing import Bad, Form, assert_refused, both_forms_of, draw, each_bad, rows

both_forms = both_forms_of(reference.short_conv)


WEIGHT = rows([1, 10, 100], [1, 0, -1])


@both_forms
def test_three_tokens_of_two_channels_by_hand_the_last_tap_is_the_token_itself(form: Form) -> None:
    x, bias = rows([1, 5], [2, 6], [3, 7])[None], rows(0.5, 0)
    y, state = form(x, WEIGHT, bias, output_final_state=True)
    # Channel 0: 100, 10 + 200, 1 + 20 + 300; channel 1: the token two before, less the token.
    assert torch.equal(y[0], rows([100.5, -5], [210.5, -6], [321.5, -2]))
    assert torch.equal(state[0], rows([2, 6], [3, 7]))


@both_forms
def test_the_state_is_the_tokens_before_oldest_first(form: Form) -> None:
    x, S = rows([1, 5])[None], rows([7, 3], [8, 4])[None]
    y, state = form(x, WEIGHT, initial_state=S, output_final_state=True)
    # 7 + 80 + 100, and 3 - 5. One token moves the state on by one.
    assert torch.equal(y[0], rows([187, -2]))
    assert torch.equal(state[0], rows([8, 4], [1, 5]))


@both_forms
def test_packed_sequences_by_hand(form: Form) -> None:
    x = rows([1, 5], [2, 6], [3, 7])[None]
    S = rows([[7, 3], [8, 4]], [[9, 9], [9, 9]], [[0, 0], [1, 1]])
    cu_seqlens = torch.tensor([0, 1, 1, 3])
    y, state = form(x, WEIGHT, initial_state=S, output_final_state=True, cu_seqlens=cu_seqlens)
    # The last sequence starts after (0, 1): 10 + 200, 1 + 20 + 300, and 0 - 6, 1 - 7.
    assert torch.equal(y[0], rows([187, -2], [210, -6], [321, -6]))
    assert torch.equal(state, rows([[8, 4], [1, 5]], [[9, 9], [9, 9]], [[2, 6], [3, 7]]))


@both_forms
def test_silu_by_hand(form: Form) -> None:
    """silu(log 3) = 3/4 log 3, and silu(-log 3) = -1/4 log 3; it comes after the bias."""
    x, weight = rows([0, 1, -1])[None], rows([math.log(3)] * 3).T
    y, _ = form(x, weight, rows(0, 0, 0), activation="silu")
    want = math.log(3) * rows([0, 3 / 4, -1 / 4])
    torch.testing.assert_close(y[0], want, rtol=4e-16, atol=0)
    shifted, _ = form(0 * x, weight, math.log(3) * rows(0, 1, -1), activation="silu")
    torch.testing.assert_close(shifted[0], want, rtol=4e-16, atol=0)


@both_forms
@pytest.mark.parametrize("taps", [1, 2, 4, 9])
def test_it_is_the_convolution_of_torch(form: Form, taps: int) -> None:
    x, weight, bias = draw(0, 2, 7, 5), draw(1, 5, taps), draw(2, 5)
    y, state = form(x, weight, bias, activation="silu", output_final_state=True)
    padded = torch.nn.functional.pad(x.mT, (taps - 1, 0))
    z = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=5).mT
    want = torch.nn.functional.silu(z)
    torch.testing.assert_close(y, want, rtol=1e-14, atol=1e-14)
    assert torch.equal(state, padded.mT[:, 7:])


@both_forms
def test_one_tap_has_no_state(form: Form) -> None:
    x, weight = draw(0, 2, 7, 5), draw(1, 5, 1)
    S = torch.zeros(2, 0, 5, dtype=torch.float64)
    y, state = form(x, weight, initial_state=S, output_final_state=True)
    assert torch.equal(y, weight[:, 0] * x)
    assert state.shape == (2, 0, 5)


x, weight, bias = draw(0, 2, 7, 5), draw(1, 5, 4), draw(2, 5)
BAD: dict[str, Bad] = {
    "heads": ({"x": x[..., None]}, ValueError, "x: float64[2, 7, 5, 1], expected [B, T, D]"),
    "channels": ({"weight": weight[:4]}, ValueError, "weight: float64[4, 4], expected [D, W]"),
    "no taps": ({"weight": weight[:, :0]}, ValueError, "weight: 0 taps, expected at least 1"),
    "bias": ({"bias": bias[:4]}, ValueError, "bias: float64[4], expected [D] with D=5"),
    "state": (
        {"initial_state": draw(3, 2, 4, 5)},
        ValueError,
        "initial_state: float64[2, 4, 5], expected [N, W-1, D] with N=2, W=4, D=5",
    ),
    "function": ({"activation": "gelu"}, ValueError, "activation: 'gelu', expected 'silu' or None"),
    "flag": ({"activation": True}, TypeError, "activation: True (bool), expected str or None"),
}


@both_forms
@each_bad(BAD)
def test_a_bad_argument_is_named(form: Form, bad: Bad) -> None:
    assert_refused(bad, form, x=x, weight=weight, bias=bias)
