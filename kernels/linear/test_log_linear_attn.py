"""Tests of log-linear attention that no law covers."""

from typing import Any

import pytest
import torch

from kernels import log_linear_attn

in_each_mode = pytest.mark.parametrize("mode", ["chunk", "fused_recurrent"])


@in_each_mode
def test_a_sequence_needs_a_level_for_each_power_of_two(subject: Any, mode: Any) -> None:
    x = torch.zeros(1, 5, 1, 4, device=subject.device)
    with pytest.raises(ValueError, match="level_scales: L=3, expected at least 4 levels for T=5"):
        log_linear_attn(x, x, x, x[..., :3], mode=mode)


@in_each_mode
def test_levels_that_no_token_reaches_are_not_read(subject: Any, mode: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 6, 2, 8, generator=generator) for _ in range(3))
    scales = torch.randn(1, 6, 2, 40, generator=generator)
    results = []
    for levels in (4, 40):
        given = [x.to(subject.device).requires_grad_() for x in (q, k, v, scales[..., :levels])]
        o = log_linear_attn(*given, mode=mode)
        results.append((o, *torch.autograd.grad(o.square().sum(), given)))
    few, many = results
    assert torch.equal(many[4][..., 4:], torch.zeros_like(many[4][..., 4:]))
    for one, other in zip(few, (*many[:4], many[4][..., :4]), strict=True):
        assert torch.equal(one, other)


@in_each_mode
def test_decays_that_are_the_same_at_every_token_do_not_add_up_their_errors(
    subject: Any, mode: Any
) -> None:
    """A product and a sum a token, as in `simple_gla`: one rounding a token and a half."""
    tokens, life = 512, 256
    device = subject.device
    g = torch.linspace(-0.3, -0.05, 16, device=device)
    one = torch.zeros(1, tokens, 16, 1, device=device)
    k, q, scales = one.clone(), one.clone(), torch.zeros(1, tokens, 16, 10, device=device)
    k[:, life - 1], q[:, -1], scales[:, -1, :, 9] = 1.0, 1.0, 1.0
    k.requires_grad_()
    o = log_linear_attn(q, k, k.detach(), scales, g.expand(1, tokens, 16), scale=1.0, mode=mode)
    (dk,) = torch.autograd.grad(o[:, -1].sum(), k)
    want = (life * g.cpu().double()).exp()
    for got in (o[0, -1, :, 0], dk[0, life - 1, :, 0]):
        assert (got.detach().cpu().double() / want - 1).abs().max() <= 1.5 * life * 2**-24
