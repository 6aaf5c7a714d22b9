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
from reference.testing import Form, both_forms_of, draw, rows

FORMS: list[Form] = [reference.rotary_embedding, reference.rotary_embedding.second_form]
both_forms = both_forms_of(reference.rotary_embedding)


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


def test_the_tables_are_those_of_the_head_dim_by_plain_arithmetic() -> None:
    cos, sin = reference.rotary_tables(50, 6, base=100.0, dtype=torch.float64)
    assert cos.shape == sin.shape == (50, 3)
    for r, p in [(0, 0), (1, 0), (1, 2), (17, 1), (49, 2)]:
        angle = r * 100.0 ** (-2 * p / 6)
        assert cos[r, p] == pytest.approx(math.cos(angle), rel=1e-14)
        assert sin[r, p] == pytest.approx(math.sin(angle), rel=1e-14, abs=1e-300)


def test_the_tables_are_computed_in_float64_and_cast_last() -> None:
    exact = reference.rotary_tables(100_000, 64, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tables = reference.rotary_tables(100_000, 64, dtype=dtype)
        for table, want in zip(tables, exact, strict=True):
            assert table.dtype == dtype
            assert torch.equal(table, want.to(dtype))


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
def test_gradients(form: Form, interleaved: bool, conjugate: bool, inplace: bool) -> None:
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
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
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
    "flag": ({"interleaved": 1}, TypeError, "interleaved: 1 (int), expected bool"),
}


@both_forms
@pytest.mark.parametrize(("arguments", "error", "message"), BAD.values(), ids=BAD)
def test_a_bad_argument_is_named(
    form: Form, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        form(**{"x": x, "cos": cos, "sin": sin, **arguments})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"length": -1}, ValueError, "length: -1, expected 0 or more"),
        ({"length": 2.0}, TypeError, "length: 2.0 (float), expected int"),
        ({"rotary_dim": 5}, ValueError, "rotary_dim: 5, expected an even number of at least 2"),
        ({"rotary_dim": 0}, ValueError, "rotary_dim: 0, expected an even number of at least 2"),
        ({"base": 0.0}, ValueError, "base: 0.0, expected a positive finite number"),
        ({"base": math.nan}, ValueError, "base: nan, expected a positive finite number"),
        ({"dtype": torch.int32}, TypeError, "dtype: torch.int32, expected a floating point dtype"),
        ({"dtype": "float32"}, TypeError, "dtype: 'float32' (str), expected dtype"),
    ],
)
def test_a_bad_argument_of_the_tables_is_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        reference.rotary_tables(**{"length": 8, "rotary_dim": 4, **arguments})
    assert str(caught.value) == message
