"""Sums within a chunk of a delta rule are float32 even if inputs are bfloat16.

Each has few terms, so rounding them to 8 bits would stay within the error budget. Integers reveal
it: the sums need more than 8 bits, while operands that a kernel may round fit into 8, so only
results are rounded.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
import reference
from properties.catalogue import OPS
from properties.catalogue.kinds import carries_states, gates, groups_heads, has
from properties.catalogue.op import Role

DELTA_RULES = [
    op.name
    for op in OPS.values()
    if op.modes and op.wraps is None and has(op, Role.STRENGTH) and carries_states(op)
]
T, K, V = 4, 128, 64
Tensors = dict[str, Tensor]


@pytest.mark.parametrize("op", DELTA_RULES)
def test_products_of_keys_keep_their_bits(op: str, subject: Any) -> None:
    inputs = _inputs(op, seed=0)
    # k_1 · k_2 = 257 - 256, in two blocks of keys. Gradients of them have more than 8 bits.
    inputs["k"][0, :2, 0] = 0
    inputs["k"][0, 0, 0, [0, 1, 100]] = torch.tensor([16.0, 1, 16]).double()
    inputs["k"][0, 1, 0, [0, 1, 100]] = torch.tensor([16.0, 1, -16]).double()
    got, want = _results(op, inputs, subject.device)
    for name in set(got) - {"dk", "dg"}:
        assert torch.equal(got[name], want[name].to(got[name].dtype)), name


# Seeds whose operands fit into 8 bits.
@pytest.mark.parametrize("seed", [2, 13, 22])
@pytest.mark.parametrize("op", DELTA_RULES)
def test_gradients_keep_their_bits(op: str, seed: int, subject: Any) -> None:
    got, want = _results(op, _inputs(op, seed), subject.device)
    for name, x in got.items():
        assert torch.equal(x, want[name].to(x.dtype)), name


@pytest.mark.parametrize("op", DELTA_RULES)
def test_the_inverse_of_a_system_keeps_its_bits(op: str, subject: Any) -> None:
    """k_1 · k_2 = k_2 · k_3 = 17, so the inverse has 17² = 289, which cancels against 17 ·
    (-17).
    """
    inputs = {name: torch.zeros_like(x) for name, x in _inputs(op, seed=0).items()}
    inputs["beta"] += 1
    for token, (channels, value) in enumerate([((0,), 1), ((0, 2), 17), ((2,), 1)]):
        for channel in channels:
            inputs["k"][0, token, 0, [channel, channel + 1]] = torch.tensor([4.0, 1]).double()
        # Each query matches only its own key.
        inputs["k"][0, token, 0, 100 + token] = 1
        inputs["q"][0, token, 0, 100 + token] = 1
        inputs["v"][0, token] = value
    do = inputs["v"].clone()
    got, want = _results(op, inputs, subject.device, do)
    for name in ("o", "state", "dv"):
        assert torch.equal(got[name], want[name].to(got[name].dtype)), name


@pytest.mark.parametrize("op", DELTA_RULES)
def test_state_reads_by_keys_keep_their_bits(op: str, subject: Any) -> None:
    """Reads 257 from the state, of which 256 is subtracted before writing."""
    inputs = {name: torch.zeros_like(x) for name, x in _inputs(op, seed=0).items()}
    inputs["beta"] += 1
    inputs["k"][0, 0, 0, 0] = 1
    inputs["initial_state"][..., 0, 0], inputs["v"][0, 0, ..., 0] = 257, 256
    got, _ = _results(op, inputs, subject.device)
    assert (got["state"][..., 0, 0] == 256).all()


@pytest.mark.parametrize("mode", ["chunk", "fused_recurrent"])
def test_a_16_bit_beta_is_multiplied_in_float32(mode: Any, subject: Any) -> None:
    """1.5 · 2047 has 12 bits before the point and one after; float16 has 11 in all."""
    one = torch.ones(1, 1, 1, 16, dtype=torch.float16, device=subject.device)
    k = one * (torch.arange(16, device=subject.device) == 0)
    beta = torch.full((1, 1, 1), 1.5, dtype=torch.float16, device=subject.device)
    _, state = kernels.delta_rule(one, k, 2047 * one, beta, output_final_state=True, mode=mode)
    assert state is not None
    assert state[0, 0, 0].tolist() == [3070.5] * 16


def _inputs(op: str, seed: int) -> Tensors:
    """Integers in float64, with keys that share no channel."""
    generator = torch.Generator().manual_seed(seed)

    def integers(largest: int, *shape: int) -> Tensor:
        return torch.randint(-largest, largest + 1, shape, generator=generator).double()

    # Half of the channels belong to no key.
    owner = torch.arange(K) % (2 * T)
    k = integers(3, 1, T, 1, K) * (owner == torch.arange(T)[:, None, None])
    # Two heads may share a key, whose gradient is rounded after they are summed.
    H = 2 if groups_heads(OPS[op]) else 1
    inputs = {
        "q": integers(2, 1, T, 1, K) * (torch.rand(K, generator=generator) < 0.3),
        "k": k,
        "v": integers(2, 1, T, H, V),
        "beta": 1 + integers(1, 1, T, H).abs(),
        "initial_state": integers(2, 1, H, K, V) * (torch.rand(K, V, generator=generator) < 0.1),
    }
    sizes = {"B": 1, "T": T, "H": H, "K": K}
    opened = {g.name: torch.zeros([sizes[d] for d in g.dims.split()]) for g in gates(OPS[op])}
    return inputs | {name: x.double() for name, x in opened.items()}


def _results(
    op: str, inputs: Tensors, device: torch.device, do: Tensor | None = None
) -> tuple[Tensors, Tensors]:
    """Outputs and gradients, by default for a cotangent of few integers: of the kernel, and of the
    oracle in float64.
    """
    generator = torch.Generator().manual_seed(1)
    H = inputs["v"].shape[2]
    # Few value channels, one in each block, so that the gradient of k_i · k_j has 8 bits.
    dims = torch.arange(V) % 17 == 0
    drawn = torch.randint(-3, 4, (1, T, H, V), generator=generator).double() * dims
    do = drawn if do is None else do
    dstate = torch.randint(-1, 2, (1, H, K, V), generator=generator).double()

    def results(function: Any, dtypes: dict[str, torch.dtype], where: Any, **mode: str) -> Tensors:
        leaves = {
            n: x.to(where, dtypes.get(n, x.dtype)).requires_grad_() for n, x in inputs.items()
        }
        o, state = function(**leaves, scale=1.0, output_final_state=True, **mode)
        incoming = [do.to(o), dstate.to(state)]
        gradients = torch.autograd.grad([o, state], [*leaves.values()], incoming)
        named = zip((f"d{name}" for name in leaves), gradients, strict=True)
        return {n: x.detach().cpu() for n, x in {"o": o, "state": state, **dict(named)}.items()}

    dtypes = dict.fromkeys(inputs, torch.float32) | dict.fromkeys("qkv", torch.bfloat16)
    got = results(getattr(kernels, op), dtypes, device, mode="chunk")
    return got, results(getattr(reference, op), {}, "cpu")
