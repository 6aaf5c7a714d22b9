"""The hand-computed values below have R = 2 rows and P = 2 pairs:

row 0: no rotation of either pair
row 1: pair 0 by the angle of the 3-4-5 triangle (cos 3/5, sin 4/5), pair 1 by a quarter turn
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from reference.testing import Bad, Form, assert_refused, both_forms_of, draw, each_bad, rows

FORMS: list[Form] = [reference.rotary_embedding, reference.rotary_embedding.second_form]
both_forms = both_forms_of(reference.rotary_embedding)
both_forms_on_axes = both_forms_of(reference.multiaxis_rotary)


COS = rows([1, 1], [3 / 5, 0])
SIN = rows([0, 0], [4 / 5, 1])
X = rows([1, 2, 3, 4, 7], [1, 2, 3, 4, 7])[None, :, None]


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=4e-16, atol=4e-16)


@both_forms
def test_halves_are_the_default_by_hand(form: Form) -> None:
    # Pairs (1, 3) and (2, 4): (0.6 - 2.4, 0.8 + 1.8) = (-1.8, 2.6) and (-4, 2)
    y = form(X, COS, SIN)
    assert_close(y[0, :, 0], rows([1, 2, 3, 4, 7], [-1.8, -4, 2.6, 2, 7]))


@both_forms
def test_interleaved_pairs_are_neighbours_by_hand(form: Form) -> None:
    # Pairs (1, 2) and (3, 4): (0.6 - 1.6, 0.8 + 1.2) = (-1, 2) and (-4, 3)
    y = form(X, COS, SIN, interleaved=True)
    assert_close(y[0, :, 0], rows([1, 2, 3, 4, 7], [-1, 2, -4, 3, 7]))


@both_forms
def test_conjugate_rotates_backwards_by_hand(form: Form) -> None:
    # Pairs (1, 3) and (2, 4): (0.6 + 2.4, -0.8 + 1.8) = (3, 1) and (4, -2)
    y = form(X, COS, SIN, conjugate=True)
    assert_close(y[0, :, 0], rows([1, 2, 3, 4, 7], [3, 4, 1, -2, 7]))


@both_forms
@pytest.mark.parametrize("interleaved", [False, True])
def test_conjugate_undoes_a_rotation(form: Form, interleaved: bool) -> None:
    cos, sin = reference.rotary_tables(11, 4, dtype=torch.float64)
    x = draw(0, 2, 7, 3, 5)
    options = {"interleaved": interleaved, "seqlen_offsets": 4}
    there = form(x, cos, sin, **options)
    back = form(there, cos, sin, conjugate=True, **options)
    torch.testing.assert_close(back, x, rtol=1e-15, atol=1e-15)


def test_dims_past_the_rotary_dim_pass_through_bitwise() -> None:
    cos, sin = reference.rotary_tables(7, 4, dtype=torch.float64)
    x = draw(0, 2, 7, 3, 8)
    x[0, 0, 0, 4:] = rows(-0.0, math.inf, math.nan, 5e-324)
    for form in FORMS:
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            y = form(x.to(dtype), cos.to(dtype), sin.to(dtype))
            bits = (z[..., 4:].contiguous().view(torch.uint8) for z in (x.to(dtype), y))
            assert torch.equal(*bits)


@both_forms
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_product_of_query_and_key_depends_on_their_distance_alone(
    form: Form, interleaved: bool
) -> None:
    cos, sin = reference.rotary_tables(40, 6, dtype=torch.float64)
    q, k = draw(0, 1, 1, 3, 7), draw(1, 1, 1, 3, 7)

    def product(i: int, j: int) -> Tensor:
        rotated = (
            form(x, cos, sin, interleaved=interleaved, seqlen_offsets=position)
            for x, position in ((q, i), (k, j))
        )
        return torch.einsum("bthd,bthd->bth", *rotated)

    torch.testing.assert_close(product(30, 27), product(5, 2), rtol=1e-13, atol=1e-13)
    assert not torch.allclose(product(30, 27), product(27, 30))


@both_forms
def test_each_sequence_has_its_own_offset(form: Form) -> None:
    cos, sin = reference.rotary_tables(20, 4, dtype=torch.float64)
    x = draw(0, 2, 7, 3, 5)
    y = form(x, cos, sin, seqlen_offsets=torch.tensor([3, 11], dtype=torch.int32))
    assert torch.equal(y[:1], form(x[:1], cos, sin, seqlen_offsets=3))
    assert torch.equal(y[1:], form(x[1:], cos[11:], sin[11:]))


@both_forms
def test_positions_start_anew_in_each_packed_sequence(form: Form) -> None:
    cos, sin = reference.rotary_tables(20, 4, dtype=torch.float64)
    x = draw(0, 1, 7, 3, 5)
    cu_seqlens = torch.tensor([0, 3, 3, 7])
    y = form(x, cos, sin, cu_seqlens=cu_seqlens)
    assert torch.equal(y, torch.cat([form(x[:, :3], cos, sin), form(x[:, 3:], cos, sin)], 1))
    # The empty sequence needs no row, so that no offset of its is wrong.
    offsets = torch.tensor([2, 99, 5])
    y = form(x, cos, sin, cu_seqlens=cu_seqlens, seqlen_offsets=offsets)
    pieces = [form(x[:, :3], cos[2:], sin[2:]), form(x[:, 3:], cos[5:], sin[5:])]
    assert torch.equal(y, torch.cat(pieces, 1))


@both_forms
def test_positions_come_in_any_order_by_hand(form: Form) -> None:
    # The rows of each token are 1, 0 and 1, 1: pairs (1, 3) and (2, 4) as above.
    x = X[:, :1].expand(2, 2, 1, 5)
    y = form(x, COS, SIN, torch.tensor([[1, 0], [1, 1]]))
    turned, still = rows(-1.8, -4, 2.6, 2, 7), rows(1, 2, 3, 4, 7)
    assert_close(y[:, :, 0], torch.stack([turned, still, turned, turned]).view(2, 2, 5))


@both_forms
def test_positions_that_follow_one_another_are_an_offset(form: Form) -> None:
    cos, sin = reference.rotary_tables(20, 4, dtype=torch.float64)
    x = draw(0, 2, 7, 3, 5)
    positions = torch.tensor([3, 11])[:, None] + torch.arange(7)
    y = form(x, cos, sin, seqlen_offsets=torch.tensor([3, 11]))
    assert torch.equal(y, form(x, cos, sin, positions))
    assert torch.equal(y, form(x, cos, sin, positions.int()))
    # Positions of packed sequences are taken as they are, without an offset.
    y = form(x[:1], cos, sin, positions[:1], cu_seqlens=torch.tensor([0, 2, 7]))
    assert torch.equal(y, form(x[:1], cos, sin, seqlen_offsets=3))


@both_forms_on_axes
def test_each_pair_turns_by_the_position_on_its_axis_by_hand(form: Form) -> None:
    # Pair 0 is on row 1 of axis 1, pair 1 on row 0 of axis 0: (1, 3) becomes (-1.8, 2.6).
    positions, axes = torch.tensor([[[0]], [[1]]]), torch.tensor([1, 0])
    y = form(X[:, :1], COS, SIN, positions, axes)
    assert_close(y[0, :, 0], rows([-1.8, 2, 2.6, 4, 7]))
    # Neighbours: (1, 2) becomes (-1, 2), (3, 4) stays.
    y = form(X[:, :1], COS, SIN, positions, axes, interleaved=True)
    assert_close(y[0, :, 0], rows([-1, 2, 3, 4, 7]))


@both_forms_on_axes
@pytest.mark.parametrize("options", [{}, {"interleaved": True}, {"conjugate": True}])
def test_with_one_position_for_all_axes_it_is_the_rotation(
    form: Form, options: dict[str, Any]
) -> None:
    cos, sin = reference.rotary_tables(20, 6, dtype=torch.float64)
    x, positions = draw(0, 2, 5, 3, 7), torch.arange(20, 10, -1).view(2, 5) - 1
    y = form(x, cos, sin, positions.expand(3, 2, 5), torch.tensor([2, 0, 1]), **options)
    torch.testing.assert_close(y, reference.rotary_embedding(x, cos, sin, positions, **options))


@both_forms_on_axes
def test_two_axes_turn_the_halves_of_a_head_each_like_a_head_of_its_own(form: Form) -> None:
    # Neighbours are pairs: the first 4 dims turn by the row, the other 4 by the column of a patch.
    cos, sin = reference.rotary_tables(9, 4, base=100.0, dtype=torch.float64)
    x, patch = draw(0, 2, 6, 3, 8), torch.arange(12).view(2, 6)
    row, column = patch // 4, patch % 4
    wide = [table.repeat(1, 2) for table in (cos, sin)]
    axes = reference.rotary_axes(4, (2, 2))
    y = form(x, *wide, torch.stack([row, column]), axes, interleaved=True)
    halves = [
        reference.rotary_embedding(part, cos, sin, position, interleaved=True)
        for part, position in zip(x.chunk(2, -1), (row, column), strict=True)
    ]
    torch.testing.assert_close(y, torch.cat(halves, -1), rtol=1e-14, atol=1e-14)


@both_forms
def test_in_place_writes_the_argument_and_returns_it(form: Form) -> None:
    cos, sin = reference.rotary_tables(7, 4, dtype=torch.float64)
    x = draw(0, 2, 7, 3, 5)
    untouched = x.clone()
    y = form(x, cos, sin)
    assert torch.equal(x, untouched)
    assert form(x, cos, sin, inplace=True) is x
    assert torch.equal(x, y)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("offsets", [0, 5, [1, 12]])
def test_both_forms_agree(offsets: int | list[int], conjugate: bool, interleaved: bool) -> None:
    """Both round two products and a sum: each is within 2 · 2^-53 (|x1 cos| + |x2 sin|)."""
    cos, sin = reference.rotary_tables(20, 4, dtype=torch.float64)
    x = draw(0, 2, 7, 3, 5)
    options = {
        "interleaved": interleaved,
        "conjugate": conjugate,
        "seqlen_offsets": torch.tensor(offsets) if isinstance(offsets, list) else offsets,
    }
    first, second = (form(x, cos, sin, **options) for form in FORMS)
    bound = 4 * 2.0**-53 * x.abs().sum(-1, keepdim=True)
    assert ((first - second).abs() <= bound).all()


@both_forms
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_agree_with_finite_differences(
    form: Form, interleaved: bool, conjugate: bool, inplace: bool
) -> None:
    cos, sin = reference.rotary_tables(20, 4, dtype=torch.float64)
    x = draw(0, 1, 5, 2, 7).requires_grad_()

    def function(x: Tensor) -> Any:
        return form(
            x * 1.0,
            cos,
            sin,
            interleaved=interleaved,
            conjugate=conjugate,
            inplace=inplace,
            seqlen_offsets=torch.tensor([3, 0]),
            cu_seqlens=torch.tensor([0, 2, 5]),
        )

    assert torch.autograd.gradcheck(function, [x])


@both_forms
def test_gradients_at_positions_agree_with_finite_differences(form: Form) -> None:
    cos, sin = reference.rotary_tables(20, 4, dtype=torch.float64)
    x, positions = draw(0, 2, 3, 2, 5).requires_grad_(), torch.tensor([[5, 5, 0], [19, 18, 17]])
    assert torch.autograd.gradcheck(lambda x: form(x, cos, sin, positions), [x])


@both_forms_on_axes
@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_on_axes_agree_with_finite_differences(form: Form, interleaved: bool) -> None:
    cos, sin = reference.rotary_tables(20, 6, dtype=torch.float64)
    x, positions = draw(0, 2, 3, 2, 7).requires_grad_(), torch.arange(18).view(3, 2, 3)
    axes = torch.tensor([2, 0, 1])

    def function(x: Tensor) -> Any:
        return form(x, cos, sin, positions, axes, interleaved=interleaved)

    assert torch.autograd.gradcheck(function, [x])


@both_forms
def test_the_tables_are_constants(form: Form) -> None:
    cos, sin = (table.requires_grad_() for table in reference.rotary_tables(7, 4))
    assert not form(torch.ones(1, 7, 3, 5), cos, sin).requires_grad


@both_forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_output_has_the_dtype_of_the_input(form: Form, dtype: torch.dtype) -> None:
    x = torch.ones(1, 7, 3, 5, dtype=dtype)
    assert form(x, *reference.rotary_tables(7, 4)).dtype == dtype
    assert form(x, *reference.rotary_tables(7, 4, dtype=dtype)).dtype == dtype


x = draw(0, 2, 7, 3, 5)
cos, sin = reference.rotary_tables(8, 4, dtype=torch.float64)
wide_cos, wide_sin = reference.rotary_tables(8, 6, dtype=torch.float64)
BAD: dict[str, Bad] = {
    "model dim": (
        {"cos": wide_cos, "sin": wide_sin},
        ValueError,
        "cos: float[8, 3] rotates 6 dims, expected at most head_dim=5",
    ),
    "tables differ": ({"sin": sin[:7]}, ValueError, "sin: float64[7, 2], expected [R, P]"),
    "rank": ({"x": x[0]}, ValueError, "x: float64[7, 3, 5], expected [B, T, H, D]"),
    "integers": ({"x": x.long()}, TypeError, "x: int64[2, 7, 3, 5], expected float"),
    "sin dtype": ({"sin": sin.float()}, TypeError, "sin: float32[8, 2], expected float64"),
    "table dtype": (
        {"cos": cos.bfloat16(), "sin": sin.bfloat16()},
        TypeError,
        "cos: torch.bfloat16, expected torch.float32 or torch.float64, the dtype of x",
    ),
    "too short": ({"seqlen_offsets": 2}, ValueError, "seqlen_offsets: sequence 0 is on rows 2 to"),
    "negative": ({"seqlen_offsets": -1}, ValueError, "seqlen_offsets: sequence 0 is on rows -1 to"),
    "one too far": (
        {"seqlen_offsets": torch.tensor([1, 2])},
        ValueError,
        "seqlen_offsets: sequence 1 is on rows 2 to 8, expected rows from 0 to 7",
    ),
    "offsets": (
        {"seqlen_offsets": torch.tensor([1, 1, 1])},
        ValueError,
        "seqlen_offsets: int64[3], expected [N] with N=2",
    ),
    "offset dtype": (
        {"seqlen_offsets": torch.tensor([0.0, 1.0])},
        TypeError,
        "seqlen_offsets: float32[2], expected int or int32[N] or int64[N]",
    ),
    "offset kind": (
        {"seqlen_offsets": 1.0},
        TypeError,
        "seqlen_offsets: 1.0 (float), expected int",
    ),
    "batch": ({"cu_seqlens": torch.tensor([0, 7])}, ValueError, "cu_seqlens: given with B=2"),
    "cu_seqlens": (
        {"x": x[:1], "cu_seqlens": torch.tensor([0, 5, 4, 7])},
        ValueError,
        "cu_seqlens: decreases from 5 to 4",
    ),
    "positions": (
        {"position_ids": torch.zeros(2, 6, dtype=torch.int64)},
        ValueError,
        "position_ids: int64[2, 6], expected [B, T] with B=2, T=7",
    ),
    "positions of floats": (
        {"position_ids": torch.zeros(2, 7)},
        TypeError,
        "position_ids: float32[2, 7], expected int32[B, T] or int64[B, T] or None",
    ),
    "a position too far": (
        {"position_ids": torch.arange(14).view(2, 7) - 6},
        ValueError,
        "position_ids: from -6 to 7, expected rows from 0 to 7, those of cos and sin",
    ),
    "positions and offsets": (
        {"position_ids": torch.zeros(2, 7, dtype=torch.int64), "seqlen_offsets": 1},
        ValueError,
        "position_ids: given beside seqlen_offsets, expected one of the two",
    ),
    "flag": ({"interleaved": 1}, TypeError, "interleaved: 1 (int), expected bool"),
}


@both_forms
@each_bad(BAD)
def test_a_bad_argument_is_named(form: Form, bad: Bad) -> None:
    assert_refused(bad, form, x=x, cos=cos, sin=sin)


positions = torch.zeros(3, 2, 7, dtype=torch.int64)
BAD_AXES: dict[str, Bad] = {
    "one axis": ({"position_ids": positions[0]}, ValueError, "position_ids: int64[2, 7], expected"),
    "sections": (
        {"axes": torch.tensor([0, 1, 2])},
        ValueError,
        "axes: int64[3], expected [P] with P=2",
    ),
    "no such axis": (
        {"axes": torch.tensor([0, 3])},
        ValueError,
        "axes: [0, 3], expected 0 to 2, the axes of position_ids",
    ),
    "negative": (
        {"axes": torch.tensor([-1, 0])},
        ValueError,
        "axes: [-1, 0], expected 0 to 2, the axes of position_ids",
    ),
    "too far": (
        {"position_ids": positions + 8},
        ValueError,
        "position_ids: from 8 to 8, expected rows from 0 to 7, those of cos and sin",
    ),
    "model dim": (
        {"cos": wide_cos, "sin": wide_sin, "axes": torch.tensor([0, 0, 0])},
        ValueError,
        "cos: float[8, 3] rotates 6 dims, expected at most head_dim=5",
    ),
}


@both_forms_on_axes
@each_bad(BAD_AXES)
def test_a_bad_argument_of_the_rotation_on_axes_is_named(form: Form, bad: Bad) -> None:
    axes = torch.zeros(2, dtype=torch.int64)
    given = {"x": x, "cos": cos, "sin": sin, "position_ids": positions, "axes": axes}
    assert_refused(bad, form, **given)
