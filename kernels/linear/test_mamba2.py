"""Tests of what `mamba2` adds to `simple_gla`, with integers whose sums do not fit 16 bits."""

import torch
from torch import Tensor

from kernels import mamba2


def _channels(device: torch.device, *values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.bfloat16, device=device)[None, None, None]


def test_the_step_of_a_decay_is_multiplied_in_float32(subject) -> None:
    """(1 + 1/128)² in 8 bits would be off by 2^-14, once for each token."""
    tokens, step = 64, 1 + 1 / 128
    x = torch.zeros(1, tokens, 1, 16, dtype=torch.bfloat16, device=subject.device)
    dt = torch.full((1, tokens, 1), step, dtype=torch.bfloat16, device=subject.device)
    initial = torch.full((1, 1, 16, 16), 2.0**90, device=subject.device)
    A = torch.full((1,), -step, dtype=torch.bfloat16, device=subject.device)
    _, state = mamba2(x, dt, A, x, x, initial_state=initial, output_final_state=True)
    want = 2.0**90 * torch.tensor(-tokens * step**2).double().exp()
    assert (state.cpu().double() / want - 1).abs().max() <= 2 * tokens * 2**-24


def test_the_gradient_of_a_step_is_summed_in_float32(subject) -> None:
    """255 · 255 - 254 · 256 = 1, of which each product has 16 bits."""
    one = _channels(subject.device, 1, *[0] * 15)
    x = _channels(subject.device, 255, 254, *[0] * 14)
    do = _channels(subject.device, 255, -256, *[0] * 14)
    dt = one[..., 0].clone().requires_grad_()
    y, _ = mamba2(x, dt, torch.zeros_like(one[0, 0, 0, :1]), one, one)
    (gradient,) = torch.autograd.grad(y, dt, do)
    assert gradient.item() == 1


def test_what_passes_by_is_added_in_float32(subject) -> None:
    """255 · 255 and what 65025 is in 8 bits, 65024, are 1 apart."""
    one = _channels(subject.device, 1, *[0] * 15)
    x = _channels(subject.device, 255, *[0] * 15)
    D = _channels(subject.device, 255)[0, 0, 0]
    y, _ = mamba2(x, one[..., 0], torch.zeros_like(D), one, -255 * one, D)
    assert y.dtype == x.dtype
    assert y[0, 0, 0, 0] == 1
