"""A cache whose sequences share a pool of pages."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from kernels.arguments import (
    bind_dims,
    check_one_dtype,
    check_size,
    check_tensors,
    describe,
    may_overlap,
)
from kernels.cache.counts import token_counts
from kernels.cache.kv import KVCache, Storage, Update, allocate
from kernels.softmax.paged import paged_attention
from kernels.tiles import cdiv


class PagedCache(KVCache):
    """Keys and values in pages of a few tokens each, which sequences take as they grow.

    The token at position p of sequence n is row p % page_size of page
    `block_table[n, p // page_size]` of `k_pages` [P, page_size, G, K] and `v_pages`
    [P, page_size, G, V]. Pages that nobody holds are on a free list; `crop`, `reset` and dropped
    sequences give theirs back.

    `attend` reads the pages where they lie, unless it needs a gradient. Sequences may share pages:
    `reorder` copies no token when it duplicates a sequence. A shared page is copied when one of its
    holders is about to write to it.

    Args:
        batch: number of sequences B.
        num_pages, page_size: the pool.
        kv_heads, key_dim, value_dim: G, K and V.
        dtype: float32, bfloat16 or float16.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention" (arXiv 2309.06180).
    """

    options = (*KVCache.options, "num_splits")
    # Whether `attention` could attend to a view of the pages.
    _gathers: ClassVar[bool] = True

    def __init__(
        self, batch: int, num_pages: int, page_size: int, kv_heads: int, key_dim: int,
        value_dim: int, **storage: Unpack[Storage],
    ) -> None:  # fmt: skip
        check_size("batch", batch)
        check_size("num_pages", num_pages)
        check_size("page_size", page_size)
        k_pages, v_pages = self._allocate(
            num_pages, page_size, kv_heads, key_dim, value_dim, **storage
        )
        check_one_dtype(dtype=k_pages)
        self._adopt(k_pages, v_pages, [[] for _ in range(batch)])

    def _allocate(self, *sizes: int, **storage: Unpack[Storage]) -> tuple[Tensor, Tensor]:
        return allocate(*sizes, **storage)

    @classmethod
    def from_pages(
        cls, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, length: int | Tensor
    ) -> "PagedCache":
        """A cache over pages that exist already, and that it will write to.

        Args:
            k_pages: [P, page_size, G, K], any slice or permutation of dense memory.
            v_pages: [P, page_size, G, V], likewise.
            block_table: Int[B, blocks], the pages of each sequence, then -1. Pages past the tokens
                of a sequence are reserved for it, until `reorder` frees them. Two sequences may
                share pages.
            length: Int[B], tokens of each sequence that the pages hold, or one number for all.

        Raises:
            TypeError: pages or a table that are no tensors, or a dtype that is not as above.
            ValueError: shapes that do not fit, memory that overlaps itself, a page outside [0, P)
                or twice in one sequence, a page behind a -1, too few pages for a length.
        """
        check_tensors(k_pages=k_pages, v_pages=v_pages)
        sizes = bind_dims(
            k_pages=(k_pages, "P page_size G K"),
            v_pages=(v_pages, "P page_size G V"),
        )
        check_one_dtype(k_pages=k_pages, v_pages=v_pages)
        for name, x in (("k_pages", k_pages), ("v_pages", v_pages)):
            if may_overlap(x):
                raise ValueError(
                    f"{name}: shape {list(x.shape)} with strides {x.stride()}, expected memory of "
                    "its own for every element"
                )
        for name, size in sizes.items():
            check_size(name, size)
        if not isinstance(block_table, Tensor) or block_table.dtype not in (
            torch.int32,
            torch.int64,
        ):
            raise TypeError(
                f"block_table: {describe(block_table)}, expected an int32 or int64 tensor"
            )
        if block_table.dim() != 2 or len(block_table) == 0:
            raise ValueError(f"block_table: {describe(block_table)}, expected [B, blocks]")

        rows = block_table.tolist()
        lengths = token_counts("length", length, len(rows))
        blocks = [_pages_of(n, row, sizes["P"]) for n, row in enumerate(rows)]
        for n, (tokens, held) in enumerate(zip(lengths, blocks, strict=True)):
            if tokens > len(held) * sizes["page_size"]:
                raise ValueError(
                    f"length: {tokens} for sequence {n}, expected at most the "
                    f"{len(held) * sizes['page_size']} tokens of its {len(held)} pages"
                )
        cache = cls.__new__(cls)
        cache._adopt(k_pages, v_pages, blocks)
        cache._length = lengths
        return cache

    def _adopt(self, k_pages: Tensor, v_pages: Tensor, blocks: list[list[int]]) -> None:
        KVCache.__init__(self, len(blocks), k_pages, v_pages)
        self._blocks = blocks
        self._holders = Counter(chain.from_iterable(blocks))
        self._free = [page for page in range(len(k_pages)) if page not in self._holders]
        self._device_table: Tensor | None = None

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.k_pages.shape[1]

    @property
    def free_pages(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free)

    @property
    def block_table(self) -> Tensor:
        """Int32[B, blocks], the pages of each sequence, then -1: a copy."""
        return self._table().clone()

    def crop(self, length: int | Tensor) -> None:
        """Keep the first `length` tokens of every sequence, and free the pages past them.

        A sequence that is not longer stays as it is, with its reserved pages.

        Raises:
            TypeError: `length` is no int and no int tensor.
            ValueError: it is negative.
        """
        before = self._length
        super().crop(length)
        for n, (old, new) in enumerate(zip(before, self._length, strict=True)):
            if new < old:
                held = self._pages_for(new)
                self._release(self._blocks[n][held:])
                self._blocks[n] = self._blocks[n][:held]
        self._device_table = None

    def reset(self) -> None:
        """Forget everything: every sequence has length 0 and no page."""
        self._adopt(self.k_pages, self.v_pages, [[] for _ in self._blocks])

    def _attend(
        self,
        q: Tensor,
        update: Update,
        attention: Callable[..., tuple[Tensor, Tensor | None]] | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        if attention is not None:
            return super()._attend(q, update, attention, options)
        given = (q, *options.values())
        differentiable = torch.is_grad_enabled() and any(
            isinstance(x, Tensor) and x.requires_grad for x in given
        )
        length, counts, _ = update.on_device
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
        # A call without queries checks the options before anything is written; it launches nothing.
        self._attend_in_place(q[:, :0], length, torch.zeros_like(ends), options)
        # The kernel that reads pages has no gradient: these options are its own.
        if differentiable and self._gathers:
            chosen = ("num_splits", "mode", "tile")
            options = {name: x for name, x in options.items() if name not in chosen}
            return super()._attend(q, update, None, options)
        self._write(update)
        return self._attend_in_place(q, length + counts, ends, options)

    def _attend_in_place(
        self, q: Tensor, lengths: Tensor, cu_seqlens: Tensor, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Causal attention of packed queries to the pages, which are read where they lie."""
        return paged_attention(
            q,
            self.k_pages,
            self.v_pages,
            self._table(),
            lengths,
            causal=True,
            cu_seqlens=cu_seqlens,
            **self._scales(),
            **options,
        )

    def _scales(self) -> dict[str, Tensor]:
        """The scales of 8-bit pages, as `paged_attention` takes them."""
        return {}

    def _pages_for(self, tokens: int) -> int:
        return cdiv(tokens, self.page_size)

    def _table(self) -> Tensor:
        if self._device_table is None:
            width = max(1, *(len(row) for row in self._blocks))
            rows = [row + [-1] * (width - len(row)) for row in self._blocks]
            self._device_table = torch.tensor(rows, dtype=torch.int32, device=self.k_pages.device)
        return self._device_table

    def _needed(self, counts: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
        """Blocks (sequence, block) to copy because they are shared, and sequences that need a
        further page, once per page."""
        copies, fresh = [], []
        left: Counter[int] = Counter()
        for n, (old, new) in enumerate(zip(self._length, counts, strict=True)):
            if new == 0:
                continue
            for block in range(old // self.page_size, self._pages_for(old + new)):
                if block >= len(self._blocks[n]):
                    fresh.append(n)
                    continue
                page = self._blocks[n][block]
                if self._holders[page] - left[page] > 1:
                    left[page] += 1
                    copies.append((n, block))
        return copies, fresh

    def _stores(self) -> tuple[Tensor, ...]:
        """All that a page has, [P, ...] each."""
        return self.k_pages, self.v_pages

    def _reserve(self, counts: list[int]) -> None:
        copies, fresh = self._needed(counts)
        if len(copies) + len(fresh) > len(self._free):
            raise ValueError(
                f"offset: {counts} tokens need {len(copies) + len(fresh)} more pages, "
                f"expected at most the {len(self._free)} free ones"
            )

    def _claim(self, counts: list[int]) -> None:
        copies, fresh = self._needed(counts)
        sources, targets = [], []
        for n, block in copies:
            sources.append(self._blocks[n][block])
            targets.append(self._take())
            self._blocks[n][block] = targets[-1]
        self._release(sources)
        for n in fresh:
            self._blocks[n].append(self._take())
        if copies:
            source = torch.tensor(sources, device=self.k_pages.device)
            target = torch.tensor(targets, device=self.k_pages.device)
            for store in self._stores():
                store[target] = store[source]
        if copies or fresh:
            self._device_table = None

    def _reorder(self, indices: list[int]) -> None:
        before = self._blocks
        # Reserved pages go back: two sequences would otherwise reserve the same one.
        self._blocks = [before[n][: self._pages_for(self._length[n])] for n in indices]
        self._holders.update(chain.from_iterable(self._blocks))
        self._release(chain.from_iterable(before))
        self._device_table = None

    def _take(self) -> int:
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def _release(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                del self._holders[page]
                self._free.append(page)


def _pages_of(n: int, row: list[int], num_pages: int) -> list[int]:
    """The pages of one row of a block table: those before the first -1."""
    pages = row[: row.index(-1)] if -1 in row else row
    if any(page != -1 for page in row[len(pages) :]):
        raise ValueError(f"block_table: {row} for sequence {n}, expected no page after -1")
    for page in pages:
        if not 0 <= page < num_pages:
            raise ValueError(
                f"block_table: page {page} of sequence {n}, expected a page in [0, {num_pages}), "
                "or -1 for none"
            )
    if len(set(pages)) < len(pages):
        raise ValueError(f"block_table: {row} for sequence {n}, expected each page once")
    return pages
