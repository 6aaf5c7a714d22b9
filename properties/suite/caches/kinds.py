"""The kv caches, with what is special about each."""

import random
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from hypothesis.stateful import invariant, precondition
from torch import Tensor

import reference
from kernels.cache import (
    ContiguousCache,
    KVCache,
    PagedCache,
    QuantizedCache,
    SlidingWindowCache,
)
from properties.cases.layouts import LAYOUTS, OVERLAPPING, relaid
from properties.suite.caches.machine import CONTIGUOUS, Call, KVMachine

OWN_MEMORY = sorted(set(LAYOUTS) - {*OVERLAPPING})
_BETWEEN = "pages of another layer between"


def _placed(pages: Tensor, layout: str) -> Tensor:
    """Pages in a layout, or dense pages with gaps, as in a pool of all layers."""
    if layout != _BETWEEN:
        return relaid(pages, layout)
    pool = pages.new_full((len(pages), 2, *pages.shape[1:]), torch.nan)
    return pool[:, 0].copy_(pages)


class ContiguousMachine(KVMachine):
    kind: ClassVar[type[ContiguousCache]] = ContiguousCache
    reaches: ClassVar[frozenset[str]] = frozenset(
        {"no room", "ragged", "nothing new", "cropped", "duplicated"}
    )

    def new(self, room: int, page_size: int) -> KVCache:
        dims = (self.kv_heads, self.key_dim, self.value_dim)
        return self.kind(self.batch, room, *dims, dtype=self.dtype, device=self.device)

    def cell(self, n: int, position: int) -> tuple[int, int]:
        return n, position

    def fits(self, counts: list[int]) -> bool:
        capacity = self.cache.k_pages.shape[1]
        return all(a + b <= capacity for a, b in zip(self.length(), counts, strict=True))


class SlidingMachine(KVMachine):
    kind: ClassVar[type[SlidingWindowCache]] = SlidingWindowCache
    reaches: ClassVar[frozenset[str]] = frozenset(
        {
            "chunk longer than the window",
            "wrapped",
            "forgotten",
            "cropped",
            "cropped below the forgotten",
            "ragged",
        }
    )

    def new(self, room: int, page_size: int) -> KVCache:
        assert self.window is not None
        dims = (self.kv_heads, self.key_dim, self.value_dim)
        return self.kind(self.batch, self.window, *dims, dtype=self.dtype, device=self.device)

    def build(self, room: int, page_size: int, seed: int) -> KVCache:
        self.window = self.model.window = 1 + room // 4
        return self.new(room, page_size)

    def cell(self, n: int, position: int) -> tuple[int, int]:
        assert self.window is not None
        return n, position % self.window

    def fits(self, counts: list[int]) -> bool:
        return True


