"""The hand-computed values below share two queries and three keys, K = 2 and V = 3:

    q_1 = (1, 0)    k_j = (log a_j, log b_j)    a = (1, 2, 5)
    q_2 = (0, 1)    v_j = the j-th unit vector  b = (3, 1, 4)

so that at scale 1 an output has the weights of the keys: a / (a + n) for query 1, where n keys are
seen, as sigmoid(log a - log n) = a / (a + n). The positions among the keys are p = 1 and 2.
"""

import math
from typing import Any

import pytest
import torch

import reference
from reference.testing import Bad, Form, assert_refused, both_forms_of, draw, rows

both_forms = both_forms_of(reference.sigmoid_attention)

Q = torch.eye(2, dtype=torch.float64)[None, :, None]
K = rows([1, 2, 5], [3, 1, 4]).log().T[None, :, None]
V = torch.eye(3, dtype=torch.float64)[None, :, None]


def inputs(B: int = 2, T_q: int = 5, T_k: int = 7) -> Any:
    return draw(0, B, T_q, 6, 3), draw(1, B, T_k, 2, 3), draw(2, B, T_k, 2, 5)


@both_forms
@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({}, (1 / 4, 2 / 5, 5 / 8), (3 / 6, 1 / 4, 4 / 7)),
        ({"causal": True}, (1 / 3, 2 / 4, 0), (3 / 6, 1 / 4, 4 / 7)),
        ({"causal": True, "window": 1}, (0, 2 / 3, 0), (0, 0, 4 / 5)),
        ({"window": 2}, (1 / 4, 2 / 5, 5 / 8), (0, 1 / 3, 4 / 6)),
        ({"bias": math.log(2)}, (2 / 3, 4 / 5, 10 / 11), (6 / 7, 2 / 3, 8 / 9)),
        ({"bias": 0, "causal": True}, (1 / 2, 2 / 3, 0), (3 / 4, 1 / 2, 4 / 5)),
        # The bias is not scaled.
        ({"bias": math.log(2), "scale": 2.0}, (2 / 3, 8 / 9, 50 / 51), (18 / 19, 2 / 3, 32 / 33)),
    ],
)
def test_weights_by_hand(form: Form, options: dict[str, Any], first: Any, second: Any) -> None:
    o = form(Q, K, V, **{"scale": 1.0, **options})
    torch.testing.assert_close(o[0, :, 0], rows(first, second), rtol=1e-15, atol=1e-15)


@both_forms
def test_packed_sequences_count_their_own_keys(form: Form) -> None:
    q, k, v = inputs(B=1)
    boundaries = [0, 2, 2, 5], [0, 3, 4, 7]
    cu_seqlens, cu_seqlens_k = (torch.tensor(x) for x in boundaries)
    o = form(q, k, v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k)
    for n in range(3):
        i, j = (slice(x[n], x[n + 1]) for x in boundaries)
        assert torch.equal(o[:, i], form(q[:, i], k[:, j], v[:, j]))


@both_forms
@pytest.mark.parametrize("bias", [None, -1.5])
@pytest.mark.parametrize("T_k", [0, 2])
def test_a_row_that_sees_no_key_is_zero_and_has_no_gradient(
    form: Form, T_k: int, bias: float | None
) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(T_k=T_k))
    o = form(q, k, v, causal=True, bias=bias)
    assert torch.equal(o[:, : 5 - T_k], torch.zeros_like(o[:, : 5 - T_k]))
    if not o.requires_grad:
        return  # nothing was read but the shapes
    gradients = torch.autograd.grad(
        o.sum(), (q, k, v), allow_unused=True, materialize_grads=True, retain_graph=True
    )
    assert all(gradient.isfinite().all() for gradient in gradients)
    blind = torch.autograd.grad(
        o[:, : 5 - T_k].sum(), (q, k, v), allow_unused=True, materialize_grads=True
    )
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in blind)


@both_forms
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 2, "bias": -1.5}], ids=str)
def test_gradients_agree_with_finite_differences(form: Form, options: dict[str, Any]) -> None:
    leaves = [x.requires_grad_() for x in inputs(B=1, T_q=3, T_k=4)]
    assert torch.autograd.gradcheck(lambda q, k, v: form(q, k, v, **options), leaves)


@both_forms
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_large_logits_give_weights_of_0_and_1_and_finite_gradients(
    form: Form, scale: float
) -> None:
    q, k, v = (x.requires_grad_() for x in inputs())
    o = form(q, k, v, scale=scale)
    s = scale * torch.einsum("bihk,bjhk->bhij", q, k.repeat_interleave(3, 2))
    expected = torch.einsum("bhij,bjhv->bihv", (s > 0).double(), v.repeat_interleave(3, 2))
    torch.testing.assert_close(o, expected)
    gradients = torch.autograd.grad(o.sum(), (q, k, v))
    assert all(gradient.isfinite().all() for gradient in gradients)


q, k, v = inputs()


@both_forms
@pytest.mark.parametrize(
    "bad",
    [
        ({"q": q[:, :, :5]}, ValueError, "q: 5 heads, expected a positive multiple of the 2 heads"),
        ({"scale": math.nan}, ValueError, "scale: nan, expected a finite number"),
        ({"window": 0}, ValueError, "window: 0, expected at least 1"),
        ({"bias": math.inf}, ValueError, "bias: inf, expected a finite number or None"),
        ({"bias": "0"}, TypeError, "bias: '0' (str), expected float or None"),
        ({"cu_seqlens_k": torch.tensor([0, 3, 7])}, ValueError, "cu_seqlens_k: given without"),
    ],
)
def test_a_bad_argument_is_named(form: Form, bad: Bad) -> None:
    assert_refused(bad, form, q=q, k=k, v=v)
