"""By hand: two tokens with latents c_j = (log a_j, v_j) and rotary keys log b_j, so that at scale 1
the weights are a_j b_j.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.mla)

ONE = torch.ones(1, 2, 1, 1, dtype=torch.float64)
HAND: Any = {
    "q_n": ONE,
    "q_r": ONE,
    "c": rows([math.log(1), 1], [math.log(2), 10])[None],
    "k_r": rows([math.log(3)], [math.log(5)])[None],
    "w_uk": rows([[1.0, 0.0]]),
    "w_uv": rows([[0.0, 3.0]]),
}


def inputs(T_q: int = 5, T_k: int = 7) -> list[Tensor]:
    B, H, K, V, R, D = 2, 3, 4, 5, 6, 2
    shapes = [(B, T_q, H, K), (B, T_q, H, D), (B, T_k, R), (B, T_k, D), (H, K, R), (H, V, R)]
    return [draw(seed, *shape) for seed, shape in enumerate(shapes)]


@both_forms
def test_both_parts_of_a_logit_and_the_up_projections_by_hand(form: Form) -> None:
    o, lse = form(**HAND, scale=1.0, return_lse=True)
    want = 3 * (3 * 1 + 10 * 10) / 13
    torch.testing.assert_close(o.flatten(), rows(want, want), rtol=1e-14, atol=0)
    torch.testing.assert_close(lse.flatten(), rows(13, 13).log(), rtol=1e-14, atol=0)
    o, _ = form(**HAND, scale=1.0, causal=True)
    torch.testing.assert_close(o.flatten(), rows(3, want), rtol=1e-14, atol=0)


@both_forms
def test_the_default_scale_counts_both_parts_by_hand(form: Form) -> None:
    o, _ = form(**HAND)
    a, b = 3 ** (2**-0.5), 10 ** (2**-0.5)
    want = 3 * (a + 10 * b) / (a + b)
    torch.testing.assert_close(o.flatten(), rows(want, want), rtol=1e-14, atol=0)


@both_forms
def test_without_a_rotary_part_it_is_attention_to_projected_latents(form: Form) -> None:
    q_n, q_r, c, k_r, w_uk, w_uv = inputs()
    k, v = (torch.einsum("btr,hdr->bthd", c, w) for w in (w_uk, w_uv))
    o, lse = form(q_n, 0 * q_r, c, k_r, w_uk, w_uv, causal=True, return_lse=True)
    want = reference.attention(q_n, k, v, causal=True, scale=6**-0.5, return_lse=True)
    torch.testing.assert_close(o, want[0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(lse, want[1], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("T_q", "T_k"), [(7, 7), (4, 9), (9, 4), (0, 4), (3, 0)])
def test_both_forms_agree(T_q: int, T_k: int, causal: bool) -> None:
    """To thousands of roundings of float64."""
    call: Any = inputs(T_q, T_k)
    first = reference.mla(*call, causal=causal, return_lse=True)
    second = reference.mla.second_form(*call, causal=causal, return_lse=True)
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


@both_forms
def test_gradients_agree_with_finite_differences(form: Form) -> None:
    def function(*tensors: Tensor) -> Any:
        return form(*tensors, causal=True, return_lse=True)

    assert torch.autograd.gradcheck(function, [x.requires_grad_() for x in inputs(2, 3)])


@both_forms
def test_packed_sequences_are_separate_ones(form: Form) -> None:
    q_n, q_r, c, k_r, w_uk, w_uv = (x[:1] if n < 4 else x for n, x in enumerate(inputs(6, 7)))
    bounds = [0, 2, 2, 6], [0, 3, 5, 7]
    packs = dict(zip(("cu_seqlens", "cu_seqlens_k"), map(torch.tensor, bounds), strict=True))
    o, _ = form(q_n, q_r, c, k_r, w_uk, w_uv, causal=True, **packs)
    for n in range(3):
        i, j = (slice(x[n], x[n + 1]) for x in bounds)
        alone, _ = form(q_n[:, i], q_r[:, i], c[:, j], k_r[:, j], w_uk, w_uv, causal=True)
        assert torch.equal(o[:, i], alone)


def test_tensors_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="w_uk: float64"):
        reference.mla(**{**HAND, "w_uk": rows([[1.0]])})
    with pytest.raises(ValueError, match="k_r: float64"):
        reference.mla(**{**HAND, "k_r": rows([1.0])})
