"""By hand: with q = 1, k_j = log a_j and v_j the j-th unit vector, the output is the weights of the
keys, a_j over the sum of those that are seen.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.softmax.select import top_k_by_rank, top_k_indices
from reference.testing import Bad, Form, assert_refused, both_forms_of, draw, each_bad, rows

both_forms = both_forms_of(reference.selected_attention)

A = rows(1, 2, 5, 3, 4)
Q = torch.ones(1, 5, 1, 1, dtype=torch.float64)
K = A.log()[None, :, None, None]
V = torch.eye(5, dtype=torch.float64)[None, :, None]


def slots(*of_queries: list[int]) -> Tensor:
    return torch.tensor(of_queries)[None, :, None]


def indices(T_q: int, T_k: int, G: int, C: int, *, B: int = 2, M: int = 4) -> Tensor:
    """Random blocks, -1 and duplicates among them."""
    generator = torch.Generator().manual_seed(T_q + 100 * T_k + C)
    blocks = -(-T_k // C)
    return torch.randint(-1, max(blocks, 0), (B, T_q, G, M), generator=generator)


@both_forms
def test_blocks_empty_slots_duplicates_and_the_future_by_hand(form: Form) -> None:
    selected = slots([-1, 0], [2, 1], [1, -1], [1, 1], [2, 0])
    o, lse = form(Q, K, V, selected, block_size=2, return_lse=True)
    expected = rows(
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 5 / 8, 3 / 8, 0],
        [1 / 7, 2 / 7, 0, 0, 4 / 7],
    )
    torch.testing.assert_close(o[0, :, 0], expected, rtol=1e-15, atol=1e-15)
    sums = rows(1, 0, 5, 8, 7).log()
    torch.testing.assert_close(lse[0, 0], sums, rtol=1e-15, atol=1e-15)


@both_forms
def test_queries_are_aligned_at_the_bottom_right_by_hand(form: Form) -> None:
    o, _ = form(Q[:, :2], K, V, slots([1, 0], [2, 1]), block_size=2)
    expected = rows([1 / 11, 2 / 11, 5 / 11, 3 / 11, 0], [0, 0, 5 / 12, 3 / 12, 4 / 12])
    torch.testing.assert_close(o[0, :, 0], expected, rtol=1e-15, atol=1e-15)


@both_forms
def test_a_row_that_sees_no_key_is_zero_and_has_no_gradient(form: Form) -> None:
    q, k, v = (x.clone().requires_grad_() for x in (Q, K, V))
    o, lse = form(q, k, v, torch.full((1, 5, 1, 2), -1), return_lse=True)
    assert torch.equal(o, torch.zeros_like(o))
    assert torch.equal(lse, torch.full_like(lse, -math.inf))
    gradients = torch.autograd.grad(o.sum(), (q, k, v), allow_unused=True, materialize_grads=True)
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


@both_forms
def test_all_blocks_selected_is_causal_attention(form: Form) -> None:
    q, k, v = draw(0, 2, 5, 6, 3), draw(1, 2, 7, 2, 3), draw(2, 2, 7, 2, 5)
    everything = torch.tensor([2, 0, 1]).expand(2, 5, 2, 3)
    got = form(q, k, v, everything, block_size=3, scale=2.0, return_lse=True)
    want = reference.attention(q, k, v, causal=True, scale=2.0, return_lse=True)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("C", [1, 2, 3, 16])
@pytest.mark.parametrize(("T_q", "T_k"), [(7, 7), (4, 9), (9, 4), (0, 4), (3, 0)])
def test_both_forms_agree(T_q: int, T_k: int, C: int) -> None:
    """To thousands of roundings of float64; a wrong key would be seen in the first digit."""
    q, k, v = draw(0, 2, T_q, 6, 3), draw(1, 2, T_k, 2, 3), draw(2, 2, T_k, 2, 5)
    call: Any = (q, k, v, indices(T_q, T_k, 2, C))
    first = reference.selected_attention(*call, block_size=C, return_lse=True)
    second = reference.selected_attention.second_form(*call, block_size=C, return_lse=True)
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


@both_forms
@pytest.mark.parametrize("C", [1, 3])
def test_gradients_agree_with_finite_differences(form: Form, C: int) -> None:
    q, k, v = draw(0, 1, 4, 4, 2), draw(1, 1, 5, 2, 2), draw(2, 1, 5, 2, 3)
    selected = indices(4, 5, 2, C, B=1, M=3)
    selected[:, -1, :, 0] = 0

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        o, lse = form(q, k, v, selected, block_size=C, return_lse=True)
        return o, torch.where(lse == -math.inf, 0.0, lse)

    assert torch.autograd.gradcheck(function, [x.requires_grad_() for x in (q, k, v)])


@both_forms
def test_packed_sequences_are_separate_ones_with_indices_of_their_own(form: Form) -> None:
    q, k, v = draw(0, 1, 6, 2, 3), draw(1, 1, 7, 1, 3), draw(2, 1, 7, 1, 5)
    bounds = [0, 2, 2, 6], [0, 3, 5, 7]
    selected = torch.tensor([[0, 1], [1, -1], [0, 0], [0, -1], [-1, 0], [-1, -1]])[None, :, None]
    cu_seqlens, cu_seqlens_k = map(torch.tensor, bounds)
    options: Any = {"block_size": 2, "return_lse": True}
    o, lse = form(q, k, v, selected, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, **options)
    for n in range(3):
        i, j = (slice(x[n], x[n + 1]) for x in bounds)
        alone = form(q[:, i], k[:, j], v[:, j], selected[:, i], **options)
        assert torch.equal(o[:, i], alone[0])
        assert torch.equal(lse[..., i], alone[1])


BAD: dict[str, Bad] = {
    "past the end": (
        {"indices": slots([0], [0], [3], [0], [0])},
        ValueError,
        "indices: 3, expected -1 to 2: 5 keys are 3 blocks of 2",
    ),
    "below -1": (
        {"indices": slots([0], [0], [-2], [0], [0])},
        ValueError,
        "indices: -2, expected -1 to 2",
    ),
    "floats": (
        {"indices": slots([0], [0], [0], [0], [0]).double()},
        TypeError,
        "indices: float64[1, 5, 1, 1], expected int",
    ),
    "queries": (
        {"indices": slots([0], [0])},
        ValueError,
        "indices: int64[1, 2, 1, 1], expected [B, T_q, G, M]",
    ),
    "block size": ({"block_size": 0}, ValueError, "block_size: 0, expected at least 1"),
    "scale": ({"scale": math.inf}, ValueError, "scale: inf, expected a finite number"),
}


@both_forms
@each_bad(BAD)
def test_a_bad_argument_is_named(form: Form, bad: Bad) -> None:
    assert_refused(bad, form, q=Q, k=K, v=V, indices=slots(*[[0]] * 5), block_size=2)


@pytest.mark.parametrize("select", [top_k_indices, top_k_by_rank])
def test_the_lower_index_wins_a_tie_and_zeros_of_both_signs_tie_by_hand(select: Any) -> None:
    inf = math.inf
    scores = rows([1, 2, 2, 1], [-0.0, 0.0, -0.0, 0.0], [-inf, -1, -inf, inf], [-inf] * 4)
    expected = [[1, 2, 0], [0, 1, 2], [3, 1, -1], [-1, -1, -1]]
    assert select(scores, 3).tolist() == expected
    assert select(scores, 9).shape == (4, 4)
