"""Values worked out by hand. Weights are rational where logits are logarithms."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Form, both_forms_of, draw, rows, unit

LOG3 = math.log(3)


def column(*values: float) -> Tensor:
    """`[B=1, T, H=1, D=1]`."""
    return rows(*values)[None, :, None, None]


def assert_column(o: Tensor, *values: float) -> None:
    torch.testing.assert_close(o.flatten(), rows(*values), rtol=4e-16, atol=4e-16)


@both_forms_of(reference.stickbreaking_attn)
def test_the_nearest_key_breaks_the_stick_first(form: Form) -> None:
    q, k, v = column(1, 1, 1), column(0, LOG3, 7), column(4, 8, 100)
    o, rest = form(q, k, v, scale=1.0)
    # Keys take 1/2 and 3/4 of what is left: o3 = 3/4 8 + 1/4 1/2 4.
    assert_column(o, 0, 2, 6.5)
    assert_column(rest, 1, 1 / 2, 1 / 8)
    o, rest = form(q[:, :2], k[:, :2], v[:, :2], scale=1.0, attend_current=True)
    assert_column(o, 2, 6.5)
    assert_column(rest, 1 / 2, 1 / 8)


@both_forms_of(reference.path_attn)
def test_a_key_is_reflected_by_each_later_token(form: Form) -> None:
    q, k, v, w = column(1, 1), column(LOG3, 0), column(4, 8), column(1, 1)
    beta = rows(1, 2)[None, :, None]
    # H2 = -1, so token 2 has weights exp(-log 3) : 1 = 1 : 3.
    assert_column(form(q, k, v, w, beta, scale=1.0), 4, 7)
    g = rows(-5, -LOG3)[None, :, None]
    assert_column(form(q, k, v, w, beta, g, scale=1.0), 4, 7.6)


@both_forms_of(reference.path_attn)
def test_the_reflection_of_the_earlier_token_acts_first(form: Form) -> None:
    q = rows([9, 9], [9, 9], [-LOG3 / 2, 0])[None, :, None]
    k = rows([1, 2], [0, 0], [0, 0])[None, :, None]
    w = rows([9, 9], [1, 0], [math.sqrt(1 / 2), math.sqrt(1 / 2)])[None, :, None]
    beta = rows(9, 1, 2)[None, :, None]
    o = form(q, k, column(5, 10, 15), w, beta, scale=1.0)
    # H3 H2 k1 = H3 (0, 2) = (-2, 0), so the weights of token 3 are 3 : 1 : 1.
    torch.testing.assert_close(o[0, 2].squeeze(), rows(8.0)[0], rtol=1e-15, atol=0)


@both_forms_of(reference.wall_attn)
def test_channels_decay_on_their_way_to_the_query(form: Form) -> None:
    q, k, v = column(1, 1), column(2 * LOG3, 0), column(4, 8)
    g, gs = column(-7, -math.log(2)), rows(-7, -LOG3)[None, :, None]
    # The logit log 9 of key 1 halves: weights 3 : 1. With gs it is 0, and a sink of log 2 takes
    # half of each row with two keys, and 2 of 11 parts of the first row.
    assert_column(form(q, k, v, g, scale=1.0), 4, 5)
    assert_column(form(q, k, v, g, gs=gs, scale=1.0), 4, 6)
    o = form(q, k, v, g, gs=gs, sink=rows(math.log(2)), scale=1.0)
    assert_column(o, 36 / 11, 3)
    assert_column(form(q, k, v, g, window=1), 4, 8)


@both_forms_of(reference.wall_attn)
def test_wall_without_decay_of_channels_is_attention(form: Form) -> None:
    q, k, v, gs = draw(0, 2, 7, 4, 5), draw(1, 2, 7, 2, 5), draw(2, 2, 7, 2, 3), draw(3, 2, 7, 4)
    options: dict[str, Any] = {"sink": draw(4, 4), "window": 3}
    expected, _ = reference.attention(q, k, v, g=-gs.abs(), causal=True, **options)
    got = form(q, k, v, torch.zeros_like(q), gs=-gs.abs(), **options)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@both_forms_of(reference.parallax)
def test_the_correction_is_a_covariance(form: Form) -> None:
    q, r, k, v = column(0, 0), column(1, 1), column(1, 3), column(4, 8)
    # Weights 1/2; the products with r are 1 and 3, so their factors are 1 + 2 - 1 and 1 + 2 - 3.
    assert_column(form(q, r, k, v), 4, 4)
    assert_column(form(q, r, k, v, window=1), 4, 8)


@both_forms_of(reference.parallax)
def test_without_a_direction_parallax_is_attention(form: Form) -> None:
    q, k, v = draw(0, 2, 7, 4, 5), draw(1, 2, 7, 2, 5), draw(2, 2, 7, 2, 3)
    expected, _ = reference.attention(q, k, v, causal=True, window=3)
    got = form(q, torch.zeros_like(q), k, v, window=3)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@both_forms_of(reference.deltaformer)
def test_values_lose_what_their_keys_read(form: Form) -> None:
    q, k, v = column(0, 0, 0), column(1, 2, 3), column(4, 8, 10)
    # u = 4, 8 - 4/2 = 6, 10 - (4 + 6)/2 = 5
    assert_column(form(q, k, v, rows(9, 1 / 2, 1)[None, :, None]), 4, 5, 5)
    # u = 4, 4, 6
    assert_column(form(q, k, v), 4, 4, 14 / 3)


@both_forms_of(reference.attnres)
def test_depths_are_mixed_by_a_softmax(form: Form) -> None:
    x, one = rows(3, -3)[None, None, :, None], rows(1.0)
    # The norm is 5, so the logits are ±log(3)/2.
    o, p = form(x, rows(LOG3 * 5 / 6), one, eps=16.0, return_weights=True)
    assert_column(p, 3 / 4, 1 / 4)
    assert_column(o, 3 / 2)
    o, p = form(x, rows(LOG3 * 5 / 6), one, output_weight=rows(2.0), eps=16.0)
    assert p is None
    assert_column(o, 3 / math.sqrt(18.25))


def test_attnres_refuses_no_sources() -> None:
    with pytest.raises(ValueError, match=r"^x: no sources"):
        reference.attnres(torch.ones(1, 1, 0, 2), torch.ones(2), torch.ones(2))


@both_forms_of(reference.differential_attention)
def test_attentions_are_subtracted(form: Form) -> None:
    q, k, v = column(1, 1), column(LOG3, 0), column(4, 8)
    o = form(q, k, 0 * q, k, v, rows(1 / 2), scale=1.0)
    # Weights 3/4 and 1/4 give 5, of which half of the mean is subtracted.
    assert_column(o, 2, 2)
    o = form(q, k, 0 * q, k, v, rows(1 / 2), scale=1.0, causal=True)
    assert_column(o, 2, 2)


@both_forms_of(reference.based)
def test_based_by_hand(form: Form) -> None:
    q, k, v = column(1, 1), column(1, 2), column(2, 4)
    # Weights 1 + s + s²/2 of s = 1, 2 are 5/2 and 5.
    assert_column(form(q, k, v, scale=1.0, normalize=False), 5, 25)
    assert_column(form(q, k, v, scale=1.0), 5 / (2.5 + 1e-6), 25 / (7.5 + 1e-6))


@both_forms_of(reference.rebased)
def test_rebased_by_hand(form: Form) -> None:
    q, k, v = column(1, 1), column(1, 2), column(2, 4)
    assert_column(form(q, k, v, scale=-0.5, normalize=False), 0.5, 4.5)
    assert_column(form(q, k, v, scale=1.0), 2 / (1 + 1e-5), 18 / (5 + 1e-5))


@pytest.mark.parametrize("name", ["stickbreaking_attn", "path_attn", "wall_attn"])
def test_packed_sequences_see_themselves_alone(name: str) -> None:
    q, k, v = draw(0, 1, 7, 4, 5), draw(1, 1, 7, 2, 5), draw(2, 1, 7, 2, 3)
    more = {
        "stickbreaking_attn": (),
        "path_attn": (unit(draw(3, 1, 7, 2, 5)), draw(4, 1, 7, 2).sigmoid()),
        "wall_attn": (-draw(5, 1, 7, 4, 5).abs(),),
    }[name]
    op = getattr(reference, name)

    def first(returned: Tensor | tuple[Tensor, ...]) -> Tensor:
        return returned[0] if isinstance(returned, tuple) else returned

    together = first(op(q, k, v, *more, cu_seqlens=torch.tensor([0, 3, 3, 7])))
    for span in (slice(0, 3), slice(3, 7)):
        alone = first(op(*(x[:, span] for x in (q, k, v, *more))))
        torch.testing.assert_close(together[:, span], alone, rtol=1e-14, atol=1e-14)


@both_forms_of(reference.wall_attn)
def test_gates_of_wall_attention_telescope(form: Form) -> None:
    # dg_t = Σ_{s >= t} (q_s dq_s - k_s dk_s) of a query head in a sequence.
    q, k, v = draw(0, 1, 7, 4, 3), draw(1, 1, 7, 2, 3), draw(2, 1, 7, 2, 5)
    k, v = k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
    g, gs = -draw(3, 1, 7, 4, 3).abs(), -draw(4, 1, 7, 4).abs()
    leaves = [x.requires_grad_() for x in (q, k, g, gs)]
    o = form(q, k, v, g, gs=gs, window=3, cu_seqlens=torch.tensor([0, 4, 4, 7]))
    dq, dk, dg, dgs = torch.autograd.grad(o, leaves, draw(5, 1, 7, 4, 5))
    terms = q * dq - k * dk
    parts = [terms[:, :4], terms[:, 4:]]
    expected = torch.cat([part.flip(1).cumsum(1).flip(1) for part in parts], 1)
    torch.testing.assert_close(dg, expected.detach(), rtol=1e-12, atol=1e-13)
    # The first gate of a sequence acts on nothing: all rows and columns sum to the same.
    torch.testing.assert_close(dgs[:, [0, 4]], torch.zeros(1, 2, 4).to(dgs), rtol=0, atol=1e-13)


@both_forms_of(reference.path_attn)
def test_rows_and_columns_of_path_logits_sum_to_the_same(form: Form) -> None:
    q, k, v = draw(0, 1, 7, 4, 3), draw(1, 1, 7, 2, 3), draw(2, 1, 7, 2, 5)
    w, beta = draw(3, 1, 7, 2, 3) / 2, draw(4, 1, 7, 2).sigmoid()
    g = (-draw(5, 1, 7, 4).abs()).requires_grad_()
    o = form(q, k, v, w, beta, g, cu_seqlens=torch.tensor([0, 4, 4, 7]))
    (dg,) = torch.autograd.grad(o, g, draw(6, 1, 7, 4, 5))
    torch.testing.assert_close(dg[:, [0, 4]], torch.zeros(1, 2, 4).to(dg), rtol=0, atol=1e-13)
