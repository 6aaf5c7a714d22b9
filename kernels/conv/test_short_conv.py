"""Tests of short convolutions that the laws do not draw."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d

from kernels import short_conv
from kernels.conv.short_conv import _narrowed
from kernels.tiles import Tile


def _integers(*sizes: int, seed: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, sizes, generator=generator).float().to(device).requires_grad_()


# One tap has no state, and sixteen are more than the rows that a program loads at once.
@pytest.mark.parametrize("taps", [1, 16])
def test_the_fewest_and_the_most_taps(taps: int, subject) -> None:
    x, w, b, state, dy, dfinal = (
        _integers(*sizes, seed=seed, device=subject.device)
        for seed, sizes in enumerate(
            [(2, 150, 40), (40, taps), (40,), (2, taps - 1, 40), (2, 150, 40), (2, taps - 1, 40)]
        )
    )
    got = short_conv(x, w, b, initial_state=state, output_final_state=True)
    rows = torch.cat([state, x], 1)
    want = conv1d(rows.mT, w[:, None], b, groups=40).mT, rows[:, 150:]
    assert all(map(torch.equal, got, want))
    of = (x, w, b, state)
    assert all(
        map(
            torch.equal,
            torch.autograd.grad(got, of, (dy, dfinal)),
            torch.autograd.grad(want, of, (dy, dfinal)),
        )
    )


def test_the_gradient_of_a_bias_is_added_up_in_float32(subject) -> None:
    x, w, b = (torch.zeros(sizes, dtype=torch.bfloat16) for sizes in ((1, 65, 8), (8, 4), (8,)))
    x, w, b = (one.to(subject.device).requires_grad_() for one in (x, w, b))
    y, _ = short_conv(x, w, b)
    dy = torch.ones_like(y)
    dy[:, 0] = 256
    (got,) = torch.autograd.grad(y, b, dy)
    assert torch.equal(got, torch.full_like(b, 320))


@pytest.mark.parametrize(
    ("dim", "taps", "features"),
    [
        (2048, 1, 128),
        (2048, 4, 128),
        (2048, 5, 64),
        (2048, 16, 32),
        (65, 4, 128),
        (64, 4, 64),
        (1, 4, 1),
    ],
)
def test_registers_bound_taps_times_channels(dim: int, taps: int, features: int) -> None:
    assert _narrowed(Tile(64, features=128), dim, taps) == Tile(64, features=features)
