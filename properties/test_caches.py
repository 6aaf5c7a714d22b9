"""Caches against lists of tokens: any order of calls, each followed by a full recomputation."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

import reference
from kernels.cache import (
    ContiguousCache,
    KVCache,
    PagedCache,
    RecurrentCache,
    SlidingWindowCache,
    pages,
)
from properties import simulator
from properties.device import activate, recorded_launches
from properties.layouts import LAYOUTS, relaid
from properties.simulator import SimulationError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOKENS = st.integers(0, 7)
COUNTS = st.lists(st.integers(0, 7), min_size=4, max_size=4)
SEEDS = st.integers(0, 2**16)
OFFSETS = st.sampled_from(["all", "one", "each"])
OWN_MEMORY = sorted(set(LAYOUTS) - {"expanded"})


def bits(x: Tensor) -> Tensor:
    """The integers behind a tensor: they tell NaN from NaN, and -0 from 0."""
    widths = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(widths[x.element_size()])


def in_double(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
    """The oracle attention in float64, where it says nothing of an attention kernel's rounding."""
    return reference.attention(q.double(), k.double(), v.double(), **options)


def check_refusal(argument: str, call: Callable[[], object]) -> None:
    """`call` raises one of our errors, which name the argument first."""
    try:
        call()
    except (TypeError, ValueError) as error:
        message = str(error)
    else:
        raise AssertionError(f"a wrong {argument} was accepted")
    assert message.startswith(f"{argument}:"), f"{argument} is not named: {message}"


