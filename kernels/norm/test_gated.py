"""Tests that laws cannot make: the oracle's gradient of an open gate is inexact in float32."""

import pytest
import torch

import kernels


@pytest.mark.parametrize("name", ["rms_norm_gated", "layer_norm_gated"])
def test_the_gradient_of_an_open_gate_keeps_its_digits(name: str, device: torch.device) -> None:
    x = torch.tensor([1.0, -2.0, 3.0, 4.0], device=device).view(1, 1, 1, 4)
    z = torch.tensor([18.0, 14.0, 20.0, 1.0], device=device).view(1, 1, 1, 4)
    norm = getattr(kernels, name)
    gate = z.clone().requires_grad_()
    (dz,) = torch.autograd.grad(norm(x, gate, activation="sigmoid").sum(), gate)
    normalized = norm(x, torch.full_like(z, 100.0), activation="sigmoid").double()
    want = normalized * torch.sigmoid(z.double()) * torch.sigmoid(-z.double())
    # The argument of the exponential is rounded, which costs |z| 2^-24, and some ten numbers are.
    torch.testing.assert_close(dz.double(), want, rtol=(20 + 10) * 2.0**-24, atol=0)
