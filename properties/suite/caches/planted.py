"""Caches with a planted bug, each with the machine that must notice it."""

from typing import Any

import torch
from torch import Tensor

from kernels.cache import (
    ContiguousCache,
    KVCache,
    PagedCache,
    QuantizedCache,
    RecurrentCache,
    SlidingWindowCache,
)
from properties.suite.caches.kinds import (
    ContiguousMachine,
    PagedMachine,
    QuantizedMachine,
    SlidingMachine,
)
from properties.suite.caches.recurrent import RecurrentMachine


class CountsHeads(ContiguousCache):
    """Advances by k.shape[2], the heads, instead of the tokens."""

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
    """Removes the tokens but keeps the count."""

    def reset(self) -> None:
        self.k_pages.zero_()
        self.v_pages.zero_()


class ReordersKeysOnly(ContiguousCache):
    """Reorders keys but not values."""

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
    """Writes one row too far."""

    def _write(self, update: Any) -> None:
        update.on_device[0] += 1
        super()._write(update)


class TruncatesFirst(SlidingWindowCache):
    """Cuts the window to the newest W keys before the chunk's first queries have attended."""

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
    """Crops to tokens whose rows hold later tokens by now."""

    def crop(self, length: int | Tensor) -> None:
        KVCache.crop(self, length)


class StaleWindowAfterReset(SlidingWindowCache):
    """Keeps the window's first position from before the reset."""

    def reset(self) -> None:
        self._length = [0] * self.batch


class ForgetsWhoForgot(SlidingWindowCache):
    """A reorder leaves behind how much each sequence has forgotten."""

    def _reorder(self, indices: list[int]) -> None:
        first = self._first
        super()._reorder(indices)
        self._first = (first * len(indices))[: len(indices)]


class TransposesTheTable(PagedCache):
    """Looks up block n of sequence j as block j of sequence n."""

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


class AttendsBeforeItsTokens(PagedCache):
    """Lengths of the attention do not count the new tokens."""

    def _attend_in_place(self, q: Tensor, lengths: Tensor, *rest: Any) -> Any:
        fewer = lengths if q.shape[1] == 0 else (lengths - 1).clamp(min=0)
        return super()._attend_in_place(q, fewer, *rest)


class BeginsBlocksAnew(QuantizedCache):
    """Each update sets the scale of the block that it goes on with."""

    def _scale(self, x: Tensor, scales: Tensor, update: Any) -> Tensor:
        length = update.on_device[0].clone()
        update.on_device[0] = 0
        try:
            return super()._scale(x, scales, update)
        finally:
            update.on_device[0] = length


class ScalesPadding(QuantizedCache):
    """The scale of a block covers the padding behind its tokens."""

    def _scale(self, x: Tensor, scales: Tensor, update: Any) -> Tensor:
        update.on_device[1] = x.shape[1]
        try:
            return super()._scale(x, scales, update)
        finally:
            update.on_device[1] = torch.tensor(update.counts)


class CopiesCodesAlone(QuantizedCache):
    """A shared page is copied without its scales."""

    def _stores(self) -> tuple[Tensor, ...]:
        return super()._stores()[:2]


class SwapsScales(QuantizedCache):
    """Attention takes the scales of the keys for those of the values."""

    def _scales(self) -> dict[str, Tensor]:
        return {"k_scale": self.v_scale, "v_scale": self.k_scale}


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


class KeepsTheCheckpointOnReset(RecurrentCache):
    """States from before a reset can be rolled back to."""

    def reset(self) -> None:
        kept = self._depth, self._past
        super().reset()
        self._depth, self._past = kept


class RollsBackLayerByLayer(RecurrentCache):
    """A refused rollback has taken back the layers before the one that refuses."""

    def rollback(self, tokens: int | Tensor) -> None:
        states, lengths, past = whole = self._states, self._length, self._past
        try:
            for layer in range(self.layers):
                self._states, self._length = [states[layer]], [lengths[layer]]
                self._past = [past[layer]]
                super().rollback(tokens)
                states[layer], lengths[layer] = self._states[0], self._length[0]
        finally:
            self._states, self._length, self._past = whole
        self._past = [[] for _ in past]


class ReordersThePresentOnly(RecurrentCache):
    """A rollback after a reorder finds the states of other sequences."""

    def reorder(self, index: Tensor) -> None:
        past = self._past
        super().reorder(index)
        self._past = past


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
        ForgetsWhoForgot,
    ),
    PagedMachine: (
        TransposesTheTable,
        WritesToSharedPages,
        LosesPages,
        AttendsBeforeItsTokens,
    ),
    QuantizedMachine: (BeginsBlocksAnew, ScalesPadding, CopiesCodesAlone, SwapsScales),
    RecurrentMachine: (
        OneCounter,
        ResetsStatesOnly,
        KeepsTheCheckpointOnReset,
        RollsBackLayerByLayer,
        ReordersThePresentOnly,
    ),
}
