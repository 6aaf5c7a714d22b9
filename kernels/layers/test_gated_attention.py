"""The layer against itself in pieces, with every cache, and in every dtype.

`properties/suite/layers` compares it with its formula.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import ContiguousCache, KVCache, PagedCache, SlidingWindowCache
from kernels.layers import GatedAttention
from kernels.layers.gated_attention import ZeroCentredRMSNorm

# T, H, G, K and the batch all differ: a layer that mistakes one for another is wrong everywhere.
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TOKENS, BATCH = 20, 4, 2, 8, 11, 3
CACHES = ["contiguous", "paged", "sliding"]


def _layer(device: torch.device, **options: Any) -> GatedAttention:
    torch.manual_seed(0)
    layer = GatedAttention(
        HIDDEN,
        HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        partial_rotary_factor=0.5,
        **options,
    )
    for norm in (layer.q_norm, layer.k_norm):
        torch.nn.init.normal_(norm.weight)
    return layer.to(device)


def _x(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, HIDDEN, generator=torch.Generator().manual_seed(1)).to(device)


def _cache(kind: str, device: torch.device, dtype: torch.dtype = torch.float32) -> KVCache:
    if kind == "paged":
        return PagedCache(
            BATCH, 9, 4, KV_HEADS, HEAD_DIM, HEAD_DIM, dtype=dtype, device=device
        )  # fmt: skip
    one = ContiguousCache if kind == "contiguous" else SlidingWindowCache
    room = TOKENS if kind == "contiguous" else 3
    return one(BATCH, room, KV_HEADS, HEAD_DIM, HEAD_DIM, dtype=dtype, device=device)


@pytest.mark.parametrize("prompt", [0, 1, 7])
@pytest.mark.parametrize(
    ("kind", "window"), [("contiguous", None), ("paged", None), *((kind, 3) for kind in CACHES)]
)
def test_a_prompt_and_then_token_by_token_is_one_pass(
    kind: str, window: int | None, prompt: int, device: torch.device
) -> None:
    layer = _layer(device, window=window)
    x, cache = _x(device, BATCH, TOKENS), _cache(kind, device)
    with torch.no_grad():
        pieces = [layer(x[:, :prompt], cache=cache)]
        for t in range(prompt, TOKENS):
            assert cache.length.tolist() == [t] * BATCH
            pieces.append(layer(x[:, t : t + 1], cache=cache))
        assert cache.length.tolist() == [TOKENS] * BATCH
        torch.testing.assert_close(torch.cat(pieces, 1), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_padding_rows_are_the_bias_of_the_last_projection(bias: bool, device: torch.device) -> None:
    layer = _layer(device, bias=bias)
    x, cache = _x(device, BATCH, 2), _cache("contiguous", device)
    with torch.no_grad():
        y = layer(x, cache=cache, offset=torch.tensor([1, 0, 2]))
    want = layer.o_proj.bias if bias else torch.zeros(HIDDEN, device=device)
    assert want is not None
    torch.testing.assert_close(y[0, 1], want)
    torch.testing.assert_close(y[1], want.expand(2, -1))


@pytest.mark.parametrize("kind", CACHES)
def test_prompts_of_several_lengths_go_on_from_their_own_positions(
    kind: str, device: torch.device
) -> None:
    layer = _layer(device, window=3 if kind == "sliding" else None)
    x, cache = _x(device, BATCH, TOKENS), _cache(kind, device)
    lengths = torch.tensor([5, 0, 3])
    with torch.no_grad():
        first = layer(x[:, :5], cache=cache, offset=lengths)
        later = torch.stack([x[n, length : length + 4] for n, length in enumerate(lengths)])
        second = layer(later, cache=cache)
        for n, length in enumerate(lengths.tolist()):
            whole = layer(x[n : n + 1, : length + 4])[0]
            got = torch.cat([first[n, :length], second[n]])
            torch.testing.assert_close(got, whole, rtol=1e-5, atol=1e-5)
            assert not first[n, length:].any()


def test_packed_sequences_are_kept_apart(device: torch.device) -> None:
    layer, lengths = _layer(device), (4, 0, 7)
    x = _x(device, 1, TOKENS)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(device)
    apart = torch.cat([layer(piece) for piece in x.split(lengths, 1)], 1)
    torch.testing.assert_close(layer(x, cu_seqlens=bounds), apart, rtol=1e-5, atol=1e-5)


def test_every_parameter_learns(device: torch.device) -> None:
    layer = _layer(device, bias=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    found = torch.autograd.grad(layer(_x(device, BATCH, TOKENS)).square().sum(), parameters)
    for name, gradient in zip(names, found, strict=True):
        assert gradient.abs().max() > 0, name


def test_weights_are_named_as_in_checkpoints_and_load(device: torch.device) -> None:
    layer, other = _layer(device), _layer(device)
    shapes = {name: [*x.shape] for name, x in layer.state_dict().items()}
    assert shapes == {
        "q_proj.weight": [2 * HEADS * HEAD_DIM, HIDDEN],
        "k_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
        "v_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
        "o_proj.weight": [HIDDEN, HEADS * HEAD_DIM],
        "q_norm.weight": [HEAD_DIM],
        "k_norm.weight": [HEAD_DIM],
    }
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(-0.5)
    x = _x(device, BATCH, TOKENS)
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))


def test_norms_start_as_the_identity(device: torch.device) -> None:
    layer = GatedAttention(32, 4).to(device)
    u = torch.tensor([3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], device=device)
    want = u / (25 / 8) ** 0.5
    torch.testing.assert_close(layer.q_norm(u), want)
    assert not layer.k_norm.weight.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [None, "contiguous"])
def test_half_precision_layers_run(
    kind: str | None, dtype: torch.dtype, device: torch.device
) -> None:
    layer, x = _layer(device), _x(device, BATCH, TOKENS)
    with torch.no_grad():
        want = layer(x)
        cache = None if kind is None else _cache(kind, device, dtype)
        got = layer.to(dtype)(x.to(dtype), cache=cache)
    assert got.dtype == dtype
    # Weights, x and each of the six steps between them are rounded, and a logit of up to 8 by its
    # own size: 16 half units in the last place.
    bound = 16 * torch.finfo(dtype).eps * want.abs().max()
    assert (got.float() - want).abs().max() <= bound


def test_autocast_computes_in_its_dtype(device: torch.device) -> None:
    layer, x = _layer(device), _x(device, BATCH, TOKENS)
    with torch.autocast(device.type, torch.bfloat16):
        got = layer(x)
    assert got.dtype == torch.bfloat16
    want = layer(x)
    assert (got.float() - want).abs().max() <= 16 * 2**-7 * want.abs().max()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 0}, "hidden_size: 0"),
        ({"num_heads": -1}, "num_heads: -1"),
        ({"num_kv_heads": 0}, "num_kv_heads: 0"),
        ({"num_kv_heads": 3}, "num_kv_heads: 3, expected a divisor of num_heads = 4"),
        ({"hidden_size": 33}, "hidden_size: 33, expected a multiple of num_heads = 4"),
        ({"head_dim": 257}, "head_dim: 257"),
        ({"partial_rotary_factor": 0.3}, "partial_rotary_factor: 0.3, expected an even number"),
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor: 0.0"),
        ({"partial_rotary_factor": 1.25}, "partial_rotary_factor: 1.25"),
        ({"partial_rotary_factor": float("nan")}, "partial_rotary_factor: nan"),
        ({"window": 0}, "window: 0"),
        ({"norm_eps": 0.0}, "eps: 0.0"),
    ],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatedAttention(**{"hidden_size": 32, "num_heads": 4, **options})


@pytest.mark.parametrize("size", ["hidden_size", "num_heads", "num_kv_heads", "head_dim", "window"])
def test_sizes_that_are_no_int_are_refused(size: str) -> None:
    with pytest.raises(TypeError, match=rf"{size}: 4.0 \(float\), expected an int"):
        GatedAttention(**{"hidden_size": 32, "num_heads": 4, size: 4.0})


def test_a_part_of_a_head_may_be_said_as_a_fraction() -> None:
    """0.14 · 100 is 14.000000000000002 in floating point."""
    assert GatedAttention(100, 1, partial_rotary_factor=0.14).rotary.rotary_dim == 14


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, r"x: float32\[3, 5, 21\], expected \[B, T, h", {"x": torch.zeros(3, 5, 21)}),
        (ValueError, r"x: float32\[5, 20\]", {"x": torch.zeros(5, HIDDEN)}),
        (ValueError, "x: None", {"x": None}),
        (ValueError, "cache: of 3 sequences, expected B=2", {"x": torch.zeros(2, 5, HIDDEN)}),
        (ValueError, "offset: 6, expected at most the T=5", {"offset": 6}),
        (TypeError, "offset: 1.5", {"offset": 1.5}),
        (ValueError, "cu_seqlens: given beside a cache", {"cu_seqlens": torch.tensor([0, 5])}),
        (ValueError, "offset: given without a cache", {"cache": None, "offset": 2}),
        (ValueError, "offset: 5 tokens after the 7", {}),
        (TypeError, "k: bfloat16", {"x": torch.zeros(3, 2, HIDDEN, dtype=torch.bfloat16)}),
    ],
)
def test_bad_inputs_are_refused_and_leave_the_cache_as_it_is(
    error: type[Exception], message: str, call: dict, device: torch.device
) -> None:
    call = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in call.items()}
    layer, cache = _layer(device), _cache("contiguous", device)
    x = call.pop("x", _x(device, BATCH, 5))
    if isinstance(x, Tensor):
        layer = layer.to(x.dtype)
    with torch.no_grad():
        cache.update(*torch.ones(2, BATCH, 7, KV_HEADS, HEAD_DIM, device=device))
        before = cache.k_pages[:, :7].clone()
        with pytest.raises(error, match=message):
            layer(x, **{"cache": cache, **call})
    assert torch.equal(cache.k_pages[:, :7], before)
    assert cache.length.tolist() == [7] * BATCH


def test_a_cache_refuses_a_graph(device: torch.device) -> None:
    with pytest.raises(ValueError, match="k: requires grad"):
        _layer(device)(_x(device, BATCH, 2), cache=_cache("contiguous", device))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_norm_is_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    """A w of 2^-11 is lost if it is added to 1 in bfloat16, and half of it in float16."""
    norm = ZeroCentredRMSNorm(64).to(dtype)
    torch.nn.init.constant_(norm.weight, 1.4 * 2.0**-11)
    x = torch.randn(500, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    wide, weight = x.double(), norm.weight.double()
    want = (1 + weight) * wide / (wide.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    # All but a few that float32 puts on the other side of a tie.
    assert (norm(x) == want.to(dtype)).double().mean() > 0.99
