"""The hand-computed values below share q, k, v of two tokens, K = 3 and V = 5:

q1 = (1, 2, 3)    k1 = (1, 0, 2)    v1 = (1, 2, 3, 4, 5)
q2 = (0, 1, -1)   k2 = (2, 1, 0)    v2 = (1, 0, -1, 0, 2)

q1·k1 = 7    q2·k1 = -2    q2·k2 = 1    q1·k2 = 4
"""

import itertools
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

FORMS: list[Form] = [reference.linear_attn, reference.linear_attn.second_form]
both_forms = both_forms_of(reference.linear_attn)

Q = torch.tensor([[1, 2, 3], [0, 1, -1]], dtype=torch.float64)[None, :, None]
K = torch.tensor([[1, 0, 2], [2, 1, 0]], dtype=torch.float64)[None, :, None]
V = torch.tensor([[1, 2, 3, 4, 5], [1, 0, -1, 0, 2]], dtype=torch.float64)[None, :, None]


def inputs(
    N: int = 2,
    B: int = 2,
    T: int = 7,
    H: int = 3,
    K: int = 5,
    V: int = 2,
    normalize: bool = False,
    requires_grad: bool = False,
) -> Any:
    """q, k, v and a state; without sign where they are to be normalised."""
    tensors = [draw(0, B, T, H, K), draw(1, B, T, H, K), draw(2, B, T, H, V)]
    tensors.append(draw(3, N, H, K, V + normalize))
    if normalize:
        tensors = [x if x is tensors[2] else x.abs() for x in tensors]
    return [x.requires_grad_(requires_grad) for x in tensors]


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
def test_two_tokens_normalised_by_hand(form: Form) -> None:
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
def test_a_normalised_row_does_not_depend_on_the_scale_unless_it_is_zero(form: Form) -> None:
    q, k, v, S = inputs(normalize=True)
    o, _ = form(q, k, v, normalize=True, initial_state=S)
    for scale in (-1, 3.0, -0.5, 1e-300):
        assert torch.equal(form(q, k, v, scale=scale, normalize=True, initial_state=S)[0], o)
    zero, _ = form(q, k, v, scale=0.0, normalize=True, initial_state=S)
    assert torch.equal(zero, torch.zeros_like(o))


@both_forms
def test_a_row_without_weight_is_zero_and_has_zero_gradients(form: Form) -> None:
    q, k, v, S = inputs(normalize=True)
    q[:, 3] = 0
    leaves = [x.requires_grad_() for x in (q, k, v, S)]
    o, _ = form(q, k, v, normalize=True, initial_state=S)
    assert torch.equal(o[:, 3], torch.zeros_like(o[:, 3]))
    for gradient in torch.autograd.grad(o[:, 3].sum(), leaves):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("cu_seqlens", [None, [0, 3, 3, 7]], ids=["dense", "packed"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("scale", [None, -0.7])
def test_both_forms_agree(
    scale: float | None, normalize: bool, reverse: bool, cu_seqlens: list[int] | None
) -> None:
    """A term scale · q k v meets at most T + K + 4 roundings on its way into o, in either form:
    K of the inner product, T + 1 of the sum over tokens and the state, and three products. With
    u = 2^-53 and Y the op on absolute values, a form is thus within (T + K + 4) u Y of the truth.
    A quotient adds the relative error of its denominator, whose terms have one sign, and one more.
    """
    N = 3 if cu_seqlens else 2
    q, k, v, S = inputs(N=N, B=1 if cu_seqlens else 2, normalize=normalize)
    options: dict[str, Any] = {
        "normalize": normalize,
        "output_final_state": True,
        "reverse": reverse,
        "cu_seqlens": torch.tensor(cu_seqlens) if cu_seqlens else None,
    }
    got = [form(q, k, v, scale=scale, initial_state=S, **options) for form in FORMS]
    magnitude = reference.linear_attn(
        q.abs(), k.abs(), v.abs(), scale=scale and abs(scale), initial_state=S.abs(), **options
    )
    steps = 7 + 5 + 4
    unit = 2.0**-53
    for first, second, Y in zip(*got, magnitude, strict=True):
        bound = 2 * (2 * steps + 1 if normalize else steps) * unit * Y
        assert ((first - second).abs() <= bound).all()


@both_forms
@pytest.mark.parametrize(
    ("normalize", "reverse", "packed"), list(itertools.product([False, True], repeat=3))
)
def test_gradients_through_output_and_final_state(
    form: Form, normalize: bool, reverse: bool, packed: bool
) -> None:
    N, B = (3, 1) if packed else (2, 2)
    leaves = inputs(N=N, B=B, T=3, H=1, K=2, V=3, normalize=normalize, requires_grad=True)
    cu_seqlens = torch.tensor([0, 2, 2, 3]) if packed else None

    def function(q: Tensor, k: Tensor, v: Tensor, S: Tensor) -> Any:
        return form(
            q,
            k,
            v,
            scale=-0.7,
            normalize=normalize,
            initial_state=S,
            output_final_state=True,
            reverse=reverse,
            cu_seqlens=cu_seqlens,
        )

    assert torch.autograd.gradcheck(function, leaves)


@both_forms
def test_the_layout_is_sequence_first_and_the_state_is_returned_only_when_asked_for(
    form: Form,
) -> None:
    q, k, v, S = inputs()
    o, final_state = form(q, k, v, initial_state=S)
    assert o.shape == (2, 7, 3, 2)
    assert final_state is None
    o, final_state = form(q, k, v, output_final_state=True)
    assert final_state.shape == (2, 3, 5, 2)


@both_forms
@pytest.mark.parametrize("cu_seqlens", [None, torch.tensor([0, 0, 0])])
def test_without_tokens_the_state_passes_through(form: Form, cu_seqlens: Tensor | None) -> None:
    q, k, v, S = inputs(B=2 if cu_seqlens is None else 1, T=0)
    for normalize in (False, True):
        state = torch.nn.functional.pad(S, (0, int(normalize)), value=3.0)
        o, final_state = form(
            q,
            k,
            v,
            normalize=normalize,
            initial_state=state,
            output_final_state=True,
            cu_seqlens=cu_seqlens,
        )
        assert o.shape == v.shape
        assert torch.equal(final_state, state)


@both_forms
def test_no_dtype_is_forced(form: Form) -> None:
    q, k, v, S = (x.bfloat16() for x in inputs())
    o, final_state = form(q, k, v, output_final_state=True)
    assert (o.dtype, final_state.dtype) == (torch.bfloat16, torch.bfloat16)
    o, final_state = form(q, k, v, initial_state=S.float(), output_final_state=True)
    assert (o.dtype, final_state.dtype) == (torch.bfloat16, torch.float32)
    o, final_state = form(q.double(), k.double(), v.double(), output_final_state=True)
    assert (o.dtype, final_state.dtype) == (torch.float64, torch.float64)


q, k, v, S = inputs()
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
