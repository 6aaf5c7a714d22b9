"""The base of all caches of keys and values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import Any, ClassVar, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from kernels.arguments import bind_dims, check_dtype, check_one_dtype, check_size, check_tensors
from kernels.cache import pages
from kernels.cache.counts import sequence_indices, token_counts
from kernels.softmax.attention import attention as softmax_attention


class CacheView(NamedTuple):
    """The keys and values that the tokens of one update attend to, packed sequence after sequence.

    Query `i` of a sequence sits at position `i + T_k - T_q` of its keys, so that
    `attention(q, k, v, causal=True, cu_seqlens=..., cu_seqlens_k=...)` is right as it stands,
    for q [1, S, H, K] packed by the same `cu_seqlens`.

    Args:
        k, v: keys [1, S, G, K] and values [1, S, G, V], copies: later updates do not touch them.
        cu_seqlens, cu_seqlens_k: Int32[N+1], boundaries of the new tokens and of the keys.
    """

    k: Tensor
    v: Tensor
    cu_seqlens: Tensor
    cu_seqlens_k: Tensor


class Storage(TypedDict, total=False):
    """`dtype`, by default float32, and `device`, by default that of torch."""

    dtype: torch.dtype
    device: torch.device | str | None


@dataclass(frozen=True)
class Update:
    """An update that fits: checked, and nothing written yet.

    Args:
        length: tokens that each sequence has seen.
        counts: new tokens of each.
        first: position of the first key that the next token of each attends to.
        on_device: Int64[3, N], these three.
        scales: of quantized k and v, float32 [B, T, G, 1].
    """

    k: Tensor
    v: Tensor
    length: list[int]
    counts: list[int]
    first: list[int]
    on_device: Tensor
    scales: tuple[Tensor, Tensor] | None = None


class KVCache(ABC):
    """Keys and values of the tokens seen so far, for one layer.

        update:   tokens ← tokens + new          attends to   tokens + new
        crop:     tokens ← tokens[:length]
        reorder:  tokens of n ← tokens of index[n]
        reset:    tokens ← []

    `length` counts the *tokens* that a sequence has seen, those too that a window has forgotten.
    It is the position of the next token, and the `seqlen_offsets` of its rotary embedding. Every
    layer has an object of its own; there is no counter for a layer to advance twice or to miss.

    A refused call raises before anything is written: storage and lengths stay what they were.
    Kernels read no storage beyond the tokens. Lengths and page tables live on the
    host, so that checking them waits for no GPU; a cache is therefore not meant to be traced by
    `torch.compile`, though the two ops that it launches can be.
    """

    # Whether a sequence has one page, which holds its last tokens.
    ring: ClassVar[bool] = False
    # First tokens that such a page holds besides.
    sinks: int = 0
    # Options of an attention that `attend` takes.
    options: ClassVar[tuple[str, ...]] = (
        "scale",
        "window",
        "softcap",
        "sink",
        "alibi_slopes",
        "return_lse",
        "mode",
        "tile",
    )

    def __init__(self, batch: int, k_pages: Tensor, v_pages: Tensor) -> None:
        self.k_pages = k_pages
        self.v_pages = v_pages
        self._length = [0] * batch

    @property
    def batch(self) -> int:
        """Number of sequences B."""
        return len(self._length)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the keys and values that it takes."""
        return self.k_pages.dtype

    @property
    def length(self) -> Tensor:
        """Tokens seen by each sequence, Int64[B] on the device of the cache."""
        return torch.tensor(self._length, device=self.k_pages.device)

    def update(self, k: Tensor, v: Tensor, offset: int | Tensor | None = None) -> CacheView:
        """Append new tokens and return what they attend to.

        Args:
            k, v: keys [B, T, G, K] and values [B, T, G, V] of the new tokens. They are copied, so
                the caller may overwrite them afterwards.
            offset: how many of the T *tokens* are real: one number, or Int[B]. The rest is padding
                on the right and never read. None: all T.

        Raises:
            TypeError: k or v has another dtype than the cache; `offset` is no int or int tensor.
            ValueError: shapes that do not fit each other or the cache; an `offset` below 0 or
                above T; no room for the tokens; gradients are wanted of k or v.
        """
        update = self._check(k, v, offset)
        view = self._view(update)
        self._write(update)
        return view

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        offset: int | Tensor | None = None,
        attention: Callable[..., tuple[Tensor, Tensor | None]] | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Append new tokens, then let each attend causally to itself and what came before.

        Args:
            q, k, v: queries [B, T, H, K], keys and values of the new tokens.
            offset: as in `update`.
            attention: `kernels.attention`, or a function with its arguments. A paged cache takes
                `kernels.paged_attention`, whose `mode`, `tile` and `num_splits` are checked but
                change nothing if it needs a gradient: then it takes `kernels.attention`.
            options: those of `options`: scale, window, softcap, sink, alibi_slopes, return_lse,
                mode, tile; num_splits of a paged cache. A sliding cache sets the window.

        Returns:
            o [B, T, H, V], and the LSE [B, H, T] if asked for. Padding rows are 0, their LSE -inf.

        Raises:
            TypeError, ValueError: as `update` and `attention` do, with nothing appended; another
                option than these.
        """
        self._check_options(options)
        check_tensors(q=q, k=k, v=v)
        bind_dims(q=(q, "B T H K"), k=(k, "B T G K"), v=(v, "B T G V"))
        return self._attend_padded(q, k, v, offset, attention, self._window_options(options))

    def _attend_padded(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offset: int | Tensor | None,
        attention: Callable[..., tuple[Tensor, Tensor | None]] | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """Pack the queries, attend, and put the rows back where they were."""
        update = self._check(k, v, offset)
        packed, lse = self._attend(pack(q, update.counts), update, attention, options)
        return unpack(packed, lse, update.counts, q.shape[1])

    def crop(self, length: int | Tensor) -> None:
        """Keep the first `length` tokens of every sequence; a shorter one stays as it is.

        Args:
            length: one number of tokens, or Int[B].

        Raises:
            TypeError: `length` is no int and no int tensor.
            ValueError: it is negative.
        """
        wanted = token_counts("length", length, self.batch)
        self._length = list(map(min, wanted, self._length))

    def reorder(self, index: Tensor) -> None:
        """Make sequence n what sequence `index[n]` was: beam search, or dropping sequences.

        Args:
            index: Int[M]; entries may repeat or be left out, and M may differ from B.

        Raises:
            TypeError: `index` is no int tensor.
            ValueError: it is empty, or names a sequence outside [0, B).
        """
        indices = sequence_indices(index, self.batch)
        self._reorder(indices)
        self._length = [self._length[n] for n in indices]

    def reset(self) -> None:
        """Forget everything: every sequence has length 0."""
        self._length = [0] * self.batch

    @abstractmethod
    def _table(self) -> Tensor:
        """Int32[N, blocks] on the device: the pages of each sequence."""

    @abstractmethod
    def _reserve(self, counts: list[int]) -> None:
        """Raise a ValueError if there is no room for `counts` more tokens. Changes nothing."""

    @abstractmethod
    def _reorder(self, indices: list[int]) -> None:
        """Reorder the storage, before the lengths."""

    @abstractmethod
    def _claim(self, counts: list[int]) -> None:
        """Make the room that `_reserve` found."""

    def _first_visible(self) -> list[int]:
        """Position of the first key that the next token attends to."""
        return [0] * self.batch

    def _check_options(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in self.options:
                raise ValueError(
                    f"{name}: given to a {type(self).__name__}, expected no option but "
                    f"{', '.join(self.options)}"
                )

    def _window_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return options

    def _check(self, k: Tensor, v: Tensor, offset: int | Tensor | None) -> Update:
        check_tensors(k=k, v=v)
        sizes = bind_dims(
            k_pages=(self.k_pages, "P page_size G K"),
            v_pages=(self.v_pages, "P page_size G V"),
            k=(k, f"{self.batch} T G K"),
            v=(v, f"{self.batch} T G V"),
        )
        check_dtype("k", k, self.dtype)
        check_dtype("v", v, self.dtype)
        for name, x in (("k", k), ("v", v)):
            if x.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{name}: requires grad, expected none: a cache keeps no graph, "
                    "decode under torch.no_grad()"
                )
        counts = self._counts(offset, sizes["T"])
        self._reserve(counts)
        length, first = list(self._length), self._first_visible()
        on_device = torch.tensor([length, counts, first], device=k.device)
        return Update(k, v, length, counts, first, on_device)

    def _counts(self, offset: int | Tensor | None, tokens: int) -> list[int]:
        """How many of the `tokens` of a call are real in each sequence."""
        counts = token_counts("offset", tokens if offset is None else offset, self.batch)
        if max(counts) > tokens:
            raise ValueError(f"offset: {max(counts)}, expected at most the T={tokens} tokens")
        return counts

    def _attend(
        self,
        q: Tensor,
        update: Update,
        attention: Callable[..., tuple[Tensor, Tensor | None]] | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """Let packed queries attend to what the cache holds and to the new tokens; append these."""
        view = self._view(update)
        found = (attention or softmax_attention)(
            q,
            view.k,
            view.v,
            causal=True,
            cu_seqlens=view.cu_seqlens,
            cu_seqlens_k=view.cu_seqlens_k,
            **options,
        )
        self._write(update)
        return found

    def _view(self, update: Update) -> CacheView:
        return self._gather(update, update.k, update.v, self.k_pages, self.v_pages)

    def _gather(
        self, update: Update, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor
    ) -> CacheView:
        """Pack what an update attends to, while a ring still has what the chunk replaces."""
        ends = map(add, update.length, update.counts)
        spans = [
            min(end, self.sinks) + max(0, end - first)
            for end, first in zip(ends, update.first, strict=True)
        ]
        boundaries = [accumulate(update.counts, initial=0), accumulate(spans, initial=0)]
        cu_seqlens, cu_seqlens_k = torch.tensor(
            [list(b) for b in boundaries], dtype=torch.int32, device=k.device
        )
        length, _, first = update.on_device
        keys, values = pages.gather(
            k, v, k_pages, v_pages, self._table(),
            first, length, cu_seqlens_k, sum(spans), max(spans), self.ring, self.sinks,
        )  # fmt: skip
        return CacheView(keys, values, cu_seqlens, cu_seqlens_k)

    def _write(self, update: Update) -> None:
        self._claim(update.counts)
        length, counts, _ = update.on_device
        pages.append(
            update.k, update.v, self.k_pages, self.v_pages, self._table(),
            length, counts, self.ring, self.sinks,
        )  # fmt: skip
        self._length = [old + new for old, new in zip(update.length, update.counts, strict=True)]


class SequenceOwnedCache(KVCache):
    """A cache where each sequence owns one page, of a fixed number of tokens.

    Args:
        batch: number of sequences B.
        capacity: tokens that a page has room for.
        kv_heads, key_dim, value_dim: G, K and V.
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        **storage: Unpack[Storage],
    ) -> None:
        check_size("capacity", capacity)
        check_size("batch", batch)
        k_pages, v_pages = allocate(batch, capacity, kv_heads, key_dim, value_dim, **storage)
        check_one_dtype(dtype=k_pages)
        super().__init__(batch, k_pages, v_pages)

    def _table(self) -> Tensor:
        return torch.arange(self.batch, dtype=torch.int32, device=self.k_pages.device)[:, None]

    @torch.inference_mode(False)
    def _reorder(self, indices: list[int]) -> None:
        index = torch.tensor(indices, device=self.k_pages.device)
        self.k_pages, self.v_pages = self.k_pages[index], self.v_pages[index]


