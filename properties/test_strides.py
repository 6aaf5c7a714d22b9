"""Strides that no law has: of inputs whose last dim is not dense, as a transposed product leaves
them, and of boundaries that are a slice of others.

A layout of the laws would be too much: how PyTorch adds up a cotangent depends on where it lies.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
from kernels.tiles import TABLE

# Those of heads of keys and values alone.
OPS = ("linear_attn", "simple_gla", "gla", "delta_rule", "kda", "attention")
MODES = [(op, mode) for op, mode in TABLE if op in OPS]


@pytest.mark.parametrize(("op", "mode"), MODES)
def test_where_rows_lie_changes_nothing(op: str, mode: str, subject: Any) -> None:
    inputs, do = _inputs(op, 2, subject.device)
    want = _results(op, mode, inputs, do)
    turned = {n: _transposed(x) for n, x in inputs.items()}
    for got in (_results(op, mode, turned, do), _results(op, mode, inputs, _transposed(do))):
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(("op", "mode"), MODES)
def test_where_boundaries_lie_changes_nothing(op: str, mode: str, subject: Any) -> None:
    inputs, do = _inputs(op, 1, subject.device)
    sliced = torch.tensor([0, 4, 2, 1, 5], device=subject.device)[::2]
    want = _results(op, mode, inputs, do, cu_seqlens=sliced.contiguous())
    for a, b in zip(_results(op, mode, inputs, do, cu_seqlens=sliced), want, strict=True):
        assert torch.equal(a, b)


def test_where_boundaries_of_a_convolution_lie_changes_nothing(subject: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 5, 3, generator=generator).to(subject.device)
    weight = torch.rand(3, 4, generator=generator).to(subject.device)
    sliced = torch.tensor([0, 4, 2, 1, 5], device=subject.device)[::2]
    got, want = (
        kernels.short_conv(x, weight, cu_seqlens=c, output_final_state=True)
        for c in (sliced, sliced.contiguous())
    )
    for a, b in zip(got, want, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


def _inputs(op: str, batch: int, device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    wide = (batch, 5, 3, 16)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(["q", "k", "v", "do"], wide)
    if op in ("gla", "kda"):
        shapes["g"] = wide
    if op == "simple_gla":
        shapes["g"] = wide[:3]
    if op in ("delta_rule", "kda"):
        shapes["beta"] = wide[:3]
    inputs = {n: torch.rand(s, generator=generator).to(device) for n, s in shapes.items()}
    if "g" in inputs:
        inputs["g"] = -inputs["g"]
    return inputs, inputs.pop("do")


def _transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def _results(
    op: str, mode: str, inputs: dict[str, Tensor], do: Tensor, **options: Tensor
) -> tuple[Tensor, ...]:
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    o, *_ = getattr(kernels, op)(**leaves, **options, mode=mode)
    return o, *torch.autograd.grad(o, [*leaves.values()], do)
