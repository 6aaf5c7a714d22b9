"""Tests of linear attention that no law covers: registration, gradients, the choice of mode."""

import pytest
import torch
from torch import Tensor

import kernels
from kernels import gla, simple_gla, tiles
from kernels.recurrence import REGISTERED
from kernels.tiles import TABLE

B, T, H, K, V = 2, 5, 3, 7, 11
LINEAR = [each for each in REGISTERED if each[0] in ("linear_attn", "gla", "simple_gla")]
GLA_MODES = [mode for op, mode in LINEAR if op == "gla"]


def _inputs(device: torch.device, tokens: int = T, batch: int = B) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device).requires_grad_()

    return {
        "q": normal(batch, tokens, H, K),
        "k": normal(batch, tokens, H, K),
        "v": normal(batch, tokens, H, V),
        "g": normal(batch, tokens, H, K).abs().neg().detach().requires_grad_(),
        "gv": normal(batch, tokens, H, V).abs().neg().detach().requires_grad_(),
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize(("op", "mode"), LINEAR)
def test_every_op_passes_opcheck(
    op: str, mode: str, with_state: bool, packed: bool, device: torch.device
) -> None:
    inputs = _inputs(device, batch=1 if packed else B)
    cu_seqlens = torch.tensor([0, 3, 3, T], device=device) if packed else None
    sequences = 3 if packed else B
    state = torch.randn(sequences, H, K, V, device=device, requires_grad=True)
    registered = REGISTERED[op, mode]
    given = {
        **inputs,
        "g": inputs["g"] if op == "gla" else None,
        "initial_state": state if with_state else None,
        "cu_seqlens": cu_seqlens,
        "scale": 0.5,
        "reverse": True,
        "output_final_state": with_state,
        "out_dtype": torch.float32,
        "dtype": torch.float32,
        "tile": len(TABLE[op, mode]) - 1,
    }
    torch.library.opcheck(registered.op, tuple(given[name] for name in registered.names))


@pytest.mark.parametrize("mode", GLA_MODES)
def test_a_whole_graph_compiles_with_its_gradients_whatever_the_length(
    mode: str, device: torch.device
) -> None:
    def loss(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        o, state = gla(q, k, v, g, output_final_state=True, normalize=True, mode=mode)
        return o.sum() + gla(q, k, v, g, initial_state=state[..., :-1], mode=mode)[0].sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (T, T + 2):
        inputs = [_inputs(device, tokens)[name] for name in "qkvg"]
        want = torch.autograd.grad(loss(*inputs), inputs)
        got = torch.autograd.grad(compiled(*inputs), inputs)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(("op", "mode"), LINEAR)
def test_gradients_of_gradients_are_refused(op: str, mode: str, device: torch.device) -> None:
    q, k, v = (_inputs(device)[name] for name in "qkv")
    o, _ = getattr(kernels, op)(q, k, v, mode=mode)
    (dq,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="gradients of its gradients"):
        dq.sum().backward()


@pytest.mark.parametrize("mode", GLA_MODES)
def test_a_gradient_may_come_through_one_output_alone(mode: str, device: torch.device) -> None:
    q, k, v, g = (_inputs(device)[name] for name in "qkvg")
    o, state = gla(q, k, v, g, output_final_state=True, mode=mode)
    through_o = torch.autograd.grad(o.sum(), (k, v), retain_graph=True)
    through_state = torch.autograd.grad(state.sum(), (k, v), retain_graph=True)
    both = torch.autograd.grad(o.sum() + state.sum(), (k, v))
    for a, b, c in zip(through_o, through_state, both, strict=True):
        torch.testing.assert_close(a + b, c, rtol=1e-5, atol=1e-5)
    (dq,) = torch.autograd.grad(gla(q, k, v, g, output_final_state=True, mode=mode)[1].sum(), q)
    assert torch.equal(dq, torch.zeros_like(q))


@pytest.mark.parametrize("mode", GLA_MODES)
def test_the_gradient_of_a_closing_gate_keeps_its_digits(mode: str, device: torch.device) -> None:
    """dg of a gate of -30 is e^-30 of what surrounds it: a difference of sums would be all noise.

    Every input is positive, so no term of dg cancels another, and each is a product of float32
    numbers: a few dozen roundings at most, over the 7 tokens and 11 value channels.
    """
    tokens, closing = 7, 4
    inputs = {name: x.detach().abs() for name, x in _inputs(device, tokens).items()}
    q, k, v = (inputs[name] + 0.5 for name in "qkv")
    g = torch.full_like(k, -0.125)
    g[:, closing] = -30.0
    g.requires_grad_()
    o, _ = gla(q, k, v, g, mode=mode)
    (got,) = torch.autograd.grad(o.sum(), g)

    exact = g.detach().cpu().double().requires_grad_()
    S, total = torch.zeros(B, H, K, V, dtype=torch.float64), 0.0
    for t in range(tokens):
        S = exact[:, t].exp()[..., None] * S
        S = S + k[:, t].cpu().double()[..., None] * v[:, t].cpu().double()[..., None, :]
        total = total + (q[:, t].cpu().double()[..., None] * S).sum()
    (want,) = torch.autograd.grad(total * K**-0.5, exact)
    relative = (got.cpu().double() / want - 1)[:, 1:].abs()
    # exp(-30) itself: its float32 argument times log2(e) is rounded before the power is taken.
    assert relative[:, closing - 1].max() <= 64 * 2**-24 + 45 * 2**-24
    assert relative.max() <= 109 * 2**-24


@pytest.mark.parametrize(("op", "mode"), [each for each in LINEAR if each[0] != "linear_attn"])
def test_small_gates_behind_large_ones_keep_their_digits(
    op: str, mode: str, device: torch.device
) -> None:
    """A suffix sum that is the total less a prefix has the rounding errors of the large gates.

    The error budgets of the laws grant that to a chunk form; these kernels do without it. Every
    input is positive, so that no term cancels another.
    """
    tokens, large = 13, 8
    inputs = {name: x.detach().abs() for name, x in _inputs(device, tokens).items()}
    k, v = (inputs[name] + 0.5 for name in "kv")
    g = -inputs["g"] / 16
    g[:, :large] -= 100.0
    if op == "simple_gla":
        g = g[..., 0]
    _, state = {"gla": gla, "simple_gla": simple_gla}[op](
        k, k, v, g, output_final_state=True, mode=mode
    )
    decays = g.cpu().double().exp().view(B, tokens, H, -1, 1)
    S = torch.zeros(B, H, K, V, dtype=torch.float64)
    for t in range(tokens):
        S = decays[:, t] * S + k[:, t, :, :, None].cpu().double() * v[:, t, :, None].cpu().double()
    # Five terms that count, and a decay of up to five gates, a product and a sum in each.
    assert (state.cpu().double() / S - 1).abs().max() <= 20 * 2**-24


def test_decays_that_are_the_same_at_every_token_do_not_add_up_their_errors(
    device: torch.device,
) -> None:
    """A decayed state is a product and a sum: one rounding a token and a half, and nothing of the
    decay, whose own rounding would be the same at every token."""
    tokens = 200
    g = torch.linspace(-0.499, -0.05, 16, device=device)
    x = torch.zeros(1, tokens, 16, V, device=device)
    generator = torch.Generator().manual_seed(0)
    initial = (1 + torch.rand(1, 16, V, V, generator=generator)) * 2.0**100
    _, state = simple_gla(
        x, x, x, g.expand(1, tokens, 16),
        initial_state=initial.to(device), output_final_state=True, mode="fused_recurrent",
    )  # fmt: skip
    want = (tokens * g.cpu().double()).exp()[:, None, None] * initial.double()
    assert (state.cpu().double() / want - 1).abs().max() <= 1.5 * tokens * 2**-24


@pytest.mark.parametrize(("op", "mode"), [each for each in LINEAR if each[1] != "fused_recurrent"])
def test_a_cotangent_in_float32_keeps_its_bits(op: str, mode: str, device: torch.device) -> None:
    """A normalized op in 16 bits divides a float32 output, and so the cotangent that comes back is
    float32 too: sums over channels and over queries are 257 - 256."""
    one = torch.ones(1, 2, 1, 16, dtype=torch.bfloat16, device=device)
    first = torch.arange(16, device=device) == 0
    q, k, v = one * first, one * first, one * (torch.arange(16, device=device) < 2)
    k[:, 1] = 0
    do = torch.zeros_like(one, dtype=torch.float32)
    do[0, :, 0, :2] = torch.tensor([[257, -256], [-256, 257]])
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    g = None
    if op != "linear_attn":
        g = torch.zeros_like(one if op == "gla" else one[..., 0])
    chosen = tiles.choose(op, mode, dim=16, dtype=one.dtype, device=one.device, tile=None)
    given = dict(zip("qkv", leaves, strict=True)) | {"g": g, "initial_state": None}
    settings = {"scale": 1.0, "output_final_state": True}
    settings |= {"out_dtype": torch.float32, "dtype": one.dtype}
    o, _ = REGISTERED[op, mode](**given, cu_seqlens=None, **settings, tile=chosen)
    dq, dk, dv = torch.autograd.grad(o, leaves, do)
    assert torch.equal(dq, q)
    assert torch.equal(dk, k + q)
    assert torch.equal(dv[:, 0], v[:, 0])


@pytest.mark.parametrize(("op", "mode"), [each for each in LINEAR if each[0] != "simple_gla"])
def test_a_normalized_output_is_rounded_once(op: str, mode: str, device: torch.device) -> None:
    """256 / 257, of which neither part is rounded; and 0 where weights cancel."""
    q = torch.zeros(1, 4, 1, 16, dtype=torch.bfloat16, device=device)
    k, v = q.clone(), q.clone()
    q[:, 1, 0, 0] = q[:, 3, 0, 1] = 1
    k[0, :, 0, 0], v[0, :, 0, 0] = torch.tensor([[256, 1, 0, 0], [1, 0, 3, 5]]).to(q)
    k[0, 2:, 0, 1] = torch.tensor([1, -1]).to(q)
    decays = {} if op == "linear_attn" else {"g": torch.zeros_like(q)}
    o, _ = getattr(kernels, op)(q, k, v, **decays, scale=1.0, normalize=True, mode=mode)
    assert o[0, :, 0, 0].tolist() == [0, 255 / 256, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "fused_chunk"}, r"mode: 'fused_chunk', expected 'auto', 'chunk' or 'fused_rec"),
        ({"mode": "chunk", "reverse": True}, r"reverse: given with mode 'chunk'"),
        ({"mode": "chunk", "gv": None}, None),
        ({"mode": "chunk", "gv": torch.zeros(B, T, H, V)}, r"gv: given with mode 'chunk'"),
        ({"initial_state": torch.zeros(B + 1, H, K, V)}, r"initial_state: .*\] = \[2"),
        (
            {"normalize": True, "initial_state": torch.zeros(B, H, K, V)},
            r"expected \[N, H, K, V\+normalize\]",
        ),
    ],
)
def test_what_a_mode_cannot_do_is_said(
    arguments: dict, message: str | None, device: torch.device
) -> None:
    q, k, v = (_inputs(device)[name] for name in "qkv")
    arguments = {n: a.to(device) if isinstance(a, Tensor) else a for n, a in arguments.items()}
    if message is None:
        gla(q, k, v, **arguments)
        return
    with pytest.raises(ValueError, match=message):
        gla(q, k, v, **arguments)
