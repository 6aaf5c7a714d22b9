"""The relative position bias of `kernels`: that of the reference, and its table learns."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from properties.laws import Subject

SIZES = {
    "queries": st.integers(0, 40),
    "keys": st.integers(0, 40),
    "half": st.integers(2, 17),
    "above": st.integers(1, 300),
    "bidirectional": st.booleans(),
}


@given(**SIZES)
def test_buckets_are_those_of_the_reference_also_after_calls_with_another_option(
    queries: int, keys: int, half: int, above: int, bidirectional: bool
) -> None:
    from kernels import relative_buckets

    options: Any = {
        "buckets": 2 * half,
        "max_distance": half + 1 + above,
        "bidirectional": bidirectional,
    }
    others: Any = {"buckets": 2 * half + 2, "max_distance": half + 2 + above}
    others["bidirectional"] = not bidirectional
    for changed in ({}, *({name: value} for name, value in others.items())):
        got = relative_buckets(queries, keys, **{**options, **changed})
        want = reference.relative_buckets(queries, keys, **{**options, **changed})
        assert torch.equal(got, want)


@pytest.mark.parametrize("max_distance", [9, 27, 81, 128, 729, 10**6, 10**9])
@pytest.mark.parametrize("buckets", [3, 7, 12, 32, 64, 129])
def test_borders_are_those_of_the_reference_at_any_distance(
    buckets: int, max_distance: int
) -> None:
    check_borders(buckets, max_distance)


@pytest.mark.parametrize("buckets", [6, 10, 12, 14, 20])
def test_borders_that_are_integers_are_not_one_too_far(buckets: int) -> None:
    """One such border is 5 (135 / 5)^(1/3) = 15, which float64 puts above 15."""
    for max_distance in range(2, 400):
        check_borders(buckets, max_distance)


def check_borders(buckets: int, max_distance: int) -> None:
    """A wrong border is a distance that one of both has in the bucket before."""
    from kernels.position.relative import _borders

    if max_distance <= buckets // 2:
        return
    borders = _borders(buckets, max_distance)
    assert len(borders) == buckets - 1
    exact, growing = buckets // 2, buckets - buckets // 2
    for b, n in enumerate(borders[exact:], exact + 1):
        m = b - exact
        assert n**growing * exact**m >= exact**growing * max_distance**m
        assert (n - 1) ** growing * exact**m < exact**growing * max_distance**m or n - 1 < exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@given(**SIZES, seed=st.integers(0, 99))
def test_the_bias_and_the_gradient_of_its_table_are_those_of_the_reference(
    queries: int, keys: int, half: int, above: int, bidirectional: bool, seed: int,
    dtype: torch.dtype, subject: Subject,
) -> None:  # fmt: skip
    from kernels import relative_bias

    options: Any = {"max_distance": half // 2 + above, "bidirectional": bidirectional}
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(3, half * (1 + bidirectional), generator=generator).to(dtype)
    # Integers, whose sums are exact in float32 and not in 16 bits.
    dy = torch.randint(-1, 4, (1, 3, queries, keys), generator=generator).to(dtype)
    results = []
    for function, device, own in (
        (relative_bias, subject.device, dtype),
        (reference.relative_bias, "cpu", dtype),
        (reference.relative_bias, "cpu", torch.float64),
    ):
        leaf = table.to(device, own).requires_grad_()
        bias = function(leaf, queries, keys, **options)
        assert bias.dtype == own
        (dtable,) = torch.autograd.grad(bias, leaf, dy.to(bias))
        assert dtable.dtype == own
        results.append((bias.detach().cpu().to(dtype), dtable.cpu().to(dtype)))
    *found, want = results
    for got in found:
        assert all(map(torch.equal, got, want))


def test_attention_with_the_bias_trains_the_table(subject: Subject) -> None:
    import kernels

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, tokens, 4, 8, generator=generator) for tokens in (5, 9, 9))
    table = torch.randn(4, 8, generator=generator)
    gradients = []
    for package, device in ((kernels, subject.device), (reference, torch.device("cpu"))):
        dtype = torch.float32 if package is kernels else torch.float64
        leaf = table.to(device, dtype).requires_grad_()
        bias = package.relative_bias(leaf, 5, 9, max_distance=4)
        given = (x.to(device, dtype) for x in (q, k, v))
        o, _ = package.attention(*given, scale=1.0, bias=bias)
        (gradient,) = torch.autograd.grad(o.square().sum(), leaf)
        gradients.append(gradient.cpu().double())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"queries": -1}, ValueError, "queries: -1"),
        ({"keys": 1.5}, TypeError, "keys: "),
        ({"buckets": 7}, ValueError, "buckets: 7"),
        ({"buckets": 1, "bidirectional": False}, ValueError, "buckets: 1"),
        ({"max_distance": 8}, ValueError, "max_distance: 8, expected more than 8"),
        ({"max_distance": 2**63}, ValueError, f"max_distance: {2**63}"),
        ({"bidirectional": 1}, TypeError, "bidirectional: "),
    ],
)
def test_bad_sizes_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    import kernels

    for package in (kernels, reference):
        with pytest.raises(error, match=message):
            package.relative_buckets(**{"queries": 2, "keys": 3, **options})


def test_a_bad_table_is_named() -> None:
    from kernels import relative_bias

    with pytest.raises(ValueError, match="table: "):
        relative_bias(torch.zeros(8), 2, 2)
    with pytest.raises(TypeError, match="table: "):
        relative_bias(torch.zeros(2, 8, dtype=torch.int64), 2, 2)
