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


def test_a_query_of_zeros_reads_nothing_however_large_the_gates_are(subject) -> None:
    """Its weight and exp(-z) are 0 in float32, and 0 / 0 is NaN."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, 1, 2, generator=generator).to(subject.device) for _ in "qkv")
    q[:, 2] = 0
    i = torch.full((1, 4, 1), 120.0, device=subject.device)
    inputs = [x.requires_grad_() for x in (k, v, i)]
    h, _ = mlstm(q, *inputs, torch.zeros_like(i))
    assert torch.equal(h[:, 2], torch.zeros_like(h[:, 2]))
    assert h.isfinite().all()
    gradients = torch.autograd.grad(h.sum(), inputs)
    assert all(gradient.isfinite().all() for gradient in gradients)
