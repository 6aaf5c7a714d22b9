"""Tests of the rotary ops under autograd, in-place writes and compilation."""

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from kernels import (
    relative_buckets,
    rotary_axes,
    rotary_embedding,
    rotary_frequencies,
    rotary_tables,
    xpos_tables,
)
from kernels.position.rotary import _rotary, _rotary_

COS, SIN = rotary_tables(20, 6)
BACKENDS = ("aot_eager", "inductor")


def _heads(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _rotated(x: Tensor, **options) -> Tensor:
    return rotary_embedding(x, COS, SIN, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_opcheck_passes(dtype: torch.dtype, packed: bool, each: bool) -> None:
    x = _heads(1 if packed else 2, 5, 3, 7).to(dtype)
    offsets = torch.tensor([3, 1]) if each else None
    cu_seqlens = torch.tensor([0, 2, 5]) if packed else None
    arguments = (COS, SIN, 2, offsets, cu_seqlens, None, None, True, False, 0)
    opcheck(_rotary, (x.clone().requires_grad_(), *arguments))
    opcheck(_rotary_, (x.clone(), *arguments))


@pytest.mark.parametrize("axes", [None, torch.tensor([1, 0, 1])])
def test_opcheck_passes_with_positions(axes: Tensor | None) -> None:
    x, positions = _heads(2, 5, 3, 7), torch.arange(20).view(2, 2, 5)
    given = (positions[0] if axes is None else positions, axes)
    arguments = (COS, SIN, 0, None, None, *given, True, False, 0)
    opcheck(_rotary, (x.clone().requires_grad_(), *arguments))
    opcheck(_rotary_, (x.clone(), *arguments))


@pytest.mark.parametrize(
    "make",
    [
        lambda: rotary_frequencies(8),
        lambda: rotary_frequencies(8, scaling={"rope_type": "linear", "factor": 4.0}),
        lambda: rotary_tables(5, 8),
        lambda: xpos_tables(5, 8),
        lambda: rotary_axes(4, (2, 1, 1)),
        lambda: relative_buckets(4, 6),
    ],
)
def test_a_table_is_the_callers_to_change(make) -> None:
    """A table that is cached and handed out twice changes with the first caller's copy."""

    def tensors() -> list[Tensor]:
        made = make()
        return [made] if isinstance(made, Tensor) else [x for x in made if isinstance(x, Tensor)]

    first = tensors()
    want = [x.clone() for x in first]
    for x in first:
        x.add_(1)
    for x, y in zip(tensors(), want, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_gradient_is_the_rotation_back(interleaved: bool) -> None:
    x, dy = _heads(2, 5, 3, 7).requires_grad_(), _heads(2, 5, 3, 7, seed=1)
    (dx,) = torch.autograd.grad(_rotated(x, interleaved=interleaved), x, dy)
    assert torch.equal(dx, _rotated(dy, interleaved=interleaved, conjugate=True))


def test_a_gradient_can_be_differentiated_again() -> None:
    x = _heads(1, 2, 1, 6).requires_grad_()
    (dx,) = torch.autograd.grad(_rotated(x).square().sum(), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.sum(), x)
    torch.testing.assert_close(dx, 2 * x)
    torch.testing.assert_close(ddx, torch.full_like(x, 2.0))


def test_in_place_writes_and_returns_its_argument() -> None:
    x = _heads(2, 5, 3, 7)
    expected = _rotated(x)
    assert _rotated(x, inplace=True) is x
    assert torch.equal(x, expected)


def _rotate_queries(packed: Tensor) -> Tensor:
    """Rotates a slice of something computed, in place, and returns all of it."""
    packed = packed * 2
    _rotated(packed[:, :, 1], inplace=True)
    return packed


def _check_gradient_of_slice(function) -> None:
    packed, weight = _heads(2, 5, 3, 4, 7).requires_grad_(), _heads(2, 5, 3, 4, 7, seed=1)
    (gradient,) = torch.autograd.grad(function(packed), packed, weight)
    expected = 2 * weight
    expected[:, :, 1] = 2 * _rotated(weight[:, :, 1], conjugate=True)
    assert torch.equal(gradient, expected)


def test_in_place_on_a_slice_of_a_result_has_the_right_gradient() -> None:
    _check_gradient_of_slice(_rotate_queries)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_compiles_with_the_right_gradient(backend: str) -> None:
    _check_gradient_of_slice(torch.compile(_rotate_queries, fullgraph=True, backend=backend))


@pytest.mark.parametrize("view", [False, True])
def test_in_place_on_a_leaf_that_wants_a_gradient_is_refused(view: bool) -> None:
    leaf = _heads(1, 2, 3, 7).requires_grad_()
    before = leaf.detach().clone()
    with pytest.raises(ValueError, match=r"^inplace: x is a leaf"):
        _rotated(leaf[:, :1] if view else leaf, inplace=True)
    assert torch.equal(leaf.detach(), before)


def test_nothing_is_turned_where_autograd_allows_no_writing() -> None:
    q, _ = (_heads(1, 2, 2, 3, 7).requires_grad_() * 1).unbind(2)
    before = q.detach().clone()
    with pytest.raises(RuntimeError, match="multiple views"):
        _rotated(q, inplace=True)
    assert torch.equal(q.detach(), before)


def test_in_place_on_what_backward_needs_is_noticed() -> None:
    y = _heads(1, 2, 3, 7).requires_grad_() * 1
    loss = y.square().sum()
    _rotated(y, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_in_place_on_shared_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="inplace"):
        _rotated(_heads(1, 1, 3, 7).expand(1, 2, 3, 7), inplace=True)


def test_nothing_is_shared_by_elements_that_are_not_there() -> None:
    x = _heads(3, 0, 1, 7) * 1
    assert x.stride()[0] == 0
    assert _rotated(x, inplace=True) is x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_compiled_call_equals_an_eager_one(backend: str, packed: bool) -> None:
    def function(x: Tensor, offsets: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        return _rotated(x, seqlen_offsets=offsets, cu_seqlens=cu_seqlens)

    x = _heads(1 if packed else 2, 5, 3, 7).requires_grad_()
    cu_seqlens = torch.tensor([0, 2, 5]) if packed else None
    offsets = torch.tensor([4, 1])
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    eager, traced = (f(x, offsets, cu_seqlens) for f in (function, compiled))
    assert torch.equal(eager, traced)
    dy = _heads(*x.shape, seed=1)
    assert torch.equal(torch.autograd.grad(eager, x, dy)[0], torch.autograd.grad(traced, x, dy)[0])
    with pytest.raises(ValueError, match="seqlen_offsets"):
        compiled(x, offsets + 16, cu_seqlens)


def test_tables_of_the_model_dim_are_refused_under_compile() -> None:
    cos, sin = rotary_tables(5, 3 * 8)
    function = torch.compile(rotary_embedding, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="head_dim"):
        function(_heads(2, 5, 3, 8), cos, sin)


def test_dims_past_the_rotary_dim_are_copied_bit_for_bit() -> None:
    bits = torch.arange(2 * 4 * 3 * 9, dtype=torch.int16).view(2, 4, 3, 9) + 0x7F80
    x = bits.view(torch.bfloat16)
    assert torch.equal(_rotated(x)[..., 6:].view(torch.int16), bits[..., 6:])


def test_tables_of_16_bits_are_widened_before_they_are_multiplied() -> None:
    """255 · 255 / 256 is 254 + 1/256, which 8 bits do not hold, and less 254 is 1/256."""
    turns = torch.tensor([[255 / 256, 1.0], [1.0, 255 / 256]]).bfloat16()
    x = torch.tensor([255.0, 254, 254, 255]).bfloat16()[None, None, None]
    y = rotary_embedding(x, turns[:1], turns[1:])
    assert y[0, 0, 0, :2].tolist() == [1 / 256, -1 / 256]


def test_an_offset_of_more_than_32_bits_does_not_wrap_into_the_tables() -> None:
    x, bounds = torch.ones(1, 4, 1, 12), torch.tensor([0, 1, 4], dtype=torch.int32)
    offsets = torch.full((2,), -(2**31), dtype=torch.int32)
    for far in (2**32, offsets):
        with pytest.raises(ValueError, match="seqlen_offsets"):
            rotary_embedding(x, COS, SIN, seqlen_offsets=far, cu_seqlens=bounds)
