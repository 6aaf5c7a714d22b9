"""The layer against its formula, and against itself in pieces."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import RecurrentCache
from kernels.layers import GatedLinearAttention

MODES = ["auto", "chunk", "fused_recurrent"]
# T, H, K, V and the batch all differ: a layer that mistakes one for another is wrong everywhere.
HIDDEN, HEADS, TOKENS, BATCH = 64, 4, 11, 2


def _layer(device: torch.device, **options: object) -> GatedLinearAttention:
    torch.manual_seed(0)
    return GatedLinearAttention(HIDDEN, HEADS, **options).to(device)


def _x(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, HIDDEN, generator=torch.Generator().manual_seed(1)).to(device)


def _formula(
    layer: GatedLinearAttention,
    x: Tensor,
    *,
    num_kv_heads: int = HEADS,
    expand_k: float = 0.5,
    gate_logit_normalizer: float = 16.0,
    use_output_gate: bool = True,
    norm_eps: float = 1e-5,
    **_: object,
) -> Tensor:
    """The equations of the layer's docstring in float64, for the options that it was made with."""
    w = {name: p.detach().cpu().double() for name, p in layer.named_parameters()}
    x = x.detach().cpu().double()
    shared, key_dim = HEADS // num_kv_heads, round(expand_k * HIDDEN) // HEADS

    def cut(y: Tensor, count: int) -> Tensor:
        return y.reshape(*y.shape[:2], count, -1)

    q = cut(x @ w["q_proj.weight"].T, HEADS)
    k, v, decay = (
        torch.stack([cut(y, num_kv_heads)[:, :, h // shared] for h in range(HEADS)], 2)
        for y in (
            x @ w["k_proj.weight"].T,
            x @ w["v_proj.weight"].T,
            x @ w["decay_proj.0.weight"].T @ w["decay_proj.1.weight"].T + w["decay_proj.1.bias"],
        )
    )
    alpha = torch.sigmoid(decay) ** (1 / gate_logit_normalizer)
    S = torch.zeros(x.shape[0], HEADS, key_dim, v.shape[-1], dtype=torch.float64)
    rows = []
    for t in range(x.shape[1]):
        S = alpha[:, t, :, :, None] * S + k[:, t, :, :, None] * v[:, t, :, None, :]
        rows.append((q[:, t, :, :, None] * S).sum(2) * key_dim**-0.5)
    o = torch.stack(rows, 1)
    o = o / (o.square().mean(-1, keepdim=True) + norm_eps).sqrt() * w["norm.weight"]
    o = o.flatten(2)
    if use_output_gate:
        o = F.silu(x @ w["gate_proj.weight"].T + w["gate_proj.bias"]) * o
    return o @ w["o_proj.weight"].T


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [
        {},  # K = 8: less than a tile of a matrix product
        {"expand_k": 1.0, "expand_v": 2.0, "use_output_gate": False},
        {"num_kv_heads": 2, "gate_logit_normalizer": 0.25, "gate_low_rank_dim": 3},
        {"num_kv_heads": 1, "norm_eps": 0.1},
    ],
)
def test_the_layer_is_its_formula(mode: str, options: dict, device: torch.device) -> None:
    layer = _layer(device, mode=mode, **options)
    with torch.no_grad():
        # One that is 1 everywhere would not be missed.
        layer.norm.weight += torch.linspace(-0.5, 0.5, len(layer.norm.weight), device=device)
    x = _x(device, BATCH, TOKENS)
    got = layer(x).cpu().double()
    # y is a sum of 64 to 128 products of factors near 1: some 1e-6 in float32.
    want = _formula(layer, x, **options)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prompt", [0, 1, 7])
def test_a_prompt_and_then_token_by_token_is_one_pass(
    mode: str, prompt: int, device: torch.device
) -> None:
    layer = _layer(device, mode=mode, layer_idx=1)
    x = _x(device, BATCH, TOKENS)
    cache = RecurrentCache(BATCH, layers=2)
    pieces = [layer(x[:, :prompt], cache=cache)]
    for t in range(prompt, TOKENS):
        assert cache.layer_length(1).tolist() == [t] * BATCH
        pieces.append(layer(x[:, t : t + 1], cache=cache))
    assert cache.layer_length(1).tolist() == [TOKENS] * BATCH
    assert cache.layer_length(0).tolist() == [0] * BATCH
    assert cache.state(1).shape == (BATCH, HEADS, HIDDEN // 2 // HEADS, HIDDEN // HEADS)
    torch.testing.assert_close(torch.cat(pieces, 1), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_packed_sequences_go_on_from_their_own_states(mode: str, device: torch.device) -> None:
    layer = _layer(device, mode=mode)
    lengths, later = (4, 0, 7), (0, 3, 2)
    apart = [_x(device, 1, a + b) for a, b in zip(lengths, later, strict=True)]
    cache = RecurrentCache(len(lengths))
    outputs = []
    for piece in ([x[:, :a] for x, a in zip(apart, lengths, strict=True)],
                  [x[:, a:] for x, a in zip(apart, lengths, strict=True)]):  # fmt: skip
        bounds = torch.tensor([0] + [x.shape[1] for x in piece]).cumsum(0).to(device)
        y = layer(torch.cat(piece, 1), cache=cache, cu_seqlens=bounds)
        outputs.append(y.split([x.shape[1] for x in piece], 1))
    assert cache.layer_length(0).tolist() == [4, 3, 9]
    for x, first, second in zip(apart, *outputs, strict=True):
        torch.testing.assert_close(torch.cat([first, second], 1), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_packed_sequences_are_kept_apart_without_a_cache(mode: str, device: torch.device) -> None:
    layer = _layer(device, mode=mode)
    x, lengths = _x(device, 1, TOKENS), (4, 0, 7)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(device)
    apart = torch.cat([layer(piece) for piece in x.split(lengths, 1)], 1)
    torch.testing.assert_close(layer(x, cu_seqlens=bounds), apart, rtol=1e-5, atol=1e-5)


def test_every_parameter_learns_also_through_the_cache(device: torch.device) -> None:
    layer = _layer(device)
    x = _x(device, BATCH, TOKENS)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    whole = torch.autograd.grad(layer(x).square().sum(), parameters)
    cache = RecurrentCache(BATCH)
    pieces = [layer(piece, cache=cache) for piece in x.split([5, TOKENS - 5], 1)]
    cut = torch.autograd.grad(torch.cat(pieces, 1).square().sum(), parameters)
    for name, a, b in zip(names, cut, whole, strict=True):
        assert b.abs().max() > 0, name
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_layers_run_and_keep_float32_states(
    dtype: torch.dtype, device: torch.device
) -> None:
    layer = _layer(device)
    x = _x(device, BATCH, TOKENS)
    want = layer(x)
    cache = RecurrentCache(BATCH)
    got = layer.to(dtype)(x.to(dtype), cache=cache)
    assert got.dtype == dtype
    assert cache.state().dtype == torch.float32
    # Weights, x and each of the four steps between them are rounded: 8 half units in the last
    # place, of outputs that the norm brings to about 1.
    bound = 8 * torch.finfo(dtype).eps * want.abs().max()
    assert (got.float() - want).abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_layers_decay_in_float32(dtype: torch.dtype, device: torch.device) -> None:
    layer = _layer(device, mode="fused_recurrent").to(dtype)
    x = _x(device, BATCH, TOKENS).to(dtype)
    cache = RecurrentCache(BATCH)
    layer(x, cache=cache)
    k, v, decay = (
        projection(x).double().unflatten(2, (HEADS, -1))
        for projection in (layer.k_proj, layer.v_proj, layer.decay_proj)
    )
    g = F.logsigmoid(decay) / layer.gate_logit_normalizer
    later = g.flip(1).cumsum(1).flip(1) - g
    want = torch.einsum("bthk,bthv->bhkv", later.exp() * k, v)
    # Three roundings of float32 a token: a decay, its product with the state, and a sum. Decays
    # rounded to `dtype` make it 1e-4 off.
    size = torch.einsum("bthk,bthv->bhkv", (later.exp() * k).abs(), v.abs())
    error = (cache.state().double() - want).abs()
    assert (error / size).max() <= 3 * TOKENS * 2**-24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expand_k": 0.3}, "expand_k: 0.3, expected"),
        ({"expand_v": 0.0}, "expand_v"),
        ({"num_kv_heads": 3}, "num_kv_heads: 3, expected a divisor of num_heads = 4"),
        ({"gate_logit_normalizer": 0.0}, "gate_logit_normalizer: 0.0"),
        ({"gate_logit_normalizer": float("inf")}, "gate_logit_normalizer: inf"),
        ({"norm_eps": 0.0}, "eps: 0.0"),
        ({"gate_low_rank_dim": 0}, "gate_low_rank_dim: 0"),
        ({"mode": "fused_chunk"}, "mode: 'fused_chunk'"),
        ({"hidden_size": 0}, "hidden_size: 0"),
        ({"num_heads": -1}, "num_heads: -1"),
        ({"num_kv_heads": 0}, "num_kv_heads: 0"),
        ({"gate_logit_normalizer": float("nan")}, "gate_logit_normalizer: nan"),
        ({"expand_k": float("inf")}, "expand_k: inf"),
        ({"expand_v": float("nan")}, "expand_v"),
        ({"expand_k": 17.0}, "expand_k.*: 272, expected 1 to 256"),
        ({"expand_v": 17.0}, "expand_v.*: 272, expected 1 to 256"),
    ],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatedLinearAttention(**{"hidden_size": HIDDEN, "num_heads": HEADS, **options})


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, r"x: float32\[2, 5, 63\], expected \[B, T, h", {"x": torch.zeros(2, 5, 63)}),
        (ValueError, r"x: float32\[5, 64\]", {"x": torch.zeros(5, HIDDEN)}),
        (ValueError, "x: None", {"x": None}),
        (ValueError, "cache: of 3 sequences, expected N=2", {"cache": RecurrentCache(3)}),
        (ValueError, r"layer: 0, expected|layer: 1, expected", {"layer_idx": 1}),
        (TypeError, r"cu_seqlens: \[0, 3, 5\]", {"cu_seqlens": [0, 3, 5]}),
        (TypeError, "cu_seqlens: float32", {"cu_seqlens": torch.tensor([0.0, 3.0, 5.0])}),
        (ValueError, r"cu_seqlens: int64\[\]", {"cu_seqlens": torch.tensor(5)}),
        (
            ValueError,
            "cu_seqlens: given with batch size 2",
            {"cu_seqlens": torch.tensor([0, 2, 5])},
        ),
        (
            ValueError,
            "cu_seqlens: ends at 4",
            {"x": torch.zeros(1, 5, HIDDEN), "cu_seqlens": torch.tensor([0, 2, 4])},
        ),
    ],
)
def test_bad_inputs_are_refused_and_leave_the_cache_as_it_is(
    error: type[Exception], message: str, call: dict, device: torch.device
) -> None:
    call = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in call.items()}
    layer = _layer(device, layer_idx=call.pop("layer_idx", 0))
    cache = call.pop("cache", RecurrentCache(2))
    x = call.pop("x", _x(device, 2, 5))
    before = torch.ones(cache.batch, HEADS, layer.key_dim, layer.value_dim, device=device)
    cache.update(before, offset=7)
    with pytest.raises(error, match=message):
        layer(x, cache=cache, **call)
    assert cache.state() is before
    assert cache.length.tolist() == [7] * cache.batch
