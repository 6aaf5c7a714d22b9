"""Single calls of a cache: bits, gradients of queries, positions, and its two custom ops."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import reference
from kernels.cache import ContiguousCache, KVCache, PagedCache, SlidingWindowCache, pages
from kernels.layers import RotaryEmbedding
from kernels.softmax.attention import attention
from properties.simulator.memory import CANARY
from properties.suite.caches.calls import bits, check_refusal
from properties.suite.caches.machine import DTYPES, in_double

KINDS: dict[str, Callable[..., KVCache]] = {
    "contiguous": lambda batch, *dims, **where: ContiguousCache(batch, 20, *dims, **where),
    "sliding": lambda batch, *dims, **where: SlidingWindowCache(batch, 5, *dims, **where),
    "paged": lambda batch, *dims, **where: PagedCache(batch, 12 * batch, 2, *dims, **where),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_tokens_keep_their_bits(kind: str, device: torch.device) -> None:
    """Infinities, subnormals and -0 too; a NaN stays some NaN."""

    def check(got: Tensor, want: Tensor) -> None:
        want = want.flatten(0, 1)[None]
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(bits(got)[~want.isnan()], bits(want)[~want.isnan()])

    @given(st.sampled_from(DTYPES), st.integers(0, 999))
    def keeps(dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        k, v = (
            torch.randint(-(2**15), 2**15, (2, 4, 1, 2 * dim), generator=generator)
            .short()
            .view(dtype)[..., :dim]
            .to(device)
            for dim in (3, 4)
        )
        # One NaN means to the simulator that nobody has written.
        assume(not any((bits(x) == int(CANARY[x.element_size()])).any() for x in (k, v)))
        cache = KINDS[kind](2, 1, 3, 4, dtype=dtype, device=device)
        fresh, kept = cache.update(k, v), cache.update(k[:, :0], v[:, :0])
        for view in (fresh, kept):
            check(view.k, k)
            check(view.v, v)

    keeps()


@kinds
@pytest.mark.parametrize("offset", [None, [3, 1]], ids=["all", "ragged"])
def test_queries_get_the_gradient_of_attention_over_the_view(
    kind: str, offset: list[int] | None, device: torch.device
) -> None:
    """A cache keeps no graph of keys and values; that of the queries works."""
    q, k, v = (
        torch.randn(2, 3, heads, dim, generator=torch.Generator().manual_seed(dim)).to(device)
        for heads, dim in ((2, 3), (1, 3), (1, 4))
    )
    q.requires_grad_()
    told = None if offset is None else torch.tensor(offset)
    cache, twin = (KINDS[kind](2, 1, 3, 4, device=device) for _ in range(2))
    for each in (cache, twin):
        each.update(k, v)
    o, lse = cache.attend(q, k, v, offset=told, return_lse=True)
    assert lse is not None
    counts = offset or [3, 3]
    rows = torch.cat([torch.arange(3 * n, 3 * n + count) for n, count in enumerate(counts)])
    cotangents = torch.rand(2, 3, 2, 4, device=device), torch.rand(2, 2, 3, device=device)
    real = torch.arange(3, device=device) < torch.tensor(counts, device=device)[:, None]
    got = torch.autograd.grad(
        (o * cotangents[0]).sum() + (lse * cotangents[1])[real[:, None].expand_as(lse)].sum(), q
    )[0]

    view = twin.update(k, v, told)
    packed = q.detach().flatten(0, 1)[rows][None].requires_grad_()
    want_o, want_lse = attention(
        packed,
        view.k,
        view.v,
        causal=True,
        window=getattr(cache, "window", None),
        cu_seqlens=view.cu_seqlens,
        cu_seqlens_k=view.cu_seqlens_k,
        return_lse=True,
    )
    assert want_lse is not None
    want = torch.autograd.grad(
        [want_o, want_lse],
        packed,
        [
            cotangents[0].flatten(0, 1)[rows][None],
            cotangents[1].transpose(1, 2).flatten(0, 1)[rows].T[None],
        ],
    )[0]
    assert torch.equal(got.flatten(0, 1)[rows], want[0])
    assert (got[~real] == 0).all(), "padding has a gradient"
    assert not any(x.requires_grad for x in (cache.k_pages, cache.v_pages, view.k, view.v))


@kinds
def test_the_length_is_the_position_of_the_next_token(kind: str, device: torch.device) -> None:
    """It serves as offset of a rotary embedding, for sequences of any lengths."""
    tokens, counts = 9, [(4, 2), (0, 1), (1, 4), (2, 2)]
    x = torch.randn(2, tokens, 1, 4, generator=torch.Generator().manual_seed(0)).to(device)
    rotary = RotaryEmbedding(4).to(device)
    cache, model = KINDS[kind](2, 1, 4, 4, device=device), reference.KVCache(2)
    tables = reference.rotary_tables(tokens, 4, dtype=torch.float64, device=device)
    exact = reference.rotary_embedding(x.double(), *tables)
    for count in counts:
        new = torch.zeros(2, 4, 1, 4, device=device)
        for n, (start, size) in enumerate(zip(cache.length.tolist(), count, strict=True)):
            new[n, :size] = x[n, start : start + size]
        view = cache.update(rotary(new, seqlen_offsets=cache.length), new, torch.tensor(count))
        model.update(new, new, torch.tensor(count))
    length = model.length.tolist()
    assert cache.length.tolist() == length == [7, 9]
    want = torch.cat([row[:size] for row, size in zip(exact, length, strict=True)])
    if kind == "sliding":
        # The last chunk of 2 tokens, and the 4 before.
        want = torch.cat([exact[0, 1:7], exact[1, 3:9]])
    # Two products with a rounded table, and their difference.
    assert (view.k[0] - want).abs().max() <= 4 * 2**-24 * 2 * x.abs().max()


@kinds
def test_no_attention_is_launched_for_an_update(kind: str, device: torch.device) -> None:
    """`update` leaves it to the caller; `attend` returns the LSE only on request."""
    cache = KINDS[kind](1, 1, 3, 4, device=device)
    q, v = torch.ones(1, 2, 1, 3, device=device), torch.ones(1, 2, 1, 4, device=device)
    heard: list[dict[str, Any]] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
        heard.append(given)
        return in_double(q, k, v, **{name: given[name] for name in given if name != "mode"})

    cache.update(q, v)
    assert not heard
    assert cache.attend(q, q, v, attention=spy, mode="auto")[1] is None
    assert heard[0]["mode"] == "auto"
    assert ("window" in heard[0]) == (kind == "sliding")


@pytest.mark.parametrize("ring", [False, True])
def test_the_ops_can_be_compiled(ring: bool, device: torch.device) -> None:
    """In one graph, where the second op sees what the first wrote."""

    def ops(
        k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, numbers: Tensor, bounds: Tensor
    ) -> tuple[Tensor, Tensor]:
        first, length, offset = numbers
        table = torch.arange(2, dtype=torch.int32, device=k.device)[:, None]
        pages.append(k, v, k_pages, v_pages, table, length, offset, ring)
        nothing = k[:, :0], v[:, :0]
        keys, values = pages.gather(
            *nothing, k_pages, v_pages, table, first, length + offset, bounds, 5, 3, ring
        )
        return keys, values

    numbers = torch.tensor([[0, 1], [1, 2], [1, 2]], device=device)
    bounds = torch.tensor([0, 2, 5], dtype=torch.int32, device=device)
    results = []
    for run in (ops, torch.compile(ops, backend="aot_eager", fullgraph=True)):
        k, v = (torch.arange(24.0, device=device).view(2, 2, 2, 3) for _ in range(2))
        k_pages, v_pages = (
            100 + torch.arange(48.0, device=device).view(2, 4, 2, 3) for _ in range(2)
        )
        results.append((*run(k, -v, k_pages, v_pages, numbers, bounds), k_pages, v_pages))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("build", "sizes"),
    [
        (ContiguousCache, {"batch": 2, "capacity": 3}),
        (SlidingWindowCache, {"batch": 2, "window": 3}),
        (PagedCache, {"batch": 2, "num_pages": 3, "page_size": 2}),
    ],
)
def test_sizes_and_dtypes_of_a_cache_are_checked(
    build: Callable[..., KVCache], sizes: dict[str, int]
) -> None:
    sizes = {**sizes, "kv_heads": 1, "key_dim": 5, "value_dim": 7}
    for dtype in DTYPES:
        cache = build(**sizes, dtype=dtype)
        assert cache.k_pages.dtype == cache.v_pages.dtype == dtype
    for name in sizes:
        for wrong in (0, -1, 1.5, True):
            check_refusal(name, partial(build, **{**sizes, name: wrong}))
    for dtype in (torch.float64, torch.int32):
        check_refusal("dtype", partial(build, **sizes, dtype=dtype))