class KVMachine(RuleBasedStateMachine):
    """A cache of keys and values and two models of it: `reference.KVCache`, and all tokens ever.

    Values are small integers, so that what is stored and gathered is compared bit for bit.
    """

    device: ClassVar[torch.device] = torch.device("cpu")
    reached: ClassVar[set[str]] = set()
    with_kernel: ClassVar[bool] = False
    """Attend with this project's kernel, rather than with the oracle in float64."""

    cache: KVCache
    window: int | None = None

    def build(self, room: int, page_size: int, seed: int) -> KVCache:
        """A cache for about `room` tokens per sequence."""
        raise NotImplementedError

    def cell(self, n: int, position: int) -> tuple[int, int]:
        """Page and row of the token at `position` of sequence `n`, as the cache's page says."""
        raise NotImplementedError

    def fits(self, counts: list[int]) -> bool:
        """Whether there is room for these new tokens."""
        raise NotImplementedError

    @initialize(
        batch=st.integers(1, 3),
        heads=st.tuples(st.integers(1, 2), st.integers(1, 2)),
        dims=st.sampled_from([(2, 3), (3, 2), (1, 5), (5, 1)]),
        dtype=st.sampled_from(DTYPES),
        room=st.integers(1, 20),
        page_size=st.integers(1, 4),
        seed=SEEDS,
        poisoned=st.booleans(),
    )
    def create(
        self,
        batch: int,
        heads: tuple[int, int],
        dims: tuple[int, int],
        dtype: torch.dtype,
        room: int,
        page_size: int,
        seed: int,
        poisoned: bool,
    ) -> None:
        self.batch, self.dtype, self.poisoned = batch, dtype, poisoned
        self.kv_heads, self.heads = heads[0], heads[0] * heads[1]
        self.key_dim, self.value_dim = dims
        self.cache = self.build(room, page_size, seed)
        self.model = reference.KVCache(batch, self.window)
        self.everything = reference.KVCache(batch)

    def integers(self, seed: int, largest: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randint(-largest, largest + 1, shape, generator=generator)
        return values.to(self.device, self.dtype)

    def draw_tokens(self, tokens: int, seed: int, layout: str) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of new tokens. Logits are at most 8 · 4 · 5 / 64 = 2.5."""
        q = self.integers(seed, 4, self.batch, tokens, self.heads, self.key_dim)
        k = self.integers(seed + 1, 8, self.batch, tokens, self.kv_heads, self.key_dim)
        v = self.integers(seed + 2, 256, self.batch, tokens, self.kv_heads, self.value_dim)
        return q, relaid(k, layout), relaid(v, layout)

    def draw_offset(
        self, kind: str, counts: list[int], tokens: int
    ) -> tuple[int | Tensor | None, list[int]]:
        counts = [min(count, tokens) for count in counts][: self.batch]
        counts += [tokens] * (self.batch - len(counts))
        if kind == "all":
            return None, [tokens] * self.batch
        if kind == "one":
            return counts[0], counts[:1] * self.batch
        return torch.tensor(counts), counts

    def snapshot(self) -> list[Any]:
        cache = self.cache
        table = cache.block_table.tolist() if isinstance(cache, PagedCache) else None
        storage = [bits(x).tolist() for x in (cache.k_pages, cache.v_pages)]
        return [cache.length.tolist(), table, storage]

    def refuse(self, argument: str, call: Callable[[], object]) -> None:
        """`call` raises an error that names the argument, and nothing has changed."""
        before = self.snapshot()
        check_refusal(argument, call)
        assert self.snapshot() == before, f"a refused {argument} left traces"

    def length(self) -> list[int]:
        return self.everything.length.tolist()

    @rule(
        tokens=TOKENS, kind=OFFSETS, counts=COUNTS, seed=SEEDS, layout=st.sampled_from([*LAYOUTS])
    )
    def update(self, tokens: int, kind: str, counts: list[int], seed: int, layout: str) -> None:
        _, k, v = self.draw_tokens(tokens, seed, layout)
        offset, counts = self.draw_offset(kind, counts, tokens)
        if not self.fits(counts):
            self.reached.add("no room")
            self.refuse("offset", lambda: self.cache.update(k, v, offset))
            return
        if layout != "expanded":
            for n, count in enumerate(counts):
                k[n, count:] = v[n, count:] = torch.nan
        self.note(counts)
        got, want = self.cache.update(k, v, offset), self.model.update(k, v, offset)
        self.everything.update(k, v, offset)
        for name, x, y in zip(want._fields, got, want, strict=True):
            assert x.shape == y.shape, f"{name}: shape {list(x.shape)}, want {list(y.shape)}"
            assert (x == y).all(), f"{name} of the view differs: {x.tolist()}, want {y.tolist()}"

    @rule(
        tokens=TOKENS,
        kind=OFFSETS,
        counts=COUNTS,
        seed=SEEDS,
        narrower=st.none() | st.integers(1, 9),
    )
    def attend(
        self, tokens: int, kind: str, counts: list[int], seed: int, narrower: int | None
    ) -> None:
        q, k, v = self.draw_tokens(tokens, seed, "contiguous")
        offset, counts = self.draw_offset(kind, counts, tokens)
        options: dict[str, Any] = {"scale": 1 / 64, "return_lse": True}
        if narrower is not None and (self.window is None or narrower <= self.window):
            options["window"] = narrower

        def run() -> tuple[Tensor, Tensor | None]:
            own = None if self.with_kernel else in_double
            return self.cache.attend(q, k, v, offset=offset, attention=own, **options)

        if not self.fits(counts):
            self.refuse("offset", run)
            return
        self.note(counts)
        o, lse = run()
        self.everything.update(k, v, offset)
        self.model.update(k, v, offset)
        assert lse is not None
        window = options.get("window", self.window)
        for n, count in enumerate(counts):
            self.check_rows(q[n, :count], o[n, :count], lse[n, :, :count], n, window)
            assert (o[n, count:] == 0).all(), "padding rows are not 0"
            assert (lse[n, :, count:] == -torch.inf).all(), "the LSE of padding is not -inf"

    def check_rows(self, q: Tensor, o: Tensor, lse: Tensor, n: int, window: int | None) -> None:
        """Rows of one sequence against attention over every token that it has ever seen.

        Logits are exact and at most 2.5. In units of the arithmetic's precision, an exponential is
        therefore off by 2.5 · log2(e) for its argument and 4 for itself, and a sum of t terms by t;
        numerator and denominator make that twice. A kernel rounds the weights to the dtype of the
        values once more, and the output too.
        """
        tokens = self.everything.tokens[n]
        if len(q) == 0:
            return
        k = torch.stack([key for key, _ in tokens])[None]
        v = torch.stack([value for _, value in tokens])[None]
        options = {"scale": 1 / 64, "causal": True, "window": window, "return_lse": True}
        want, want_lse = in_double(q[None], k, v, **options)
        size, _ = in_double(q[None], k, v.abs(), **options)
        assert want_lse is not None
        arithmetic = torch.float32 if self.with_kernel else torch.float64
        sums = 2 * (len(tokens) + 8) * torch.finfo(arithmetic).eps
        storage = torch.finfo(self.dtype).eps / 2 if self.with_kernel else 0.0
        budget = (sums + storage) * size[0] + storage * want[0].abs()
        error = (o - want[0]).abs()
        assert (error <= budget).all(), f"sequence {n} attends otherwise: {o}, want {want[0]}"
        assert ((lse - want_lse[0]).abs() <= 8 * sums).all(), f"LSE {lse}, want {want_lse[0]}"

    @precondition(lambda self: any(self.length()))
    @rule(length=st.integers(0, 12), back=COUNTS, each=st.booleans())
    def crop(self, length: int, back: list[int], each: bool) -> None:
        kept: int | Tensor = length
        if each:
            seen = self.length()
            kept = torch.tensor([max(0, s - back[n % len(back)] // 2) for n, s in enumerate(seen)])
        try:
            self.model.crop(kept)
        except ValueError:
            self.reached.add("forgotten")
            self.refuse("length", lambda: self.cache.crop(kept))
            return
        if any(a < b for a, b in zip(self.model.length.tolist(), self.length(), strict=True)):
            self.reached.add("cropped")
        self.everything.crop(kept)
        self.cache.crop(kept)

    @rule(picks=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def reorder(self, picks: list[int]) -> None:
        index = torch.tensor([pick % self.batch for pick in picks], device=self.device)
        if len(set(index.tolist())) < len(picks):
            self.reached.add("duplicated")
        for each in (self.cache, self.model, self.everything):
            each.reorder(index)
        self.batch = len(picks)

    @precondition(lambda self: any(self.length()))
    @rule()
    def reset(self) -> None:
        for each in (self.cache, self.model, self.everything):
            each.reset()

    def teardown(self) -> None:
        """Wherever the calls have led: what is refused changes nothing, and one can start over."""
        if hasattr(self, "cache"):
            self.refused_calls()
            self.attention_that_refuses()
            self.reset_is_a_new_start()

    def reset_is_a_new_start(self) -> None:
        """After a reset, tokens come and go as in a cache that is new."""
        caches = (self.cache, self.model, self.everything)
        for each in caches:
            each.reset()
        for seed in range(2):
            for each in caches:
                each.crop(1)
            if self.fits([2] * self.batch):
                _, k, v = self.draw_tokens(2, seed, "contiguous")
                got, want, _ = (each.update(k, v) for each in caches)
                assert all((x == y).all() for x, y in zip(got, want, strict=True))
        self.lengths_count_all_tokens()

    def attention_that_refuses(self) -> None:
        """An option that only the attention itself can refuse: by then nothing is appended."""

        def refusing(*_: Any, **__: Any) -> Any:
            raise ValueError("softcap: 0, expected a positive number")

        if self.fits([1] * self.batch):
            q, k, v = self.draw_tokens(1, 0, "contiguous")
            self.refuse("softcap", lambda: self.cache.attend(q, k, v, attention=refusing))

    def refused_calls(self) -> None:
        """Wrong arguments: nothing is launched and nothing changes."""
        tokens = 2
        q, k, v = self.draw_tokens(tokens, 0, "contiguous")
        cache: Any = self.cache
        batch = self.batch
        other = torch.float16 if self.dtype == torch.float32 else torch.float32
        index, floats = torch.arange(batch), torch.zeros(batch)
        too_many = torch.full((batch,), tokens + 1)
        calls: list[tuple[str, Callable[[], object]]] = [
            ("k", lambda: cache.update(torch.cat([k, k]), torch.cat([v, v]))),
            ("k", lambda: cache.update(torch.cat([k, k], 2), torch.cat([v, v], 2))),
            ("k", lambda: cache.update(torch.cat([k, k], 3), v)),
            ("k", lambda: cache.update(k[0], v)),
            ("k", lambda: cache.update(k.to(other), v.to(other))),
            ("k", lambda: cache.update(k.double(), v.double())),
            ("k", lambda: cache.update(k.clone().requires_grad_(), v)),
            ("k", lambda: cache.update(None, v)),
            ("v", lambda: cache.update(k, torch.cat([v, v], 1))),
            ("v", lambda: cache.update(k, torch.cat([v, v], 3))),
            ("v", lambda: cache.update(k, v.to(other))),
            ("offset", lambda: cache.update(k, v, -1)),
            ("offset", lambda: cache.update(k, v, tokens + 1)),
            ("offset", lambda: cache.update(k, v, True)),
            ("offset", lambda: cache.update(k, v, too_many)),
            ("offset", lambda: cache.update(k, v, -index - 1)),
            ("offset", lambda: cache.update(k, v, torch.cat([index, index]))),
            ("offset", lambda: cache.update(k, v, floats)),
            ("length", lambda: cache.crop(-1)),
            ("length", lambda: cache.crop(1.5)),
            ("length", lambda: cache.crop(torch.cat([index, index]))),
            ("index", lambda: cache.reorder(index + 1)),
            ("index", lambda: cache.reorder(index - 1)),
            ("index", lambda: cache.reorder(index[:0])),
            ("index", lambda: cache.reorder(index[None])),
            ("index", lambda: cache.reorder(floats)),
            ("causal", lambda: cache.attend(q, k, v, attention=in_double, causal=False)),
            ("k", lambda: cache.attend(q[:0], k, v, attention=in_double)),
            ("k", lambda: cache.attend(q[..., :0], k, v, attention=in_double)),
        ]
        if self.window is not None:
            wider = {"attention": in_double, "window": self.window + 1}
            calls.append(("window", lambda: cache.attend(q, k, v, **wider)))
        with recorded_launches() as launched:
            for argument, call in calls:
                self.refuse(argument, call)
        assert launched == [], f"a refused call launched {launched}"

    def kept(self, n: int) -> range:
        """Positions of the tokens that sequence `n` keeps."""
        first = self.model.forgotten[n]
        return range(first, first + len(self.model.tokens[n]))

    def note(self, counts: list[int]) -> None:
        if len(set(counts)) > 1:
            self.reached.add("ragged")
        if 0 in counts:
            self.reached.add("nothing new")
        if self.window is not None:
            for old, new in zip(self.length(), counts, strict=True):
                if old > 1 and new > self.window:
                    self.reached.add("chunk longer than the window")
                if old % self.window and old > self.window:
                    self.reached.add("wrapped")

    @invariant()
    @precondition(lambda self: getattr(self, "poisoned", False))
    def what_holds_no_token_may_hold_anything(self) -> None:
        """Fill it with NaN: the next calls must not notice."""
        live = torch.zeros(self.cache.k_pages.shape[:2], dtype=torch.bool)
        for n in range(self.batch):
            for position in self.kept(n):
                live[self.cell(n, position)] = True
        self.cache.k_pages[~live] = torch.nan
        self.cache.v_pages[~live] = torch.nan

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def lengths_count_all_tokens(self) -> None:
        assert self.cache.length.tolist() == self.length() == self.model.length.tolist()
        assert self.cache.length.dtype == torch.int64

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def tokens_lie_where_the_page_says(self) -> None:
        for n in range(self.batch):
            for position, (k, v) in zip(self.kept(n), self.model.tokens[n], strict=True):
                page, row = self.cell(n, position)
                assert (self.cache.k_pages[page, row] == k).all(), f"key {position} of {n} is lost"
                assert (self.cache.v_pages[page, row] == v).all(), f"value {position} of {n}"


class ContiguousMachine(KVMachine):
    kind: ClassVar[type[ContiguousCache]] = ContiguousCache

    def build(self, room: int, page_size: int, seed: int) -> KVCache:
        dims = (self.kv_heads, self.key_dim, self.value_dim)
        return self.kind(self.batch, room, *dims, dtype=self.dtype, device=self.device)

    def cell(self, n: int, position: int) -> tuple[int, int]:
        return n, position

    def fits(self, counts: list[int]) -> bool:
        capacity = self.cache.k_pages.shape[1]
        return all(a + b <= capacity for a, b in zip(self.length(), counts, strict=True))


class SlidingMachine(KVMachine):
    kind: ClassVar[type[SlidingWindowCache]] = SlidingWindowCache

    def build(self, room: int, page_size: int, seed: int) -> KVCache:
        self.window = 1 + room // 4
        dims = (self.kv_heads, self.key_dim, self.value_dim)
        return self.kind(self.batch, self.window, *dims, dtype=self.dtype, device=self.device)

    def cell(self, n: int, position: int) -> tuple[int, int]:
        assert self.window is not None
        return n, position % self.window

    def fits(self, counts: list[int]) -> bool:
        return True


class PagedMachine(KVMachine):
    kind: ClassVar[type[PagedCache]] = PagedCache
    cache: PagedCache

    def build(self, room: int, page_size: int, seed: int) -> KVCache:
        """From a pool of its own, or (odd seeds) over pages of any layout, some of them reserved
        in any order."""
        number = -(-room * self.batch // page_size) + 1
        dims = (self.kv_heads, self.key_dim, self.value_dim)
        if seed % 2 == 0:
            sizes = (self.batch, number, page_size, *dims)
            return self.kind(*sizes, dtype=self.dtype, device=self.device)
        layout = OWN_MEMORY[seed // 2 % len(OWN_MEMORY)]
        k_pages, v_pages = (
            relaid(torch.zeros(number, page_size, dims[0], d, device=self.device), layout)
            for d in (self.key_dim, self.value_dim)
        )
        order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
        reserved = number // (2 * self.batch)
        table = order[: self.batch * reserved].reshape(self.batch, reserved)
        table = torch.cat([table, torch.full((self.batch, 1), -1)], 1).to(torch.int32)
        k_pages, v_pages = k_pages.to(self.dtype), v_pages.to(self.dtype)
        return self.kind.from_pages(k_pages, v_pages, table, torch.zeros(self.batch).long())

    def cell(self, n: int, position: int) -> tuple[int, int]:
        page = int(self.cache.block_table[n, position // self.cache.page_size])
        return page, position % self.cache.page_size

    def fits(self, counts: list[int]) -> bool:
        """Each writer of a shared page but the last holder needs a copy; the rest are new pages."""
        size, table = self.cache.page_size, self.cache.block_table.tolist()
        holders: dict[int, int] = {}
        for page in (page for row in table for page in row if page >= 0):
            holders[page] = holders.get(page, 0) + 1
        needed = 0
        for row, old, new in zip(table, self.length(), counts, strict=True):
            blocks = range(old // size, -(-(old + new) // size)) if new else range(0)
            for block in blocks:
                page = row[block] if block < len(row) else -1
                if page < 0:
                    needed += 1
                elif holders[page] > 1:
                    self.reached.add("copied a shared page")
                    holders[page] -= 1
                    needed += 1
        return needed <= self.cache.free_pages

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def no_page_is_lost(self) -> None:
        held = {page for row in self.cache.block_table.tolist() for page in row if page >= 0}
        assert len(held) + self.cache.free_pages == len(self.cache.k_pages)


class RecurrentMachine(RuleBasedStateMachine):
    """The recurrent cache of three layers, against `reference.RecurrentCache`."""

    device: ClassVar[torch.device] = torch.device("cpu")
    kind: ClassVar[type[RecurrentCache]] = RecurrentCache
    reached: ClassVar[set[str]] = set()
    LAYERS = 3

    @initialize(batch=st.integers(1, 3))
    def create(self, batch: int) -> None:
        self.batch = batch
        self.cache = self.kind(batch, self.LAYERS)
        self.model = reference.RecurrentCache(batch, self.LAYERS)

    def draw_state(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.batch, 2, 3, 4, generator=generator).to(self.device)

    @rule(layer=st.integers(0, LAYERS - 1), seed=SEEDS, counts=COUNTS, each=st.booleans())
    def update(self, layer: int, seed: int, counts: list[int], each: bool) -> None:
        offset: int | Tensor = counts[0]
        if each:
            offset = torch.tensor([counts[n % len(counts)] for n in range(self.batch)])
        state = self.draw_state(seed)
        assert self.cache.update(state, layer, offset=offset) is state
        self.model.update(state, layer, offset=offset)

    @rule(seed=SEEDS, tokens=TOKENS)
    def forward(self, seed: int, tokens: int) -> None:
        """All layers in turn: in the middle there is no one length, but each layer has its own."""
        for layer in range(self.LAYERS):
            before = self.model.layer_length(layer).tolist()
            assert self.cache.layer_length(layer).tolist() == before, "another layer's tokens"
            self.update(layer, seed + layer, [tokens], False)
            self.lengths_and_states_agree()

    @rule(picks=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def reorder(self, picks: list[int]) -> None:
        index = torch.tensor([pick % self.batch for pick in picks], device=self.device)
        self.cache.reorder(index)
        self.model.reorder(index)
        self.batch = len(picks)

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.model.reset()

    @rule(length=st.integers(0, 20))
    def crop(self, length: int) -> None:
        if any(length < seen for layer in self.model.seen for seen in layer):
            self.reached.add("forgotten")
            self.refuse("length", lambda: self.cache.crop(length))
        else:
            self.cache.crop(length)

    @rule(seed=SEEDS)
    def refused_calls(self, seed: int) -> None:
        cache: Any = self.cache
        state = self.draw_state(seed)
        first = cache.state(0)
        calls: list[tuple[str, Callable[[], object]]] = [
            ("state", lambda: cache.update((state, state), offset=1)),
            ("state", lambda: cache.update(state[0], offset=1)),
            ("state", lambda: cache.update(torch.cat([state, state]), offset=1)),
            ("state", lambda: cache.update(state.half(), offset=1)),
            ("offset", lambda: cache.update(state, offset=-1)),
            ("offset", lambda: cache.update(state, offset=1.0)),
            ("offset", lambda: cache.update(state, offset=torch.ones(self.batch + 1).long())),
            ("layer", lambda: cache.update(state, self.LAYERS, offset=1)),
            ("layer", lambda: cache.update(state, -1, offset=1)),
            ("layer", lambda: cache.state(-1)),
            ("layer", lambda: cache.layer_length(self.LAYERS)),
            ("length", lambda: cache.crop(-1)),
            ("index", lambda: cache.reorder(torch.arange(self.batch) + 1)),
            ("index", lambda: cache.reorder(torch.arange(0))),
        ]
        if first is not None:
            calls.append(("state", lambda: cache.update(first[..., :-1], offset=1)))
        for argument, call in calls:
            self.refuse(argument, call)

    def refuse(self, argument: str, call: Callable[[], object]) -> None:
        check_refusal(argument, call)
        self.lengths_and_states_agree()

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def lengths_and_states_agree(self) -> None:
        for layer in range(self.LAYERS):
            want = self.model.state(layer)
            got = self.cache.state(layer)
            if got is None or want is None:
                assert got is want, f"layer {layer} has a state, or should have"
            else:
                assert torch.equal(got, want), f"the state of layer {layer} differs"
            assert self.cache.layer_length(layer).tolist() == self.model.seen[layer]
        if all(seen == self.model.seen[0] for seen in self.model.seen):
            assert self.cache.length.tolist() == self.model.seen[0]
        else:
            self.reached.add("between layers")
            with pytest.raises(ValueError, match="layer_length"):
                _ = self.cache.length


class CountsHeads(ContiguousCache):
    """Advanced by k.shape[2], the heads, instead of the tokens."""

    def _write(self, update: Any) -> None:
        super()._write(update)
        self._length = [old + update.k.shape[2] for old in update.length]


class ChecksTheCapacityLate(ContiguousCache):
    """Lengths advance before the capacity is checked."""

    def _reserve(self, counts: list[int]) -> None:
        before = self._length
        self._length = [a + b for a, b in zip(before, counts, strict=True)]
        super()._reserve([0] * len(counts))
        self._length = before


class KeepsLengthOnReset(ContiguousCache):
    """The tokens go, the count stays."""

    def reset(self) -> None:
        self.k_pages.zero_()
        self.v_pages.zero_()


class ReordersKeysOnly(ContiguousCache):
    """The values stay with the old beams."""

    def _reorder(self, indices: list[int]) -> None:
        values = self.v_pages
        super()._reorder(indices)
        if len(indices) == len(values):
            self.v_pages = values


class ReadsPadding(ContiguousCache):
    """Ragged appends take every sequence to be as long as the longest."""

    def _check(self, k: Tensor, v: Tensor, offset: Any) -> Any:
        longest = None if offset is None else int(torch.as_tensor(offset).max())
        return super()._check(k, v, longest)


class RingOffByOne(SlidingWindowCache):
    """Written one row too far."""

    def _write(self, update: Any) -> None:
        update.on_device[0] += 1
        super()._write(update)


class TruncatesFirst(SlidingWindowCache):
    """The window is cut to the newest W keys before the chunk's first queries have attended."""

    def _first_visible(self) -> list[int]:
        return self._cut

    def _check(self, k: Tensor, v: Tensor, offset: Any) -> Any:
        tokens = k.shape[1] if isinstance(k, Tensor) and k.dim() == 4 else 0
        self._cut = [min(n, max(0, n + tokens - self.window)) for n in self._length]
        return super()._check(k, v, offset)


class SaturatingLength(SlidingWindowCache):
    """The length stops at the window."""

    @property
    def length(self) -> Tensor:
        return super().length.clamp(max=self.window)


class CropsTheForgotten(SlidingWindowCache):
    """Cropped to tokens whose rows hold later ones by now."""

    def crop(self, length: int | Tensor) -> None:
        KVCache.crop(self, length)


class StaleWindowAfterReset(SlidingWindowCache):
    """The first token kept is that of the sequence before the reset."""

    def reset(self) -> None:
        self._length = [0] * self.batch


class TransposesTheTable(PagedCache):
    """Pages of block n of sequence j are looked up for block j of sequence n."""

    def _view(self, update: Any) -> Any:
        table = self._table()
        self._device_table = table.T.reshape(table.shape).clamp(min=0).contiguous()
        view = super()._view(update)
        self._device_table = table
        return view


class WritesToSharedPages(PagedCache):
    """A duplicated sequence writes into the pages of its twin."""

    def _needed(self, counts: list[int]) -> Any:
        return [], super()._needed(counts)[1]


class LosesPages(PagedCache):
    """Cropped pages do not return to the free list."""

    def crop(self, length: int | Tensor) -> None:
        free = list(self._free)
        super().crop(length)
        self._free = free


class OneCounter(RecurrentCache):
    """All layers advance one counter."""

    def update(self, state: Tensor, layer: int = 0, *, offset: int | Tensor) -> Tensor:
        state = super().update(state, layer, offset=offset)
        self._length = [self._length[layer]] * self.layers
        return state


class ResetsStatesOnly(RecurrentCache):
    """The count survives a reset."""

    def reset(self) -> None:
        self._states = [None] * self.layers


MACHINES = {
    ContiguousMachine: {"no room", "ragged", "nothing new", "cropped", "duplicated"},
    SlidingMachine: {"chunk longer than the window", "wrapped", "forgotten", "cropped", "ragged"},
    PagedMachine: {"no room", "ragged", "cropped", "duplicated", "copied a shared page"},
    RecurrentMachine: {"between layers", "forgotten"},
}
KV_MACHINES = (ContiguousMachine, SlidingMachine, PagedMachine)
PLANTED = {
    ContiguousMachine: (
        CountsHeads,
        ChecksTheCapacityLate,
        KeepsLengthOnReset,
        ReordersKeysOnly,
        ReadsPadding,
    ),
    SlidingMachine: (
        RingOffByOne,
        TruncatesFirst,
        SaturatingLength,
        CropsTheForgotten,
        StaleWindowAfterReset,
    ),
    PagedMachine: (TransposesTheTable, WritesToSharedPages, LosesPages),
    RecurrentMachine: (OneCounter, ResetsStatesOnly),
}


@pytest.fixture(scope="module")
def device(pytestconfig: pytest.Config) -> torch.device:
    return activate(pytestconfig.getoption("device"))


@pytest.fixture
def unknown_lanes(device: torch.device) -> Iterator[None]:
    """The lanes that a mask leaves out of a load are NaN, of which Triton promises nothing."""
    installed = simulator.installed()
    with simulator.simulating(unmasked=math.nan) if installed else nullcontext():
        yield


def variant(machine: type[Any], device: torch.device, **attributes: Any) -> type[Any]:
    return type(machine.__name__, (machine,), {"device": device, "reached": set(), **attributes})


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.__name__)
def test_any_order_of_calls_matches_the_list_of_tokens(
    machine: type[Any], device: torch.device
) -> None:
    run_state_machine_as_test(
        variant(machine, device), settings=settings(stateful_step_count=20, deadline=None)
    )


