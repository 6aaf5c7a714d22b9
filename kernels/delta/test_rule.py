"""Tests of the delta rules that no law covers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from kernels import comba, delta_rule, gated_delta_rule, kda, precond_gated_delta_rule
from kernels.recurrence import REGISTERED


@pytest.mark.parametrize("op", [gated_delta_rule, kda])
def test_value_heads_are_a_multiple_of_key_heads(op: Callable[..., Any], subject: Any) -> None:
    q, v = (torch.zeros(1, 3, heads, 4, device=subject.device) for heads in (2, 3))
    g = v if op is kda else v[..., 0]
    expected = "expected a positive multiple of the 2 heads of q and k"
    with pytest.raises(ValueError, match=f"v: .*{expected}"):
        op(q, q, v, g, v[..., 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", [gated_delta_rule, delta_rule])
def test_saved_systems_change_no_bit(
    op: Callable[..., Any], dtype: torch.dtype, subject: Any
) -> None:
    """Nor does a second backward pass, which reads them again."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        x = torch.randn(shape, generator=generator)
        return x.to(subject.device, dtype).requires_grad_()

    rows = (1, 70, 1)
    given = {name: normal(*rows, 16, dtype=dtype) for name in "qkv"}
    given["beta"] = torch.rand(rows, generator=generator).to(subject.device).requires_grad_()
    if op is gated_delta_rule:
        given["g"] = normal(*rows).detach().abs().neg().requires_grad_()
    settings = {"initial_state": None, "cu_seqlens": None, "output_final_state": True}
    settings |= {"use_qk_l2norm_in_kernel": True, "scale": 0.25, "dtype": dtype, "tile": -1}
    registered = REGISTERED[op.__name__, "chunk"]
    found = []
    for saves in (True, False):
        of_all = given | settings | {"saves": saves}
        o, final_state, *saved = registered.op(*(of_all[name] for name in registered.names))
        assert all(bool(x.numel()) is saves for x in saved)
        loss = o.float().square().sum() + final_state.sum()
        for _ in range(2):
            gradients = torch.autograd.grad(loss, list(given.values()), retain_graph=True)
            found.append((o, final_state, *gradients))
    for results in found[1:]:
        assert all(map(torch.equal, results, found[0]))


def test_a_checkpoint_computes_again_what_is_saved(subject: Any) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return delta_rule(x, x, x, use_qk_l2norm_in_kernel=True)[0].sum()

    x = torch.randn(1, 70, 1, 16, device=subject.device, requires_grad=True)
    want = torch.autograd.grad(run(x), x)
    assert torch.equal(*want, *torch.autograd.grad(checkpoint(run, x, use_reentrant=False), x))


@pytest.mark.parametrize("op", [comba, precond_gated_delta_rule])
def test_a_gate_of_16_bits_has_the_exact_sum_over_its_channels(
    op: Callable[..., Any], subject: Any
) -> None:
    """The parts, state times exp(g), cancel but for a part in 256."""
    nothing = torch.zeros(1, 1, 1, 2, device=subject.device, dtype=torch.bfloat16)
    state = torch.tensor([1 + 2.0**-8, -1.0], device=subject.device).view(1, 1, 2, 1)
    if op is precond_gated_delta_rule:
        state = torch.cat([state, torch.ones_like(state)], -1)
    p = [nothing] if op is comba else []
    g = torch.full((1, 1, 1), -0.35, device=subject.device, dtype=torch.bfloat16)
    g.requires_grad_()
    o, _ = op(nothing + 1, nothing, nothing[..., :1], *p, g, None, scale=1.0, initial_state=state)
    (dg,) = torch.autograd.grad(o, [g], torch.ones_like(o))
    torch.testing.assert_close(dg, (torch.exp(g) * 2.0**-8).detach(), rtol=2.0**-7, atol=0.0)
