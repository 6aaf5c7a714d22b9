"""Rows of the model dim, which are wider than any head that the laws draw."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from properties.laws import Subject


@pytest.mark.parametrize("dim", [257, 4097, 8192])
def test_the_widest_rows_are_mixed_whole(dim: int, subject: Subject) -> None:
    from kernels import attnres

    generator = torch.Generator().manual_seed(dim)
    shapes = (1, 2, 3, dim), (dim,), (dim,), (dim,)
    x, query, weight, output_weight = (
        torch.randn(shape, generator=generator).to(subject.device).requires_grad_()
        for shape in shapes
    )
    do = torch.randn(1, 2, dim, generator=generator).to(subject.device)

    def results(op: Callable[..., Any], of: Callable[[Tensor], Tensor]) -> list[Tensor]:
        given = [of(each) for each in (x, query, weight, output_weight)]
        o, _ = op(*given[:3], output_weight=given[3], scale=dim**-0.5)
        return [o, *torch.autograd.grad(o, (x, query, weight, output_weight), do.to(o.dtype))]

    got = results(attnres, lambda each: each)
    want = results(reference.attnres, lambda each: each.double())
    # Each of `dim` products may add half an ulp to a sum; a column left out is wrong by about 1.
    for one, exact in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), exact.double(), rtol=1e-5, atol=dim * 2.0**-24)
