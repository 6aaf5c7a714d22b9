import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Form, assert_nothing_grows, both_forms_of, draw, rows

both_forms = both_forms_of(reference.rwkv7)


@both_forms
def test_two_tokens_by_hand_and_the_scale_is_1(form: Form) -> None:
    r, w = rows([1, 2], [1, -1]), rows([1 / 2, 1], [1, 1]).log()
    k, v = rows([3, 1], [0, 2]), rows([1, 0, 2], [1, 1, 1])
    kk, a = rows([3 / 5, 4 / 5], [0, 1]), rows([1, 1 / 2], [0, 1])
    wkv = rows([1, 2], [0, 1], [1, 0])
    o, final_state = form(
        *(x[None, :, None] for x in (r, w, k, v, kk, a)),
        initial_state=wkv.T[None, None],
        output_final_state=True,
    )
    # G1 = (1/2 0; 0 1) - kk1ᵀ (3/5, 2/5) = (0.14 -0.24; -0.48 0.68)
    # wkv1 = wkv0 G1 + v1ᵀ k1 = (-0.82 1.12; -0.48 0.68; 0.14 -0.24) + (3 1; 0 0; 6 2)
    # G2 keeps channel 1 alone: wkv2 = (2.18 0; -0.48 0; 6.14 0) + v2ᵀ (0, 2)
    expected = rows([6.42, 0.88, 9.66], [0.18, -2.48, 4.14])
    torch.testing.assert_close(o[0, :, 0], expected, rtol=1e-14, atol=0)
    wkv = rows([2.18, 2], [-0.48, 2], [6.14, 2])
    torch.testing.assert_close(final_state[0, 0].T, wkv, rtol=1e-14, atol=0)


@both_forms
@pytest.mark.parametrize("generic", [reference.dplr, reference.dplr.second_form])
@pytest.mark.parametrize("cu_seqlens", [None, torch.tensor([0, 3, 3, 7])], ids=["dense", "packed"])
def test_it_is_dplr_with_a_removal_key(
    form: Form, generic: Form, cu_seqlens: Tensor | None
) -> None:
    N, B = (2, 2) if cu_seqlens is None else (3, 1)
    r, k, v = draw(0, B, 7, 3, 5), draw(1, B, 7, 3, 5), draw(2, B, 7, 3, 2)
    kk = torch.nn.functional.normalize(draw(3, B, 7, 3, 5), dim=-1)
    a = torch.sigmoid(draw(4, B, 7, 3, 5))
    w = -math.exp(-0.5) * torch.sigmoid(draw(5, B, 7, 3, 5))
    options: dict[str, Any] = {
        "scale": 1.0,
        "initial_state": draw(6, N, 3, 5, 2),
        "output_final_state": True,
        "cu_seqlens": cu_seqlens,
    }
    expected = generic(r, k, v, -kk, a * kk, w, **options)
    torch.testing.assert_close(form(r, w, k, v, kk, a, **options), expected, rtol=1e-13, atol=1e-13)


@both_forms
def test_with_rate_1_and_no_decay_the_removal_key_is_emptied(form: Form) -> None:
    kk = torch.nn.functional.normalize(draw(0, 1, 1, 3, 5), dim=-1)
    nothing, ones = torch.zeros(1, 1, 3, 2).double(), torch.ones_like(kk)
    S = draw(1, 1, 3, 5, 2)
    o, _ = form(kk, 0 * kk, kk, nothing, kk, ones, initial_state=S)
    torch.testing.assert_close(o, nothing, rtol=0, atol=1e-15)


@both_forms
def test_nothing_grows_while_all_channels_have_one_rate(form: Form) -> None:
    T = 200
    kk = torch.nn.functional.normalize(draw(0, 1, T, 3, 5), dim=-1)
    a = torch.sigmoid(4 * draw(1, 1, T, 3, 1)).expand(1, T, 3, 5)
    w = -draw(2, 1, T, 3, 5).abs() * (draw(3, 1, T, 3, 5) > 1)
    assert_nothing_grows(lambda v, **options: form(kk, w, kk, v, kk, a, **options), T)


@both_forms
def test_two_removal_keys_in_turn_make_the_state_grow_by_five_quarters(form: Form) -> None:
    """Both transitions have the eigenvalues 1 and 5/6, and yet their product has 5/4."""
    pairs = 40
    kk = (rows([1, 5**0.5], [5**0.5, 1]) / 6**0.5).repeat(pairs, 1)[None, :, None]
    a = rows([1, 0], [0, 1]).repeat(pairs, 1)[None, :, None]
    v = torch.zeros(1, 2 * pairs, 1, 1, dtype=torch.float64)
    S = rows([2], [-(5**0.5)])[None, None]  # the eigenvector of 5/4
    _, state = form(kk, 0 * kk, kk, v, kk, a, initial_state=S, output_final_state=True)
    growth = torch.linalg.matrix_norm(state, 2) / torch.linalg.matrix_norm(S, 2)
    torch.testing.assert_close(growth, torch.full_like(growth, 1.25**pairs), rtol=1e-12, atol=0)