@pytest.mark.parametrize("machine", KV_MACHINES, ids=lambda m: m.__name__)
def test_any_order_of_calls_matches_with_the_attention_kernel(
    machine: type[Any], device: torch.device
) -> None:
    run_state_machine_as_test(
        variant(machine, device, with_kernel=True),
        settings=settings(stateful_step_count=20, deadline=None),
    )


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.__name__)
def test_the_machine_reaches_what_it_is_for(machine: type[Any], device: torch.device) -> None:
    watched = variant(machine, device)
    run_state_machine_as_test(
        watched,
        settings=settings(
            max_examples=40, stateful_step_count=20, derandomize=True, database=None, deadline=None
        ),
    )
    assert MACHINES[machine] <= watched.reached


@pytest.mark.parametrize(
    ("machine", "planted"),
    [(machine, bug) for machine, bugs in PLANTED.items() for bug in bugs],
    ids=lambda x: x.__name__,
)
def test_a_planted_bug_is_caught(
    machine: type[Any], planted: type[Any], device: torch.device
) -> None:
    # The simulator sees some of them first, a race or a read of what nobody wrote; and tensors of
    # other lengths do not compare.
    with pytest.raises((AssertionError, ValueError, RuntimeError, SimulationError)):
        run_state_machine_as_test(
            variant(machine, device, kind=planted),
            settings=settings(
                max_examples=200,
                stateful_step_count=20,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )


@pytest.mark.usefixtures("unknown_lanes")
@pytest.mark.parametrize("dims", [(3, 5), (130, 3), (1, 256)], ids=str)
@pytest.mark.parametrize("kind", ["contiguous", "sliding", "paged"])
def test_chunks_longer_than_a_tile_match_the_list_of_tokens(
    kind: str, dims: tuple[int, int], device: torch.device
) -> None:
    """A program copies 64 tokens at most, and 16 of 256 wide heads."""
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
def test_a_cache_works_where_its_tokens_are(kind: Callable[..., KVCache]) -> None:
    """Shown on a device without memory, which like a GPU mixes with no other."""
    cache = kind(device="meta")
    q, k, v = (torch.zeros(2, 3, heads, d, device="meta") for heads, d in ((2, 3), (1, 3), (1, 4)))
    o, lse = cache.attend(q, k, v, offset=torch.tensor([1, 2]), return_lse=True)
    assert lse is not None
    view = cache.update(k[:, :1], v[:, :1])
    cache.reorder(torch.tensor([1, 0, 1]))
    assert {x.device.type for x in (o, lse, *view, cache.k_pages, cache.length)} == {"meta"}
    assert o.shape == (2, 3, 2, 4)
    assert lse.shape == (2, 2, 3)


def test_the_length_of_a_layer_is_where_its_state_is() -> None:
    cache = RecurrentCache(2)
    cache.update(torch.zeros(2, 1, 3, 4, device="meta"), offset=1)
    assert cache.layer_length(0).device.type == "meta"


def test_nothing_new_brings_no_forgotten_token_back(device: torch.device) -> None:
    """Cropped by the one token that it may be, a window cannot be cropped by another."""
    cache = SlidingWindowCache(1, 2, 1, 1, 1, device=device)
    x = torch.arange(5.0, device=device).view(1, 5, 1, 1)
    cache.update(x, x)
    cache.crop(4)
    cache.update(x[:, :0], x[:, :0])
    check_refusal("length", lambda: cache.crop(3))


@pytest.mark.parametrize(
    ("counts", "copies"), [([0, 0, 0], 0), ([0, 0, 1], 1), ([0, 1, 1], 2), ([1, 1, 1], 2)], ids=str
)
def test_who_writes_to_a_shared_page_needs_a_copy_but_the_last_holder(
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
    """What `PagedCache.from_pages` accepts: 3 pages of 2 tokens for 2 sequences."""
    return {
        "k_pages": torch.zeros(3, 2, 1, 5),
        "v_pages": torch.zeros(3, 2, 1, 7),
        "block_table": torch.tensor([[2, 0], [1, -1]]),
        "length": torch.tensor([3, 2]),
        **changes,
    }


def test_a_cache_continues_from_pages_that_exist(device: torch.device) -> None:
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
    ],
)
def test_wrong_pages_are_refused(argument: str, wrong: Tensor) -> None:
    PagedCache.from_pages(**pool())
    check_refusal(argument, lambda: PagedCache.from_pages(**pool(**{argument: wrong})))


