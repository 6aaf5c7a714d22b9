"""Tests of what `mlstm` adds to `simple_gla`: its stabilizer."""

import torch

from kernels import mlstm


def test_gates_of_what_writes_nothing_get_no_gradient_by_rounding(subject) -> None:
    """Outputs do not depend on the stabilizer, of which the terms would cancel to 1e-9."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 15, 1, 2, generator=generator).to(subject.device) for _ in "qkv")
    i, g = (torch.randn(1, 15, 1, generator=generator).to(subject.device) for _ in "ig")
    state = torch.randn(1, 1, 3, 3, generator=generator).to(subject.device)
    h, _ = mlstm(q, 0 * k, v, i.requires_grad_(), -g.abs(), initial_state=state)
    (di,) = torch.autograd.grad(h.sum(), i)
    assert torch.equal(di, torch.zeros_like(di))
