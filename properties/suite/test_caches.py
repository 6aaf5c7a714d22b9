"""Caches in any order of calls, each compared with a full recomputation from lists of tokens."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import seed, settings
from torch import Tensor

import kernels
import reference
from kernels.cache import (
    ContiguousCache,
    CrossAttentionCache,
    KVCache,
    LatentCache,
    PagedCache,
    QuantizedCache,
    RecurrentCache,
    SlidingWindowCache,
    StreamingCache,
    pages,
)
from properties import simulator
from properties.suite.caches.calls import check_refusal
from properties.suite.caches.cross import CrossAttentionMachine
from properties.suite.caches.decoding import DecodingMachine
from properties.suite.caches.kinds import (
    ContiguousMachine,
    PagedMachine,
    QuantizedMachine,
    SlidingMachine,
)
from properties.suite.caches.latent import LatentMachine
from properties.suite.caches.machine import run, variant
from properties.suite.caches.recurrent import RecurrentMachine
from properties.suite.caches.streaming import StreamingMachine


@pytest.fixture
def unknown_lanes(device: torch.device) -> Iterator[None]:
    """Fill masked lanes of loads, which Triton leaves undefined, with NaN."""
    installed = simulator.installed()
    with simulator.simulating(unmasked=math.nan) if installed else nullcontext():
        yield


# One test for each, so that a change of one cache reaches no other's.
def test_a_contiguous_cache_in_any_order_of_calls(device: torch.device) -> None:
    _in_any_order(ContiguousMachine, device)


def test_a_sliding_cache_in_any_order_of_calls(device: torch.device) -> None:
    _in_any_order(SlidingMachine, device)


def test_a_paged_cache_in_any_order_of_calls(device: torch.device) -> None:
    _in_any_order(PagedMachine, device)


def test_a_quantized_cache_in_any_order_of_calls(device: torch.device) -> None:
    _in_any_order(QuantizedMachine, device)


def test_a_cache_of_latents_in_any_order_of_calls(device: torch.device) -> None:
    _in_any_order(LatentMachine, device)


def test_the_cache_of_an_encoder_in_any_order_of_calls(device: torch.device) -> None:
    _in_any_order(CrossAttentionMachine, device)


def test_a_cache_of_a_stream_in_any_order_of_calls(device: torch.device) -> None:
    _in_any_order(StreamingMachine, device)


def test_decoding_in_any_order_of_calls(device: torch.device) -> None:
    _in_any_order(DecodingMachine, device)


def test_a_recurrent_cache_in_any_order_of_calls(device: torch.device) -> None:
    _in_any_order(RecurrentMachine, device)


def _in_any_order(machine: type[Any], device: torch.device) -> None:
    watched = variant(machine, device)
    run(watched)
    if settings().derandomize:
        # One run may miss a state that few of the examples reach.
        for again in range(3):
            if not machine.reaches <= watched.reached:
                run(seed(again)(watched))
        assert machine.reaches <= watched.reached


@pytest.mark.usefixtures("unknown_lanes")
@pytest.mark.parametrize("dims", [(3, 5), (130, 3), (1, 256)], ids=str)
@pytest.mark.parametrize("kind", ["contiguous", "sliding", "paged"])
def test_chunks_longer_than_a_tile_match_the_list_of_tokens(
    kind: str, dims: tuple[int, int], device: torch.device
) -> None:
    """A program copies at most 64 tokens, or 16 of 256 wide heads."""
    window = 70 if kind == "sliding" else None
    caches: dict[str, Callable[[], KVCache]] = {
        "contiguous": lambda: ContiguousCache(2, 300, 2, *dims, device=device),
        "sliding": lambda: SlidingWindowCache(2, 70, 2, *dims, device=device),
        "paged": lambda: PagedCache(2, 100, 7, 2, *dims, device=device),
    }
    cache, model = caches[kind](), reference.KVCache(2, window)
    for chunk, counts in enumerate([(63, 64), (1, 0), (141, 65), (17, 128)]):
        generator = torch.Generator().manual_seed(chunk)
        tokens = max(counts)
        k, v = (
            torch.randint(-256, 257, (2, tokens, 2, d), generator=generator).float().to(device)
            for d in dims
        )
        offset = torch.tensor(counts)
        for got, want in zip(cache.update(k, v, offset), model.update(k, v, offset), strict=True):
            assert torch.equal(got, want.to(got.dtype))


def test_heads_may_be_wider_than_a_tile(device: torch.device) -> None:
    cache, model = ContiguousCache(1, 3, 1, 4100, 1, device=device), reference.KVCache(1)
    k = torch.arange(2 * 4100.0, device=device).view(1, 2, 1, 4100)
    v = torch.tensor([3.0, 4.0], device=device).view(1, 2, 1, 1)
    for got, want in zip(cache.update(k, v), model.update(k, v), strict=True):
        assert torch.equal(got, want.to(got.dtype))


def test_a_gather_of_the_first_tokens_ends_where_the_next_sequence_starts(
    device: torch.device,
) -> None:
    k_pages = torch.arange(8.0, device=device).view(2, 4, 1, 1)
    nothing = k_pages.new_empty(2, 0, 1, 1)
    table, first, length = (torch.tensor(x, device=device) for x in ([[0], [1]], [0, 1], [4, 4]))
    bounds = torch.tensor([0, 2, 5], dtype=torch.int32, device=device)
    k, v = pages.gather(
        nothing, nothing, k_pages, -k_pages, table.int(), first, length, bounds, 5, 3, False
    )
    assert k.flatten().tolist() == [0, 1, 5, 6, 7]
    assert torch.equal(v, -k)


@pytest.mark.parametrize(
    "kind",
    [
        lambda **where: ContiguousCache(2, 5, 1, 3, 4, **where),
        lambda **where: SlidingWindowCache(2, 5, 1, 3, 4, **where),
        lambda **where: PagedCache(2, 5, 2, 1, 3, 4, **where),
    ],
    ids=["contiguous", "sliding", "paged"],
)
def test_a_cache_works_on_the_device_of_its_tokens(kind: Callable[..., KVCache]) -> None:
    """On the meta device, which like a GPU mixes with no other."""
    cache = kind(device="meta")
    q, k, v = (torch.zeros(2, 3, heads, d, device="meta") for heads, d in ((2, 3), (1, 3), (1, 4)))
    o, lse = cache.attend(q, k, v, offset=torch.tensor([1, 2]), return_lse=True)
    assert lse is not None
    view = cache.update(k[:, :1], v[:, :1])
    cache.reorder(torch.tensor([1, 0, 1]))
    assert {x.device.type for x in (o, lse, *view, cache.k_pages, cache.length)} == {"meta"}
    assert o.shape == (2, 3, 2, 4)
    assert lse.shape == (2, 2, 3)


@pytest.mark.parametrize("bits", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("block", [1, 3])
def test_a_quantized_cache_works_on_the_device_of_its_tokens(bits: torch.dtype, block: int) -> None:
    cache = QuantizedCache(2, 5, 2, 1, 3, 4, bits=bits, block=block, device="meta")
    q, k, v = (torch.zeros(2, 3, heads, d, device="meta") for heads, d in ((2, 3), (1, 3), (1, 4)))
    view = cache.update(k, v, torch.tensor([1, 2]))
    o, _ = cache.attend(q, k, v)
    assert {x.device.type for x in (o, *view, cache.k_scale, cache.v_scale)} == {"meta"}
    assert o.shape == (2, 3, 2, 4)


def test_caches_of_streams_and_encoders_work_on_the_device_of_their_tokens() -> None:
    q, k, v = (torch.zeros(2, 3, heads, 4, device="meta") for heads in (2, 1, 1))
    stream = StreamingCache(2, 1, 2, 1, 4, 4, device="meta")
    o = stream.attend(q, k, v, *torch.zeros(2, 3, 2, device="meta"), offset=torch.tensor([1, 2]))
    encoder = CrossAttentionCache(2, 5, 2, 1, 4, 4, device="meta")
    encoder.update(k, v)
    seen, _ = encoder.attend(q, offset=torch.tensor([1, 2]))
    assert o.device.type == seen.device.type == "meta"
    assert o.shape == seen.shape == q.shape


def test_the_naive_form_of_latents_has_the_gradients_of_mla(device: torch.device) -> None:
    shapes = (1, 2, 3, 5), (1, 2, 3, 4), (1, 2, 1, 6), (1, 2, 1, 4), (3, 5, 6), (3, 7, 6)
    q_n, q_r, c, k_r, w_uk, w_uv = (
        torch.randn(shape, generator=torch.manual_seed(n)).to(device)
        for n, shape in enumerate(shapes)
    )
    learnt = [x.requires_grad_() for x in (q_n, q_r, w_uk, w_uv)]
    cache = LatentCache(1, 3, 2, 6, 4, device=device)
    cache.update(c, k_r)
    o, _ = cache.attend(q_n, q_r, c, k_r, w_uk, w_uv, absorbed=False)
    latents, keys = (torch.cat([x, x], 1)[:, :, 0] for x in (c, k_r))
    want, _ = kernels.mla(q_n, q_r, latents, keys, w_uk, w_uv, causal=True)
    assert torch.equal(o, want)
    both = zip(*(torch.autograd.grad(x.sum(), learnt) for x in (o, want)), strict=True)
    assert all(torch.equal(got, expected) for got, expected in both)


@pytest.mark.parametrize("kind", ["quantized", "latent"])
def test_caches_that_read_pages_alone_refuse_gradients(kind: str, device: torch.device) -> None:
    q, k, v = (torch.ones(1, 1, 1, d, device=device) for d in (5, 5, 5))
    q.requires_grad_()
    if kind == "quantized":
        o, _ = QuantizedCache(1, 3, 2, 1, 5, 5, device=device).attend(q, k, v)
    else:
        w = torch.ones(1, 5, 5, device=device)
        o, _ = LatentCache(1, 3, 2, 5, 5, device=device).attend(q, q, k, v, w, w)
    with pytest.raises(NotImplementedError, match="gradients"):
        o.sum().backward()


def test_latents_and_rotary_keys_lie_in_one_memory(device: torch.device) -> None:
    cache = LatentCache(1, 2, 2, 3, 2, device=device)
    c, k_r = (torch.arange(1.0, d + 1, device=device).view(1, 1, 1, d) for d in (3, 2))
    cache.update(c, 10 * k_r)
    page = int(cache.block_table[0, 0])
    assert cache.pool[page, 0, 0].tolist() == [1, 2, 3, 10, 20]


def test_a_latent_cache_allocates_its_pool_once() -> None:
    allocated: list[int] = []

    def empty(*sizes: int, **storage: Any) -> Tensor:
        allocated.append(math.prod(sizes))
        return torch.zeros(*sizes, **storage)

    with patch("torch.empty", empty):
        cache = LatentCache(1, 5, 4, 48, 16)
    assert sum(allocated) < 1.1 * cache.pool.numel()


def test_a_stream_cropped_to_its_sinks_has_forgotten_nothing(device: torch.device) -> None:
    x = torch.ones(1, 8, 1, 2, device=device)
    table = torch.ones(4, 1, device=device)
    cache = StreamingCache(1, 1, 3, 1, 2, 2, device=device)
    cache.attend(x, x, x, table, table)
    cache.crop(1)
    cache.attend(x[:, :3], x[:, :3], x[:, :3], table, table)
    cache.crop(2)
    assert cache.length.tolist() == [2]


def test_beams_of_an_encoder_need_no_more_pages(device: torch.device) -> None:
    cache = CrossAttentionCache(1, 2, 2, 1, 3, 3, device=device)
    x = torch.arange(9.0, device=device).view(1, 3, 1, 3)
    cache.update(x, x)
    one, _ = cache.attend(x)
    cache.reorder(torch.tensor([0, 0, 0]))
    assert cache.free_pages == 0
    o, _ = cache.attend(x.expand(3, 3, 1, 3))
    assert torch.equal(o, one.expand(3, 3, 1, 3))


@pytest.mark.parametrize("trained", ["q", "sink"])
@pytest.mark.parametrize(
    "cache",
    [
        pytest.param(partial(ContiguousCache, 1, 4, 1, 4, 4), id="contiguous"),
        pytest.param(partial(SlidingWindowCache, 1, 4, 1, 4, 4), id="sliding"),
        pytest.param(partial(PagedCache, 1, 2, 2, 1, 4, 4), id="paged"),
    ],
)
def test_what_alone_is_trained_has_its_gradient(
    cache: Callable[..., KVCache], trained: str, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(0)
    k, v, q = (torch.randn(1, 3, heads, 4, generator=generator).to(device) for heads in (1, 1, 2))
    given = {"q": q, "sink": torch.tensor([0.5, -0.5], device=device)}
    given[trained].requires_grad_()
    o, _ = cache(device=device).attend(given["q"], k, v, sink=given["sink"])
    want, _ = reference.attention(given["q"], k, v, causal=True, sink=given["sink"])
    (found,), (expected,) = (torch.autograd.grad(x.sum(), given[trained]) for x in (o, want))
    torch.testing.assert_close(found, expected)


_PAGED = partial(PagedCache, 1, 2, 2, 1, 4, 4)
_CONTIGUOUS = partial(ContiguousCache, 1, 4, 1, 4, 4)
_SLIDING = partial(SlidingWindowCache, 1, 4, 1, 4, 4)


@pytest.mark.parametrize(
    ("cache", "chosen"),
    [
        *((_PAGED, chosen) for chosen in ({"num_splits": 2}, {"mode": "fused"}, {"tile": 1})),
        *((_CONTIGUOUS, chosen) for chosen in ({"mode": "parallel"}, {"tile": 5})),
        *((_SLIDING, chosen) for chosen in ({"mode": "parallel"}, {"tile": 5})),
    ],
)
def test_a_choice_of_kernel_keeps_no_call_from_having_gradients(
    cache: Callable[..., KVCache], chosen: dict[str, Any], device: torch.device
) -> None:
    k, v, q = torch.randn(3, 1, 3, 1, 4, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        cache(device=device).attend(q, k, v, **chosen)
    q.requires_grad_()
    o, _ = cache(device=device).attend(q, k, v, **chosen)
    want, _ = reference.attention(q, k, v, causal=True)
    (found,), (expected,) = (torch.autograd.grad(x.sum(), q) for x in (o, want))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(
    ("cache", "chosen"),
    [
        *((_PAGED, chosen) for chosen in ({"num_splits": 0}, {"mode": "parallel"}, {"tile": -1})),
        *((_CONTIGUOUS, chosen) for chosen in ({"mode": "fused"}, {"tile": -1})),
        *((_SLIDING, chosen) for chosen in ({"mode": "fused"}, {"tile": -1})),
    ],
)
def test_a_kernel_that_a_cache_has_not_is_refused(
    cache: Callable[..., KVCache], chosen: dict[str, Any], trains: bool, device: torch.device
) -> None:
    k, v, q = torch.randn(3, 1, 3, 1, 4).to(device)
    q.requires_grad_(trains)
    held = cache(device=device)
    check_refusal(next(iter(chosen)), lambda: held.attend(q, k, v, **chosen))
    assert held.length.tolist() == [0]


def test_caches_that_begin_empty_say_so() -> None:
    for kind in (QuantizedCache, LatentCache):
        with pytest.raises(NotImplementedError, match="begins empty"):
            kind.from_pages()


def test_an_encoder_of_existing_pages_is_written(device: torch.device) -> None:
    given = {name: x.to(device) for name, x in pool().items()}
    given["v_pages"] = given["v_pages"] + 7
    cache = CrossAttentionCache.from_pages(**given)
    o, _ = cache.attend(torch.zeros(2, 1, 1, 5, device=device))
    assert (o == 7).all()
    k, v = torch.zeros(2, 1, 1, 5, device=device), torch.zeros(2, 1, 1, 7, device=device)
    check_refusal("k", lambda: cache.update(k, v))


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("bits", {"bits": torch.int16}),
        ("dtype", {"dtype": torch.float64}),
        ("block", {"block": 0}),
        ("num_pages", {"num_pages": 0}),
        ("k_scale, v_scale", {"k_scale": 1.0}),
        *(
            (name, {"k_scale": 1.0, "v_scale": 1.0, name: wrong})
            for name in ("k_scale", "v_scale")
            for wrong in (math.nan, math.inf, -1.0, 1e39, True, "1", torch.tensor(1.0))
        ),
    ],
)
def test_a_wrong_quantized_cache_is_refused(argument: str, wrong: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"batch": 1, "num_pages": 1, "page_size": 1}
    sizes |= {"kv_heads": 1, "key_dim": 1, "value_dim": 1}
    QuantizedCache(**sizes)
    check_refusal(argument, lambda: QuantizedCache(**(sizes | wrong)))


def test_the_length_of_a_layer_is_on_the_device_of_its_state() -> None:
    cache = RecurrentCache(2)
    cache.update(torch.zeros(2, 1, 3, 4, device="meta"), offset=1)
    assert cache.layer_length(0).device.type == "meta"


@pytest.mark.parametrize(("window", "length"), [(1, 3), (1, 0), (3, 0)])
def test_a_crop_that_needs_no_key_is_a_new_start(
    window: int, length: int, device: torch.device
) -> None:
    cache, model = (
        SlidingWindowCache(1, window, 1, 1, 1, device=device),
        reference.KVCache(1, window),
    )
    x = torch.arange(6.0, device=device).view(1, 6, 1, 1)
    for each in (cache, model):
        each.update(x, x)
        each.crop(length)
    assert cache.length.tolist() == model.length.tolist() == [length]
    got, want = (each.update(x[:, :2], x[:, :2]) for each in (cache, model))
    assert torch.equal(got.k, want.k)
    assert torch.equal(got.k, x[:, :2].flatten(0, 1)[None])


def test_appending_nothing_does_not_allow_another_crop(device: torch.device) -> None:
    """A window cropped by the one token that it allows cannot be cropped again."""
    cache = SlidingWindowCache(1, 2, 1, 1, 1, device=device)
    x = torch.arange(5.0, device=device).view(1, 5, 1, 1)
    cache.update(x, x)
    cache.crop(4)
    cache.update(x[:, :0], x[:, :0])
    check_refusal("length", lambda: cache.crop(3))


@pytest.mark.parametrize(
    ("counts", "copies"), [([0, 0, 0], 0), ([0, 0, 1], 1), ([0, 1, 1], 2), ([1, 1, 1], 2)], ids=str
)
def test_writers_of_a_shared_page_copy_it_except_the_last_holder(
    counts: list[int], copies: int, device: torch.device
) -> None:
    """The pool has no more pages than that."""
    cache, model = PagedCache(1, 1 + copies, 2, 1, 1, 1, device=device), reference.KVCache(1)
    x = torch.arange(4.0, device=device).view(4, 1, 1, 1)
    for each in (cache, model):
        each.update(x[:1], x[:1])
        each.reorder(torch.tensor([0, 0, 0]))
    offset = torch.tensor(counts)
    got, want = (each.update(x[1:], x[1:], offset) for each in (cache, model))
    assert torch.equal(got.k, want.k)
    assert cache.free_pages == 0


def test_pages_of_any_size_are_addressed_in_64_bits(device: torch.device) -> None:
    """The last page starts 2^31 elements into its tensor."""
    if device.type == "cpu" and os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 2**34:
        pytest.skip("few pages are touched, but a machine of less than 16 GB may refuse the memory")
    memory = torch.empty(2**31 + 8, dtype=torch.float16, device=device)
    k_pages = memory.as_strided((3, 2, 1, 2), (2**30, 4, 2, 1))
    v_pages = torch.zeros(3, 2, 1, 3, dtype=torch.float16, device=device)
    table = torch.tensor([[2]])
    cache = PagedCache.from_pages(k_pages, v_pages, table, torch.tensor([0]))
    k = torch.tensor([[[[1.0, 2.0]]]], dtype=torch.float16, device=device)
    v = torch.tensor([[[[3.0, 4.0, 5.0]]]], dtype=torch.float16, device=device)
    cache.update(k, v)
    assert memory[2**31 : 2**31 + 2].tolist() == [1, 2]
    view = cache.update(2 * k, 2 * v)
    assert view.k.tolist() == [[[[1, 2]], [[2, 4]]]]
    assert view.v.tolist() == [[[[3, 4, 5]], [[6, 8, 10]]]]


def pool(**changes: Any) -> dict[str, Tensor]:
    """Arguments for `PagedCache.from_pages`: 3 pages of 2 tokens for 2 sequences."""
    return {
        "k_pages": torch.zeros(3, 2, 1, 5),
        "v_pages": torch.zeros(3, 2, 1, 7),
        "block_table": torch.tensor([[2, 0], [1, -1]]),
        "length": torch.tensor([3, 2]),
        **changes,
    }


def test_a_cache_continues_from_existing_pages(device: torch.device) -> None:
    given = {name: x.to(device) for name, x in pool().items()}
    given["k_pages"] += torch.arange(3, device=device)[:, None, None, None]
    cache = PagedCache.from_pages(**given)
    zero = (torch.zeros(2, 0, 1, 5, device=device), torch.zeros(2, 0, 1, 7, device=device))
    view = cache.update(*zero)
    assert view.k[0, :, 0, 0].tolist() == [2, 2, 0, 1, 1]
    assert view.cu_seqlens_k.tolist() == [0, 3, 5]
    assert cache.free_pages == 0


def test_a_crop_frees_the_pages_past_it_and_leaves_a_shorter_sequence_its_reserved_ones() -> None:
    cache = PagedCache.from_pages(
        torch.zeros(4, 2, 1, 5),
        torch.zeros(4, 2, 1, 7),
        torch.tensor([[2, 0], [1, 3]]),
        torch.tensor([3, 2]),
    )
    cache.crop(2)
    assert cache.block_table.tolist() == [[2, -1], [1, 3]]
    assert cache.free_pages == 1


def test_a_crop_within_the_last_page_frees_the_reserved_ones() -> None:
    pages = torch.zeros(6, 4, 1, 5)
    cache = PagedCache.from_pages(pages, pages + 0, torch.tensor([[0, 1, 2, 3]]), torch.tensor([7]))
    cache.crop(6)
    assert [page for page in cache.block_table.flatten().tolist() if page >= 0] == [0, 1]
    assert cache.free_pages == 4


def test_the_block_table_is_a_copy() -> None:
    cache = PagedCache.from_pages(**pool())
    cache.block_table.zero_()
    assert cache.block_table.tolist() == [[2, 0], [1, -1]]


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("block_table", torch.tensor([[3, 0], [1, -1]])),
        ("block_table", torch.tensor([[-2, 0], [1, -1]])),
        ("block_table", torch.tensor([[2, 2], [1, -1]])),
        ("block_table", torch.tensor([[-1, 2], [1, -1]])),
        ("block_table", torch.tensor([2, 1])),
        ("block_table", torch.tensor([[2.0, 0.0], [1.0, -1.0]])),
        ("length", torch.tensor([3, 3])),
        ("length", torch.tensor([-1, 2])),
        ("length", torch.tensor([3, 2, 1])),
        ("v_pages", torch.zeros(3, 4, 1, 7)),
        ("v_pages", torch.zeros(4, 2, 1, 7)),
        ("v_pages", torch.zeros(3, 2, 1, 7).half()),
        ("v_pages", torch.zeros(1, 2, 1, 7).expand(3, 2, 1, 7)),
        ("k_pages", torch.zeros(3, 2, 1, 5).double()),
        ("block_table", [[2, 0], [1, -1]]),
        ("block_table", torch.zeros(0, 2).long()),
        ("block_table", torch.tensor([[2, 0], [1, -1]]).short()),
        ("length", [3, 2]),
        ("length", torch.tensor([3.0, 2.0])),
        ("k_pages", torch.zeros(3, 2, 5)),
        ("k_pages", None),
        ("v_pages", None),
        ("v_pages", torch.zeros(3, 2, 2, 7)),
        ("v_pages", torch.zeros(3, 2, 1, 7, device="meta")),
        ("k_pages", torch.zeros(40).as_strided((3, 2, 1, 5), (5, 5, 5, 1))),
        ("k_pages", torch.zeros(40).as_strided((3, 2, 1, 5), (9, 5, 5, 1))),
        ("v_pages", torch.zeros(40).as_strided((3, 2, 1, 7), (14, 7, 7, 0))),
        ("v_pages", torch.zeros(40).unfold(0, 7, 6).view(3, 2, 1, 7)),
    ],
)
def test_wrong_pages_are_refused(argument: str, wrong: Any) -> None:
    PagedCache.from_pages(**pool())
    check_refusal(argument, lambda: PagedCache.from_pages(**pool(**{argument: wrong})))


def test_pages_may_be_any_slice_or_permutation_of_dense_memory(device: torch.device) -> None:
    """From a pool with keys beside values, with heads before tokens, or with every second row."""
    both = torch.zeros(3, 2, 2, 1, 5, device=device)
    pools = [
        both.unbind(1),
        torch.zeros(2, 1, 5, 3, 2, device=device).permute(0, 3, 4, 1, 2).unbind(),
        torch.zeros(2, 6, 2, 1, 10, device=device)[:, ::2, ..., ::2].unbind(),
    ]
    k = torch.arange(1.0, 6, device=device).view(1, 1, 1, 5)
    for k_pages, v_pages in pools:
        table, length = torch.tensor([[1]], device=device), torch.tensor([1], device=device)
        PagedCache.from_pages(k_pages, v_pages, table, length).update(k, -k)
        assert torch.equal(k_pages[1, 1], k[0, 0])
        assert torch.equal(v_pages[1, 1], -k[0, 0])
        assert k_pages.count_nonzero() == v_pages.count_nonzero() == 5


def test_duplicated_sequences_share_their_pages_until_one_writes(device: torch.device) -> None:
    cache = PagedCache(1, 8, 2, 1, 5, 7, device=device)
    cache.update(torch.ones(1, 5, 1, 5, device=device), torch.ones(1, 5, 1, 7, device=device))
    cache.reorder(torch.tensor([0, 0, 0]))
    assert cache.free_pages == 8 - 3
    cache.update(torch.ones(3, 1, 1, 5, device=device), torch.ones(3, 1, 1, 7, device=device))
    assert cache.free_pages == 8 - 3 - 2, "two of three writers copy the page that is half full"


@pytest.mark.parametrize(("ring", "sinks"), [(False, 0), (True, 0), (True, 1)])
def test_the_ops_pass_opcheck(ring: bool, sinks: int, device: torch.device) -> None:
    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, device=device)

    table = torch.tensor([[2], [0]], dtype=torch.int32, device=device)
    length, offset = torch.tensor([[1, 0], [2, 1]], device=device)
    cu_seqlens_k = torch.tensor([0, 3, 4], dtype=torch.int32, device=device)
    new = (ones(2, 2, 1, 5), ones(2, 2, 1, 7))
    storage = (ones(3, 4, 1, 5), ones(3, 4, 1, 7), table)
    torch.library.opcheck(pages.append, (*new, *storage, length, offset, ring, sinks))
    first = torch.zeros_like(length)
    torch.library.opcheck(
        pages.gather, (*new, *storage, first, length, cu_seqlens_k, 4, 3, ring, sinks)
    )


def test_a_storage_made_in_inference_mode_is_writable_outside(device: torch.device) -> None:
    k, v = torch.ones(2, 1, 1, 5, device=device), torch.ones(2, 1, 1, 7, device=device)
    with torch.inference_mode():
        cache = ContiguousCache(2, 4, 1, 5, 7, device=device)
        cache.update(k, v)
        cache.reorder(torch.tensor([1, 0]))
    cache.update(k, v)
    assert cache.length.tolist() == [2, 2]
