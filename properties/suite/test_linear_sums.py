"""Sums of linear attention and gated ops are float32 even if inputs are bfloat16.

As in `test_chunk_sums`, integers reveal it: every sum passes through 257, one bit more than a
bfloat16 has, on the way to a small result, one block of channels or one token after the other.
Operands and results, which a kernel may round, fit into 8 bits or are rounded once here as well.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
import properties.simulator as simulator
import reference
from kernels.primitives.parts import add_parts
from properties.catalogue import OPS
from properties.catalogue.kinds import carries_states, gates, gates_of_keys, has, is_delta
from properties.catalogue.op import Op, Role


def _dims(op: Op) -> list[tuple[str, str]]:
    return [(argument.name, argument.dims) for argument in op.arguments]


RECURRENCES = [op for op in OPS.values() if op.modes and op.wraps is None and carries_states(op)]
MODES = [(op.name, mode.name) for op in RECURRENCES if not is_delta(op) for mode in op.modes]
# Groups share queries and keys, and heads have values of their own.
GROUPED = [
    (op.name, mode.name)
    for op in OPS.values()
    if op.wraps is None and {("q", "B T G K"), ("v", "B T H V")} <= {*_dims(op)}
    for mode in op.modes
]
K, V = 256, 256
Tensors = dict[str, Tensor]


def _pair(width: int, blocks: bool) -> tuple[Tensor, Tensor]:
    """Two vectors with product 1, as 257 - 256 if there are several blocks of channels."""
    pair = torch.zeros(2, width, dtype=torch.float64)
    values = [[16.0, 1, 16], [16.0, 1, -16]] if blocks else [[1.0, 0, 0], [1.0, 0, 0]]
    pair[:, [0, 1, 200]] = torch.tensor(values).double()
    return pair[0], pair[1]


# Factors of four tokens whose sums, in sequence and as a tree, pass through 257.
FACTORS = {"in turn": (256, 1, -256, 0), "first": (256, 0, -256, 0), "last": (0, -256, 0, 256)}


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("of_tokens", ["queries", "keys"])
@pytest.mark.parametrize(("op", "mode"), MODES)
def test_sums_over_channels_and_tokens_keep_their_bits(
    op: str, mode: str, of_tokens: str, factors: str, subject: Any
) -> None:
    """q · k, do · v, and either with a state or its gradient, are 1 for each token, times its
    factor.
    """
    # The other modes sum over all channels at once, or round each block's sum.
    blocks = mode in ("chunk", "parallel")
    # In separate chunks, without a state between them that may be rounded.
    alone = mode == "parallel" and of_tokens == "queries" and factors != "last"
    apart = 64 if alone else 1
    T = 4 * apart
    all_one = (torch.arange(T) % apart == 0).double()[:, None]
    each = all_one * torch.tensor(FACTORS[factors]).double().repeat_interleave(apart)[:, None]
    (left_k, right_k), (left_v, right_v) = _pair(K, blocks), _pair(V, blocks)
    inputs = {
        "q": left_k * (each if of_tokens == "queries" else all_one),
        "k": right_k * (each if of_tokens == "keys" else all_one),
        "v": left_v * all_one,
    }
    inputs = {name: x[None, :, None] for name, x in inputs.items()}
    inputs["initial_state"] = torch.outer(right_k, left_v)[None, None]
    inputs |= _open_gates(op, {"B": 1, "T": T, "H": 1, "K": K})
    do = (right_v * all_one)[None, :, None]
    dstate = torch.outer(left_k, right_v)[None, None]
    _hold(op, mode, inputs, do, dstate, subject.device)


@pytest.mark.parametrize("op", [op for op, mode in MODES if mode == "parallel"])
def test_state_reads_by_queries_keep_their_bits(op: str, subject: Any) -> None:
    """257 less 256. In chunks, states are rounded where they are read."""
    zeros = torch.zeros(1, 3, 1, 16, dtype=torch.bfloat16, device=subject.device)
    q = zeros.clone()
    q[..., 0], q[..., 1] = 1, -1
    state = torch.zeros(1, 1, 16, 16, device=subject.device)
    state[..., 0, :], state[..., 1, :] = 257, 256
    o, _ = getattr(kernels, op)(q, zeros, zeros, scale=1.0, initial_state=state, mode="parallel")
    assert (o == 1).all()


@pytest.mark.parametrize("count", [15, 17])
def test_missing_parts_are_not_added(count: int, subject: Any) -> None:
    if subject.device.type != "cpu":
        pytest.skip("only the simulator can be told what a load leaves undefined")
    parts = torch.randint(-9, 10, (count, 3, 5)).float()
    with simulator.simulating(unmasked=math.nan):
        assert torch.equal(add_parts(parts, torch.float32), parts.sum(0))


@pytest.mark.parametrize("op", [op for op, mode in MODES if mode == "parallel"])
def test_outputs_from_earlier_chunks_keep_their_bits(op: str, subject: Any) -> None:
    """-256, 1 and 256 come from three chunks to a query of the fourth, and go back as gradients."""
    apart = 64
    first = (torch.arange(4 * apart) % apart == 0).double()[None, :, None, None]
    channel = (torch.arange(16) == 0).double()
    factors = torch.tensor([-256.0, 1, 256, 0]).double().repeat_interleave(apart)
    q = (first * channel).bfloat16().to(subject.device)
    k = (first * channel * factors[None, :, None, None]).bfloat16().to(subject.device)
    o, _ = getattr(kernels, op)(q, k, q, scale=1.0, mode="parallel")
    assert o[0, 3 * apart, 0, 0] == 1


@pytest.mark.parametrize("large", ["v", "do"])
@pytest.mark.parametrize("op", [op.name for op in RECURRENCES])
def test_sums_over_tokens_of_a_recurrence_keep_their_bits(
    op: str, large: str, subject: Any
) -> None:
    """States or their gradients have more than 8 bits."""
    generator = torch.Generator().manual_seed(3)

    def integers(largest: int, *shape: int) -> Tensor:
        return torch.randint(-largest, largest + 1, shape, generator=generator).double()

    tokens, key_dim, value_dim = 4, 8, 8
    inputs = {
        "q": integers(1, 1, tokens, 1, key_dim),
        "k": integers(1, 1, tokens, 1, key_dim) * (torch.arange(key_dim) % 4 == 0),
        "v": integers(200 if large == "v" else 1, 1, tokens, 1, value_dim),
        "initial_state": integers(1, 1, 1, key_dim, value_dim),
    }
    inputs |= _open_gates(op, {"B": 1, "T": tokens, "H": 1, "K": key_dim})
    if has(OPS[op], Role.LOW_RANK):
        inputs |= {name: inputs["k"] * sign for name, sign in (("a", -1), ("b", 1))}
    if has(OPS[op], Role.STRENGTH):
        inputs["beta"] = torch.ones(1, tokens, 1).double()
    do = integers(200 if large == "do" else 1, 1, tokens, 1, value_dim)
    dstate = integers(1, 1, 1, key_dim, value_dim)
    _hold(op, "fused_recurrent", inputs, do, dstate, subject.device)


@pytest.mark.parametrize(
    "op", [op.name for op in RECURRENCES if gates_of_keys(op) and not has(op, Role.LOW_RANK)]
)
def test_decayed_keys_and_queries_keep_16_bits(op: str, subject: Any) -> None:
    """Keys that enter the state, and queries that enter its gradient. The state is rounded where it
    is read, and so is its reader; a third rounding is not allowed.
    """
    generator = torch.Generator().manual_seed(0)
    tokens, key_dim, value_dim = 3, 16, 16
    own = torch.eye(key_dim).double()
    inputs = {
        # No two rows share a channel.
        "q": own[None, tokens : 2 * tokens, None],
        "k": own[None, :tokens, None],
        "v": torch.randn(1, tokens, 1, value_dim, generator=generator).bfloat16().double(),
        "g": -torch.rand(1, tokens, 1, key_dim, generator=generator).double(),
        "initial_state": torch.zeros(1, 1, key_dim, value_dim).double(),
    }
    if has(OPS[op], Role.STRENGTH):
        inputs["beta"] = torch.ones(1, tokens, 1).double()
    do, dstate = inputs["v"].flip(1), torch.zeros(1, 1, key_dim, value_dim)
    got, want = _both(op, "chunk", inputs, do, dstate, subject.device)
    for name in ("state", "dinitial_state"):
        assert want[name].count_nonzero() == tokens * value_dim
        # Each factor of a product loses 2^-17, and a decay less than both.
        torch.testing.assert_close(got[name], want[name].float(), rtol=2.0**-15, atol=0)


def test_gradients_through_readers_of_channels_keep_their_bits(subject: Any) -> None:
    """Keys' gradients from gated readers, and from the keys themselves: with nearly opposite states
    of two heads, both are large and their sum is small.
    """
    generator = torch.Generator().manual_seed(0)

    def integers(*sizes: int, most: int) -> Tensor:
        return torch.randint(-most, most + 1, sizes, generator=generator).double()

    tokens, key_dim, value_dim = 4, 16, 16
    one, rest = integers(key_dim, value_dim, most=99), integers(key_dim, value_dim, most=1)
    inputs = {
        "q": integers(1, tokens, 1, key_dim, most=1),
        "k": torch.eye(key_dim).double()[None, :tokens, None],
        "v": integers(1, tokens, 2, value_dim, most=1),
        "g": torch.zeros(1, tokens, 2, key_dim).double(),
        "beta": torch.ones(1, tokens, 2).double(),
        "initial_state": torch.stack([one, rest - one])[None],
    }
    do = integers(1, tokens, 1, value_dim, most=1).expand(1, tokens, 2, value_dim)
    dstate = torch.zeros(1, 2, key_dim, value_dim)
    got, want = _both("kda", "chunk", inputs, do, dstate, subject.device)
    assert want["dg"].abs().max() > 256
    for name in ("dk", "dg"):
        assert torch.equal(got[name], want[name].to(got[name].dtype)), name


def test_gradients_of_readers_of_their_own_keep_their_bits(subject: Any) -> None:
    """The last a reads 257 from S_0, 512 from the first token, and -768 from the third, which is on
    another level of the chunk.
    """
    zeros = torch.zeros(1, 4, 1, 16, dtype=torch.bfloat16, device=subject.device)
    k, v, a, b = (zeros.clone() for _ in range(4))
    k[0, [0, 2], 0, 0] = 1
    v[0, 0, 0, 0], v[0, 2, 0, 0] = 512, -768
    b[0, 3, 0, 1] = 1
    state, dstate = (torch.zeros(1, 1, 16, 16, device=subject.device) for _ in range(2))
    state[0, 0, 0, :2] = torch.tensor([256.0, 1])
    dstate[0, 0, 1, :2] = 1
    _, final = kernels.dplr(
        zeros, k, v, a.requires_grad_(), b, zeros.float(),
        initial_state=state, output_final_state=True, mode="chunk",
    )  # fmt: skip
    assert final is not None
    (da,) = torch.autograd.grad(final, a, dstate)
    assert da[0, 3, 0, 0] == 1


def test_the_gradient_of_a_gate_is_rounded_once_it_is_whole(subject: Any) -> None:
    """257 comes from beyond the chunk, and -256 from the key."""
    zeros = torch.zeros(1, 1, 1, 16, dtype=torch.bfloat16, device=subject.device)
    k = zeros.clone()
    k[..., 0] = 1
    g = zeros[..., 0].clone().requires_grad_()
    state = torch.zeros(1, 1, 16, 16, device=subject.device)
    state[0, 0, :2, 0] = torch.tensor([16.0, 1])
    _, final = kernels.gated_delta_rule(
        zeros, k, zeros, g, k[..., 0], initial_state=state, output_final_state=True, mode="chunk"
    )
    assert final is not None
    (dg,) = torch.autograd.grad(final, g, state)
    assert dg == 1


# Of a group of two heads: the cotangents of three tokens, the values of the first two, and queries.
# A head's gradient of q or k is 257 in the first channel, and that of the other -256.
_OF_HEADS = {
    "q": ([(0, 0), (0, 0), (16, 1)], [(0, 0), (0, 0), (-16, 0)], [(16, 0), (0, 1)]),
    "k": ([(0, 0), (16, 0), (0, 1)], [(0, 0), (-16, 0), (0, 0)], [(16, 1), (0, 0)]),
}


@pytest.mark.parametrize("name", _OF_HEADS)
@pytest.mark.parametrize(("op", "mode"), GROUPED)
def test_sums_over_heads_of_a_group_keep_their_bits(
    op: str, mode: str, name: str, subject: Any
) -> None:
    """A sum is 1 in the first channel. Keys are orthogonal, so that a delta rule corrects none."""
    first, second, values = _OF_HEADS[name]
    inputs = {n: torch.zeros(1, 3, 1, 16, dtype=torch.float64) for n in ("q", "k")}
    inputs["q"][0, 1:, 0, 0] = 1
    inputs["k"][0, :2, 0, :2] = torch.tensor([(1, 1), (1, -1) if name == "q" else (0, 0)]).double()
    inputs["v"] = torch.zeros(1, 3, 2, 16, dtype=torch.float64)
    inputs["v"][0, :2, :, :2] = torch.tensor(values).double()[:, None]
    do = torch.zeros(1, 3, 2, 16, dtype=torch.float64)
    do[0, :, 0, :2], do[0, :, 1, :2] = torch.tensor(first).double(), torch.tensor(second).double()
    if "level_scales" in OPS[op].names:
        inputs["level_scales"] = torch.ones(1, 3, 2, 3, dtype=torch.float64)

    def gradient(function: Any, given: Tensors, **options: Any) -> Tensor:
        leaf = given[name].requires_grad_()
        returned = function(**{**given, name: leaf}, scale=1.0, **options)
        o = returned[0] if isinstance(returned, tuple) else returned
        return torch.autograd.grad(o, leaf, do.to(o))[0].cpu()

    given = {n: x.to(subject.device, torch.bfloat16) for n, x in inputs.items()}
    got = gradient(getattr(kernels, op), given, mode=mode)
    want = gradient(getattr(reference, op), inputs)
    assert 1 in want[..., 0]
    assert torch.equal(got.double(), want)


def _open_gates(op: str, sizes: dict[str, int]) -> Tensors:
    """Gates of 0, of heads or of the channels of keys."""
    return {
        gate.name: torch.zeros([sizes[d] for d in gate.dims.split()]).double()
        for gate in gates(OPS[op])
        if {*gate.dims.split()} <= sizes.keys()
    }


def _hold(
    op: str, mode: str, inputs: Tensors, do: Tensor, dstate: Tensor, device: torch.device
) -> None:
    """Check that outputs and gradients are those of the float64 oracle, rounded once."""
    got, want = _both(op, mode, inputs, do, dstate, device)
    for name, x in got.items():
        assert want[name].abs().max() < 2**24, name
        assert torch.equal(x, want[name].to(x.dtype)), name


def _both(
    op: str, mode: str, inputs: Tensors, do: Tensor, dstate: Tensor, device: torch.device
) -> tuple[Tensors, Tensors]:
    """Outputs and gradients: of the kernel on a device, and of the oracle in float64."""
    dtypes = dict.fromkeys("qkvab", torch.bfloat16)
    leaves = {
        n: x.to(device, dtypes.get(n, torch.float32)).requires_grad_() for n, x in inputs.items()
    }
    got = _results(getattr(kernels, op), leaves, do, dstate, mode=mode)
    exact = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    want = _results(getattr(reference, op), exact, do, dstate)
    return {name: x.cpu() for name, x in got.items()}, want


def _results(function: Any, leaves: Tensors, do: Tensor, dstate: Tensor, **mode: str) -> Tensors:
    o, state = function(**leaves, scale=1.0, output_final_state=True, **mode)
    gradients = torch.autograd.grad([o, state], [*leaves.values()], [do.to(o), dstate.to(state)])
    named = zip((f"d{name}" for name in leaves), gradients, strict=True)
    return {"o": o.detach(), "state": state.detach(), **dict(named)}


def test_turns_of_a_ring_keep_their_digits_in_long_sequences(device: torch.device) -> None:
    """Sums that are not reduced by whole turns round more at each token, eightfold here."""
    generator = torch.Generator().manual_seed(0)
    tokens, slots = 1500, 31
    q, k, v = (torch.randn(1, tokens, 1, 4, generator=generator) for _ in range(3))
    readout = torch.randn(1, slots, slots, generator=generator) / slots**0.5
    delta, g = torch.full((1, tokens, 1), 13.37), torch.full((1, tokens, 1), -0.1)
    weight = torch.ones(4)
    given = (q, k, v, delta, readout, weight, weight, g)
    o, _ = kernels.cyfa(*(x.to(device) for x in given), mode="chunk")
    want, _ = reference.cyfa(*(x.double() for x in given))
    error = (o.cpu().double() - want).abs()
    assert error[:, -200:].max() <= 4 * error[:, :200].max()