@pytest.mark.parametrize("argument", ["batch", "capacity", "kv_heads", "key_dim", "value_dim"])
def test_a_cache_of_no_size_is_refused(argument: str) -> None:
    def build(**changes: Any) -> ContiguousCache:
        sizes = {"batch": 2, "capacity": 3, "kv_heads": 1, "key_dim": 5, "value_dim": 7}
        return ContiguousCache(**{**sizes, **changes})

    build()
    for wrong in (0, -1, 1.5, True):
        check_refusal(argument, partial(build, **{argument: wrong}))


def test_duplicated_sequences_share_their_pages_until_one_writes(device: torch.device) -> None:
    cache = PagedCache(1, 8, 2, 1, 5, 7, device=device)
    cache.update(torch.ones(1, 5, 1, 5, device=device), torch.ones(1, 5, 1, 7, device=device))
    cache.reorder(torch.tensor([0, 0, 0]))
    assert cache.free_pages == 8 - 3
    cache.update(torch.ones(3, 1, 1, 5, device=device), torch.ones(3, 1, 1, 7, device=device))
    assert cache.free_pages == 8 - 3 - 2, "two of three writers copy the page that is half full"


@pytest.mark.parametrize("ring", [False, True])
def test_the_ops_pass_opcheck(ring: bool, device: torch.device) -> None:
    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, device=device)

    table = torch.tensor([[2], [0]], dtype=torch.int32, device=device)
    length, offset = torch.tensor([[1, 0], [2, 1]], device=device)
    cu_seqlens_k = torch.tensor([0, 3, 4], dtype=torch.int32, device=device)
    new = (ones(2, 2, 1, 5), ones(2, 2, 1, 7))
    storage = (ones(3, 4, 1, 5), ones(3, 4, 1, 7), table)
    torch.library.opcheck(pages.append, (*new, *storage, length, offset, ring))
    first = torch.zeros_like(length)
    torch.library.opcheck(pages.gather, (*new, *storage, first, length, cu_seqlens_k, 4, 3, ring))


def test_a_storage_made_in_inference_mode_is_writable_outside(device: torch.device) -> None:
    k, v = torch.ones(2, 1, 1, 5, device=device), torch.ones(2, 1, 1, 7, device=device)
    with torch.inference_mode():
        cache = ContiguousCache(2, 4, 1, 5, 7, device=device)
        cache.update(k, v)
        cache.reorder(torch.tensor([1, 0]))
    cache.update(k, v)
    assert cache.length.tolist() == [2, 2]
