"""Tests of cyclic flow attention that no law covers."""

from typing import Any

import pytest
import torch

from kernels import cyfa


@pytest.mark.parametrize("mode", ["chunk", "fused_chunk", "fused_recurrent"])
def test_whole_turns_of_the_ring_change_no_bit(subject: Any, mode: Any) -> None:
    """The sum of all turns so far would round, in the oracle too, so that its budget grows."""
    generator = torch.Generator().manual_seed(0)
    tokens, slots = 40, 5
    q, k, v = (torch.randn(1, tokens, 2, 4, generator=generator) for _ in range(3))
    readout = torch.randn(2, slots, slots, generator=generator)
    weight = torch.ones(4, device=subject.device)
    eighths = torch.randint(-8, 9, (1, tokens, 2), generator=generator) / 8
    turns = slots * torch.randint(-99999, 100000, (1, tokens, 2), generator=generator)
    results = []
    for delta in (eighths, eighths + turns):
        given = [x.to(subject.device).requires_grad_() for x in (q, k, v, delta, readout)]
        o, _ = cyfa(*given, weight, weight, mode=mode)
        results.append((o, *torch.autograd.grad(o.square().sum(), given)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
