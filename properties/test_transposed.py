"""Inputs whose last dim is not the one with stride 1, as a transposed product leaves them.

The laws' layouts have none: how PyTorch itself adds up a cotangent depends on where it lies.
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
    generator = torch.Generator().manual_seed(0)
    wide = (2, 5, 3, 16)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys("qkv", wide)
    if op in ("gla", "kda"):
        shapes["g"] = wide
    if op == "simple_gla":
        shapes["g"] = wide[:3]
    if op in ("delta_rule", "kda"):
        shapes["beta"] = wide[:3]
    inputs = {n: torch.rand(s, generator=generator).to(subject.device) for n, s in shapes.items()}
    if "g" in inputs:
        inputs["g"] = -inputs["g"]
    do = torch.rand(wide, generator=generator).to(subject.device)
    want = _results(op, mode, inputs, do)
    turned = {n: _transposed(x) for n, x in inputs.items()}
    for got in (_results(op, mode, turned, do), _results(op, mode, inputs, _transposed(do))):
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


def _transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def _results(op: str, mode: str, inputs: dict[str, Tensor], do: Tensor) -> tuple[Tensor, ...]:
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    o, *_ = getattr(kernels, op)(**leaves, mode=mode)
    return o, *torch.autograd.grad(o, [*leaves.values()], do)
