"""Tests of what `mamba3` adds to `simple_gla`."""

from typing import Any

import pytest
import torch

from kernels import mamba3


def test_angles_of_long_sequences_keep_their_digits(subject: Any) -> None:
    """The last of 2048 tokens reads the first, turned by 6141: float32 would round this by 2^-12,
    and each sum on the way.
    """
    tokens = 2048
    theta = 3 + torch.randn(1, tokens, 1, 1, generator=torch.Generator().manual_seed(0)) / 16
    one = torch.ones(1, tokens, 1, device=subject.device)
    x = torch.zeros(1, tokens, 1, 1, device=subject.device)
    x[:, 0] = 1
    B = torch.tensor([1.0, 0.0], device=subject.device).expand(1, tokens, 1, 2)
    y, _ = mamba3(x, one, 0 * one, B, B, one, theta.to(subject.device))
    turned = theta.double().cumsum(1) - theta[:, :1].double()
    # Two angles below 4 are rounded, by 2^-23 each; cosines, sines, two products and their sum by
    # 12 times 2^-24.
    torch.testing.assert_close(y.double().cpu(), torch.cos(turned), rtol=0, atol=16 * 2.0**-24)


def test_angles_of_many_turns_are_summed_as_those_below_one(subject: Any) -> None:
    """In parts of 2^-40, 64 bits hold 2^23 turns: whole turns come off before."""
    angle = torch.tensor([3e8, -2e8, 1e8, 2.5]).reshape(1, 4, 1, 1)
    one = torch.ones(1, 4, 1, device=subject.device)
    x = torch.tensor([1.0, 0, 0, 0], device=subject.device).reshape(1, 4, 1, 1)
    B = torch.tensor([1.0, 0.0], device=subject.device).expand(1, 4, 1, 2)
    y, _ = mamba3(x, one, 0 * one, B, B, one, angle.to(subject.device))
    turned = angle.double().cumsum(1) - angle[:, :1].double()
    # As above: what is rounded is below a turn.
    torch.testing.assert_close(y.double().cpu(), torch.cos(turned), rtol=0, atol=16 * 2.0**-24)


@pytest.mark.parametrize("mode", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("name", ["x", "dt", "g", "B", "C", "lam", "theta"])
def test_no_output_depends_on_later_tokens(name: str, mode: Any, subject: Any) -> None:
    """A kernel that writes both shares of a token at once subtracts the later one from its row."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (2, 3), "B": (1, 4), "C": (1, 4), "theta": (2, 2)}
    given = {n: torch.randn(1, 9, *s, generator=generator) for n, s in shapes.items()}
    given |= {n: torch.rand(1, 9, 2, generator=generator) for n in ("dt", "lam", "g")}
    given = {n: z.to(subject.device) for n, z in given.items()}
    given["g"].neg_()
    y, _ = mamba3(**given, mode=mode)
    given[name][:, 5:] *= 3 / 4
    changed, _ = mamba3(**given, mode=mode)
    assert torch.equal(changed[:, :5], y[:, :5])
    assert not torch.equal(changed[:, 5:], y[:, 5:])
