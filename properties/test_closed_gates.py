"""A gate of -inf forgets all there is, as a very low one does, and makes no NaN of 0 · inf."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
from kernels.tiles import TABLE

GATES = {
    "simple_gla": ("g", False),
    "gla": ("g", True),
    "gated_delta_rule": ("g", False),
    "kda": ("g", True),
    "dplr": ("gk", True),
}
MODES = [(op, mode) for op, mode in TABLE if op in GATES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("op", "mode"), MODES)
def test_a_closed_gate_is_a_very_low_one(
    op: str, mode: str, dtype: torch.dtype, subject: Any
) -> None:
    low, closed = (_results(op, mode, dtype, gate, subject.device) for gate in (-1000.0, -math.inf))
    for name, x in closed.items():
        assert x.isfinite().all(), name
        assert torch.equal(x, low[name]), name


def _results(
    op: str, mode: str, dtype: torch.dtype, gate: float, device: torch.device
) -> dict[str, Tensor]:
    """Outputs and gradients, with such a gate at the third of 7 tokens."""
    generator = torch.Generator().manual_seed(0)
    gate_name, of_channels = GATES[op]
    wide = (1, 7, 1, 16)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys("qkvab" if op == "dplr" else "qkv", wide)
    if op in ("gated_delta_rule", "kda"):
        shapes["beta"] = wide[:3]
    inputs = {n: torch.rand(s, generator=generator) / 4 for n, s in shapes.items()}
    g = -torch.rand(wide if of_channels else wide[:3], generator=generator)
    g[:, 2] = gate
    inputs[gate_name] = g
    leaves = {n: x.to(device, dtype).requires_grad_() for n, x in inputs.items()}
    o, state = getattr(kernels, op)(**leaves, output_final_state=True, mode=mode)
    gradients = torch.autograd.grad([o.sum(), state.sum()], [*leaves.values()])
    named = dict(zip((f"d{name}" for name in leaves), gradients, strict=True))
    return {"o": o.detach(), "state": state.detach(), **named}