class PagedMachine(KVMachine):
    kind: ClassVar[type[PagedCache]] = PagedCache
    reaches: ClassVar[frozenset[str]] = frozenset(
        {
            "no room",
            "ragged",
            "cropped",
            "duplicated",
            "copied a shared page",
            "shared a full page that another may write to",
        }
    )
    times: ClassVar[int] = 8
    cache: PagedCache
    options: Mapping[str, Any] = MappingProxyType({})

    def new(self, room: int, page_size: int) -> KVCache:
        number = -(-room * self.batch // page_size) + 1
        sizes = (self.batch, number, page_size, self.kv_heads, self.key_dim, self.value_dim)
        return self.kind(*sizes, **self.options, dtype=self.dtype, device=self.device)

    def build(self, room: int, page_size: int, seed: int) -> KVCache:
        """Build from a new pool, or (odd seeds) over existing pages of any layout, in any order,
        shared by any sequences, and more of them than necessary.
        """
        if seed % 2 == 0:
            return self.new(room, page_size)
        number = -(-room * self.batch // page_size) + 1
        draw = random.Random(seed)
        table = [
            draw.sample(range(number), draw.randint(0, -(-number // 2))) for _ in range(self.batch)
        ]
        if draw.random() < 1 / 2:
            # Beams, which share the pages of the next tokens too.
            table = [table[0]] * self.batch
        length = [draw.randint(0, len(row) * page_size) for row in table]
        if draw.random() < 1 / 2:
            length = [tokens // page_size * page_size for tokens in length]
        layout = draw.choice([*OWN_MEMORY, _BETWEEN, _BETWEEN])
        # A tensor that is made in inference mode cannot be written to outside.
        with torch.inference_mode(False):
            lengths = self.told("length", length, False)
            k_pages, v_pages = (
                _placed(self.integers(seed, largest, number, page_size, self.kv_heads, dim), layout)
                for largest, dim in ((8, self.key_dim), (256, self.value_dim))
            )
        for n, (row, tokens) in enumerate(zip(table, length, strict=True)):
            self.begin(n, k_pages[row].flatten(0, 1)[:tokens], v_pages[row].flatten(0, 1)[:tokens])
        if self.shared_and_full(table, length, page_size):
            self.reached.add("shared a full page that another may write to")
        width = max(map(len, table)) + draw.randint(0, 1)
        rows = [row + [-1] * (width - len(row)) for row in table]
        block_table = torch.tensor(rows, dtype=torch.int32, device=self.device)
        cache = self.kind.from_pages(k_pages, v_pages, block_table, lengths)
        assert cache.k_pages.data_ptr() == k_pages.data_ptr(), "other pages than those given"
        self.use_up(block_table, lengths)
        return cache

    def shared_and_full(self, table: list[list[int]], length: list[int], page_size: int) -> bool:
        """Whether a full page is reserved for the next tokens of another sequence."""
        full = {p for row, n in zip(table, length, strict=True) for p in row[: n // page_size]}
        following = {
            row[n // page_size]
            for row, n in zip(table, length, strict=True)
            if n % page_size == 0 and n // page_size < len(row)
        }
        return bool(full & following)

    def cell(self, n: int, position: int) -> tuple[int, int]:
        page = int(self.cache.block_table[n, position // self.cache.page_size])
        return page, position % self.cache.page_size

    def fits(self, counts: list[int]) -> bool:
        """Each writer of a shared page except the last holder needs a copy; all else needs new
        pages.
        """
        size, table = self.cache.page_size, self.cache.block_table.tolist()
        holders = Counter(page for page in chain.from_iterable(table) if page >= 0)
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

    attention_options = (*KVMachine.attention_options, "num_splits")

    def kernel_options(self, seed: int) -> dict[str, Any]:
        return {"num_splits": (1, 1, 2, 5)[seed % 4]}

    def check_cropped(self, shorter: list[int]) -> None:
        table, length = self.cache.block_table.tolist(), self.length()
        for n in shorter:
            held = [page for page in table[n] if page >= 0]
            assert len(held) == -(-length[n] // self.cache.page_size), "pages past a crop are held"

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.copies_part()
        super().teardown()

    def copies_part(self) -> None:
        """At the end: two copies of a sequence that ends within a page get a token each."""
        size, lengths = self.cache.page_size, self.length()
        n = max(range(self.batch), key=lambda n: lengths[n] % size)
        kept = torch.zeros(self.batch, dtype=torch.int64)
        # A sequence that ends with its page gives up its last token.
        kept[n] = max(0, lengths[n] - (lengths[n] % size == 0))
        for each in (self.cache, self.model, self.everything):
            each.crop(kept)
            each.reorder(kept.new_tensor([n, n]))
        self.batch = 2
        self.update(Call(1, "all", [], 0, CONTIGUOUS, "grad"))
        self.tokens_lie_where_the_page_says()
        self.no_page_is_lost()

    def reset_is_a_new_start(self) -> None:
        self.cache.reset()
        assert self.cache.free_pages == len(self.cache.k_pages), "a reset has kept pages"
        super().reset_is_a_new_start()

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def no_page_is_lost(self) -> None:
        held = {page for row in self.cache.block_table.tolist() for page in row if page >= 0}
        assert len(held) + self.cache.free_pages == len(self.cache.k_pages)


class QuantizedMachine(PagedMachine):
    """Codes and scales of 8 bits: the tokens, as they are restored, are those of the model."""

    kind: ClassVar[type[Any]] = QuantizedCache
    reaches: ClassVar[frozenset[str]] = frozenset(
        {
            "no room",
            "ragged",
            "cropped",
            "duplicated",
            "copied a shared page",
            "given scales",
            "went on with a block",
        }
    )
    cache: QuantizedCache
    view_dtype = torch.float32

    def build(self, room: int, page_size: int, seed: int) -> KVCache:
        draw = random.Random(seed)
        block = draw.choice([1, 1, 2, 3, 4, 5])
        self.options = {"bits": draw.choice([torch.int8, torch.float8_e4m3fn]), "block": block}
        if block == 1 and draw.random() < 1 / 2:
            # Smaller than most tokens need: they saturate.
            self.options |= {
                "k_scale": draw.choice([2.0**-6, 2.0**-6, 0.0]),
                "v_scale": draw.choice([1.0, 1.0, 0.0]),
            }
            self.reached.add("given scales")
        # Values whose scales are 0, have subnormal quotients, or are large.
        self.factor = draw.choice([1.0, 1.0, 0.0, 2.0**-130, 2.0**80])
        if self.dtype == torch.float16:
            self.factor = min(self.factor, 1.0)
        self.model = reference.QuantizedCache(self.batch, **self.options)
        self.everything = reference.QuantizedCache(self.batch, **self.options)
        return self.new(room, page_size)

    def draw_tokens(self, tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().draw_tokens(tokens, seed)
        # Odd seeds have ordinary values beside the others.
        return q, k, v if seed % 2 else v * self.factor

    def stores(self) -> tuple[Tensor, ...]:
        scales = () if "k_scale" in self.options else (self.cache.k_scale, self.cache.v_scale)
        return (*super().stores(), *scales)

    def stored(self, page: int, row: int) -> tuple[Tensor, Tensor]:
        k_scale, v_scale = (x[page, row, :, None] for x in (self.cache.k_scale, self.cache.v_scale))
        key, value = super().stored(page, row)
        return key.float() * k_scale, value.float() * v_scale

    def append(
        self, k: Tensor, v: Tensor, offset: int | Tensor | None
    ) -> reference.cache.CacheView:
        block = self.options["block"]
        for old, count in zip(self.length(), self.counts(k, offset), strict=True):
            if count and old % block:
                self.reached.add("went on with a block")
        return super().append(k, v, offset)

    def counts(self, k: Tensor, offset: int | Tensor | None) -> list[int]:
        """How many tokens of each sequence are new."""
        numbers = k.shape[1] if offset is None else offset
        each: list[int] = torch.as_tensor(numbers).expand(len(k)).tolist()
        return each
