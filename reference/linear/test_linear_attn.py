"""The hand-computed values below share q, k, v of two tokens, K = 3 and V = 5:

q1 = (1, 2, 3)    k1 = (1, 0, 2)    v1 = (1, 2, 3, 4, 5)
q2 = (0, 1, -1)   k2 = (2, 1, 0)    v2 = (1, 0, -1, 0, 2)

q1·k1 = 7    q2·k1 = -2    q2·k2 = 1    q1·k2 = 4
"""

import math

import torch

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

both_forms = both_forms_of(reference.linear_attn)

Q = rows([1, 2, 3], [0, 1, -1])[None, :, None]
K = rows([1, 0, 2], [2, 1, 0])[None, :, None]
V = rows([1, 2, 3, 4, 5], [1, 0, -1, 0, 2])[None, :, None]
# q, k, v and a state of other dims.
q, k, v, S = draw(0, 2, 7, 3, 5), draw(1, 2, 7, 3, 5), draw(2, 2, 7, 3, 2), draw(3, 2, 3, 5, 2)


@both_forms
def test_two_tokens_by_hand(form: Form) -> None:
    o, final_state = form(Q, K, V, scale=2.0, output_final_state=True)
    # o1 = 2 · 7 v1,  o2 = 2 (-2 v1 + 1 v2)
    assert torch.equal(o[0, :, 0], rows([14, 28, 42, 56, 70], [-2, -8, -14, -16, -16]))
    # S = k1 v1ᵀ + k2 v2ᵀ has the rows v1 + 2 v2, v2, 2 v1
    state = rows([3, 2, 1, 4, 9], [1, 0, -1, 0, 2], [2, 4, 6, 8, 10])
    assert torch.equal(final_state[0, 0], state)


@both_forms
def test_two_tokens_in_reverse_by_hand(form: Form) -> None:
    S = torch.ones(1, 1, 3, 5, dtype=torch.float64)
    o, final_state = form(
        Q, K, V, scale=2.0, initial_state=S, output_final_state=True, reverse=True
    )
    # o2 = 2 (v2 + q2·(1, 1, 1)) = 2 v2,  o1 = 2 (7 v1 + 4 v2 + 6)
    assert torch.equal(o[0, :, 0], rows([34, 40, 46, 68, 98], [2, 0, -2, 0, 4]))
    state = rows([4, 3, 2, 5, 10], [2, 1, 0, 1, 3], [3, 5, 7, 9, 11])
    assert torch.equal(final_state[0, 0], state)


@both_forms
def test_two_tokens_normalized_by_hand(form: Form) -> None:
    o, final_state = form(Q.abs(), K, V, normalize=True, output_final_state=True)
    # o1 = 7 v1 / 7;  |q2| = (0, 1, 1) weighs v1 by 2 and v2 by 1: o2 = (2 v1 + v2) / 3
    expected = rows([1, 2, 3, 4, 5], [3 / 3, 4 / 3, 5 / 3, 8 / 3, 12 / 3])
    torch.testing.assert_close(o[0, :, 0], expected, rtol=1e-15, atol=0)
    # The last column is z = k1 + k2
    state = rows([3, 2, 1, 4, 9, 3], [1, 0, -1, 0, 2, 1], [2, 4, 6, 8, 10, 2])
    assert torch.equal(final_state[0, 0], state)


@both_forms
def test_packed_sequences_by_hand_and_the_state_of_an_empty_one_passes_through(form: Form) -> None:
    S = torch.arange(45, dtype=torch.float64).view(3, 1, 3, 5)
    o, final_state = form(
        Q,
        K,
        V,
        scale=1.0,
        initial_state=S,
        output_final_state=True,
        cu_seqlens=torch.tensor([0, 1, 1, 2]),
    )
    # Sequence 0 is token 1: 7 v1 + (1, 2, 3) S_0, where column c of S_0 is (c, c+5, c+10)
    # Sequence 2 is token 2: 1 v2 + (0, 1, -1) S_2 = v2 - 5
    assert torch.equal(o[0, :, 0], rows([47, 60, 73, 86, 99], [-4, -5, -6, -5, -3]))
    assert torch.equal(final_state[1], S[1])
    assert torch.equal(final_state[0, 0], S[0, 0] + K[0, 0, 0, :, None] * V[0, 0, 0])
    assert torch.equal(final_state[2, 0], S[2, 0] + K[0, 1, 0, :, None] * V[0, 1, 0])


@both_forms
def test_the_default_scale_is_the_inverse_root_of_the_key_dim(form: Form) -> None:
    for scale in (None, -1):
        assert torch.equal(form(Q, K, V, scale=scale)[0], form(Q, K, V, scale=3**-0.5)[0])
    assert torch.equal(form(Q, K, V, scale=-2.0)[0], -2 * form(Q, K, V, scale=1.0)[0])


@both_forms
def test_the_layout_is_sequence_first_and_the_state_is_returned_only_when_asked_for(
    form: Form,
) -> None:
    o, final_state = form(q, k, v, initial_state=S)
    assert o.shape == (2, 7, 3, 2)
    assert final_state is None
    o, final_state = form(q, k, v, output_final_state=True)
    assert final_state.shape == (2, 3, 5, 2)


BAD: dict[str, Bad] = {
    "rank": ({"q": q[0]}, ValueError, "q: float64[7, 3, 5], expected [B, T, H, K]"),
    "heads": ({"k": k[:, :, :2]}, ValueError, "k: float64[2, 7, 2, 5], expected [B, T, H, K]"),
    "key dim": ({"k": k[..., :4]}, ValueError, "k: float64[2, 7, 3, 4], expected [B, T, H, K]"),
    "tokens": ({"v": v[:, :6]}, ValueError, "v: float64[2, 6, 3, 2], expected [B, T, H, V]"),
    "state": ({"initial_state": S[:1]}, ValueError, "initial_state: float64[1, 3, 5, 2], expected"),
    "no z": (
        {"initial_state": S, "normalize": True},
        ValueError,
        "initial_state: float64[2, 3, 5, 2], expected [N, H, K, V+normalize]",
    ),
    "integers": ({"q": q.long()}, TypeError, "q: int64[2, 7, 3, 5], expected float"),
    "dtypes": ({"k": k.float()}, TypeError, "k: float32[2, 7, 3, 5], expected float64"),
    "scale nan": ({"scale": math.nan}, ValueError, "scale: nan, expected a finite number"),
    "scale inf": ({"scale": -math.inf}, ValueError, "scale: -inf, expected a finite number"),
    "scale text": ({"scale": "1"}, TypeError, "scale: '1' (str), expected float"),
    "flag": ({"reverse": 1}, TypeError, "reverse: 1 (int), expected bool"),
    "batch": ({"cu_seqlens": torch.tensor([0, 7])}, ValueError, "cu_seqlens: given with B=2"),
    "cu_seqlens dtype": (
        {"cu_seqlens": torch.tensor([0.0, 7.0])},
        TypeError,
        "cu_seqlens: float32[2], expected int32[N+1]",
    ),
}
BAD |= bad_boundaries(q=q, k=k, v=v)


@both_forms
@each_bad(BAD)
def test_a_bad_argument_is_named(form: Form, bad: Bad) -> None:
    assert_refused(bad, form, q=q, k=k, v=v)