# Storage outlives the inference_mode it may be made in: outside, it could not be written again.
@torch.inference_mode(False)
def allocate(
    pages: int,
    page_size: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Uninitialised pages for keys [P, page_size, G, K] and values [P, page_size, G, V]."""
    for name, size in (
        ("kv_heads", kv_heads),
        ("key_dim", key_dim),
        ("value_dim", value_dim),
    ):
        check_size(name, size)
    k_pages = torch.empty(pages, page_size, kv_heads, key_dim, dtype=dtype, device=device)
    v_pages = torch.empty(pages, page_size, kv_heads, value_dim, dtype=dtype, device=device)
    return k_pages, v_pages


def _rows(counts: list[int], tokens: int, device: torch.device) -> Tensor:
    """Rows of [B*T] that are no padding, in order."""
    real = torch.arange(tokens) < torch.tensor(counts)[:, None]
    return real.flatten().nonzero()[:, 0].to(device)


def pack(x: Tensor, counts: list[int]) -> Tensor:
    """[B, T, ...], padded on the right, to [1, sum(counts), ...]."""
    rows = x.flatten(0, 1)
    if min(counts) < x.shape[1]:
        rows = rows[_rows(counts, x.shape[1], x.device)]
    return rows[None]


def unpack(
    o: Tensor, lse: Tensor | None, counts: list[int], tokens: int
) -> tuple[Tensor, Tensor | None]:
    """Rows of attention where their queries were before `pack`: padding is 0, its LSE -inf."""
    if lse is not None:
        lse = _padded(lse[0].T, counts, tokens, -torch.inf).transpose(1, 2)
    return _padded(o[0], counts, tokens, 0.0), lse


def _padded(x: Tensor, counts: list[int], tokens: int, padding: float) -> Tensor:
    """[sum(counts), ...] to [B, T, ...], with `padding` behind each sequence."""
    if min(counts) < tokens:
        padded = x.new_full((len(counts) * tokens, *x.shape[1:]), padding)
        # In place: autocast on a CPU takes index_copy for its own, and refuses float16.
        x = padded.index_copy_(0, _rows(counts, tokens, x.device), x)
    return x.unflatten(0, (len(counts), tokens))
