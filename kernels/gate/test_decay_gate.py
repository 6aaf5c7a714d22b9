"""A test that laws cannot make: gates that overflow float32 before they are bounded."""

import pytest
import torch

import kernels


@pytest.mark.parametrize("z", [10.0, -10.0])
def test_the_gradient_of_a_gate_that_overflows_is_a_number(z: float, device: torch.device) -> None:
    x = torch.full((1, 2, 1, 4), z, device=device, requires_grad=True)
    A_log = torch.full((1,), 88.0, device=device, requires_grad=True)
    kernels.decay_gate(x, A_log, lower_bound=-5.0).sum().backward()
    assert x.grad is not None
    assert A_log.grad is not None
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(A_log.grad, torch.zeros_like(A_log))
