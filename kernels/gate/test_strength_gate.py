"""Tests that laws cannot make: the oracle's gradient of an open gate is inexact in float32."""

import torch

import kernels


def test_the_gradient_of_an_open_gate_keeps_its_digits(device: torch.device) -> None:
    x = torch.tensor([18.0, 14.0, -20.0, 1.0], device=device).view(1, 4, 1).requires_grad_()
    (dx,) = torch.autograd.grad(kernels.strength_gate(x).sum(), x)
    want = torch.sigmoid(x.detach().double()) * torch.sigmoid(-x.detach().double())
    # The argument of the exponential is rounded, which costs |x| 2^-24, and some ten numbers are.
    torch.testing.assert_close(dx.double(), want, rtol=(20 + 10) * 2.0**-24, atol=0)
