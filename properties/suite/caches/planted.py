"""Caches with a planted bug, each with the machine that must notice it."""

from typing import Any

import torch
from torch import Tensor

import kernels
from kernels.cache.counts import token_counts
from properties.suite.caches.cross import CrossAttentionMachine
from properties.suite.caches.decoding import DecodingMachine
from properties.suite.caches.kinds import (
    ContiguousMachine,
    PagedMachine,
    QuantizedMachine,
    SlidingMachine,
)
from properties.suite.caches.latent import LatentMachine
from properties.suite.caches.recurrent import RecurrentMachine
from properties.suite.caches.streaming import StreamingMachine


class CountsHeads(kernels.ContiguousCache):
    """Advances by k.shape[2], the heads, instead of the tokens."""

    def _write(self, update: Any) -> None:
        super()._write(update)
        self._length = [old + update.k.shape[2] for old in update.length]


class AnswersInFloat64(kernels.ContiguousCache):
    """Returns outputs in float64, whatever the dtype of the queries."""

    def attend(self, *args: Any, **options: Any) -> Any:
        o, lse = super().attend(*args, **options)
        return o.double(), lse


class ChecksTheCapacityLate(kernels.ContiguousCache):
    """Lengths advance before the capacity is checked."""

    def _reserve(self, counts: list[int]) -> None:
        before = self._length
        self._length = [a + b for a, b in zip(before, counts, strict=True)]
        super()._reserve([0] * len(counts))
        self._length = before


class KeepsLengthOnReset(kernels.ContiguousCache):
    """Removes the tokens but keeps the count."""

    def reset(self) -> None:
        self.k_pages.zero_()
        self.v_pages.zero_()


class ReordersKeysOnly(kernels.ContiguousCache):
    """Reorders keys but not values."""

    def _reorder(self, indices: list[int]) -> None:
        values = self.v_pages
        super()._reorder(indices)
        if len(indices) == len(values):
            self.v_pages = values


class ReadsPadding(kernels.ContiguousCache):
    """Ragged appends take every sequence to be as long as the longest."""

    def _check(self, k: Tensor, v: Tensor, offset: Any) -> Any:
        longest = None if offset is None else int(torch.as_tensor(offset).max())
        return super()._check(k, v, longest)


class RingOffByOne(kernels.SlidingWindowCache):
    """Writes one row too far."""

    def _write(self, update: Any) -> None:
        update.on_device[0] += 1
        super()._write(update)


class TruncatesFirst(kernels.SlidingWindowCache):
    """Cuts the window to the newest W keys before the chunk's first queries have attended."""

    def _first_visible(self) -> list[int]:
        return self._cut

    def _check(self, k: Tensor, v: Tensor, offset: Any) -> Any:
        tokens = k.shape[1] if isinstance(k, Tensor) and k.dim() == 4 else 0
        self._cut = [min(n, max(0, n + tokens - self.window)) for n in self._length]
        return super()._check(k, v, offset)


class SaturatingLength(kernels.SlidingWindowCache):
    """The length stops at the window."""

    @property
    def length(self) -> Tensor:
        return super().length.clamp(max=self.window)


class CropsTheForgotten(kernels.SlidingWindowCache):
    """Crops to tokens whose rows hold later tokens by now."""

    def crop(self, length: int | Tensor) -> None:
        kernels.KVCache.crop(self, length)


class RefusesToForgetAll(kernels.SlidingWindowCache):
    """Refuses a crop for a forgotten token that no window would reach."""

    def crop(self, length: int | Tensor) -> None:
        wanted = token_counts("length", length, self.batch)
        for new, old, first in zip(wanted, self._length, self._first, strict=True):
            if new < old and max(0, new - (self.window - 1)) < first:
                raise ValueError(f"length: {new}")
        super().crop(length)


class FindsTheForgottenByAnIdleStep(kernels.SlidingWindowCache):
    """Reckons the first position anew in every update, also after a crop."""

    def _claim(self, counts: list[int]) -> None:
        ends = (old + new for old, new in zip(self._length, counts, strict=True))
        self._first = [max(self.sinks, end - self.window) for end in ends]


class StaleWindowAfterReset(kernels.SlidingWindowCache):
    """Keeps the window's first position from before the reset."""

    def reset(self) -> None:
        self._length = [0] * self.batch


class ForgetsWhoForgot(kernels.SlidingWindowCache):
    """A reorder leaves behind how much each sequence has forgotten."""

    def _reorder(self, indices: list[int]) -> None:
        first = self._first
        super()._reorder(indices)
        self._first = (first * len(indices))[: len(indices)]


class TransposesTheTable(kernels.PagedCache):
    """Looks up block n of sequence j as block j of sequence n."""

    def _view(self, update: Any) -> Any:
        table = self._table()
        self._device_table = table.T.reshape(table.shape).clamp(min=0).contiguous()
        view = super()._view(update)
        self._device_table = table
        return view


class WritesToSharedPages(kernels.PagedCache):
    """A duplicated sequence writes into the pages of its twin."""

    def _needed(self, counts: list[int]) -> Any:
        return [], super()._needed(counts)[1]


class LosesPages(kernels.PagedCache):
    """Cropped pages do not return to the free list."""

    def crop(self, length: int | Tensor) -> None:
        free = list(self._free)
        super().crop(length)
        self._free = free


class AttendsBeforeItsTokens(kernels.PagedCache):
    """Lengths of the attention do not count the new tokens."""

    def _attend_in_place(self, q: Tensor, lengths: Tensor, *rest: Any) -> Any:
        fewer = lengths if q.shape[1] == 0 else (lengths - 1).clamp(min=0)
        return super()._attend_in_place(q, fewer, *rest)


class BeginsBlocksAnew(kernels.QuantizedCache):
    """Each update sets the scale of the block that it goes on with."""

    def _scale(self, x: Tensor, scales: Tensor, update: Any) -> Tensor:
        length = update.on_device[0].clone()
        update.on_device[0] = 0
        try:
            return super()._scale(x, scales, update)
        finally:
            update.on_device[0] = length


class ScalesPadding(kernels.QuantizedCache):
    """The scale of a block covers the padding behind its tokens."""

    def _scale(self, x: Tensor, scales: Tensor, update: Any) -> Tensor:
        update.on_device[1] = x.shape[1]
        try:
            return super()._scale(x, scales, update)
        finally:
            update.on_device[1] = torch.tensor(update.counts)


class CopiesCodesAlone(kernels.QuantizedCache):
    """A shared page is copied without its scales."""

    def _stores(self) -> tuple[Tensor, ...]:
        return super()._stores()[:2]


class SwapsScales(kernels.QuantizedCache):
    """Attention takes the scales of the keys for those of the values."""

    def _scales(self) -> dict[str, Tensor]:
        return {"k_scale": self.v_scale, "v_scale": self.k_scale}


class ScalesByTheLatent(kernels.LatentCache):
    """The default scale is that of the absorbed query, which has R channels and not K."""

    def _attend_in_place(self, q: Tensor, lengths: Tensor, ends: Tensor, options: Any) -> Any:
        return super()._attend_in_place(q, lengths, ends, options | {"scale": None})


class ForgetsRotaryKeys(kernels.LatentCache):
    """A shared page is copied without its rotary keys."""

    def _stores(self) -> tuple[Tensor, ...]:
        return (self.k_pages,)


class ReadsLatentsOfOneStride(kernels.LatentCache):
    """The absorbed form takes rotary keys for the first latents."""

    def _attend_in_place(self, *given: Any) -> Any:
        pool, self.pool = self.pool, self.pool.roll(1, -1)
        try:
            return super()._attend_in_place(*given)
        finally:
            self.pool = pool


class EvictsSinks(kernels.StreamingCache):
    """The ring goes over the sinks."""

    def _write(self, update: Any) -> None:
        sinks, self.sinks = self.sinks, 0
        super()._write(update)
        self.sinks = sinks


class ForgetsOneEarly(kernels.StreamingCache):
    """The token that the next one replaces is gone before it has to be."""

    def _first_visible(self) -> list[int]:
        return [max(self.sinks, length + 2 - self.window) for length in self._length]


class RotatesByTheStream(kernels.StreamingCache):
    """Places of a full cache go on with the stream, as far as the tables do."""

    def attend(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, **given: Any
    ) -> Any:
        shift = max(0, min(max(self._length), len(cos) - self.sinks - self.window))
        return super().attend(q, k, v, cos.roll(-shift, 0), sin.roll(-shift, 0), **given)


class StaleRingAfterReset(kernels.StreamingCache):
    """Keeps the first position of the ring from before the reset."""

    def reset(self) -> None:
        self._length = [0] * self.batch


class WritesAgain(kernels.CrossAttentionCache):
    """A second update appends to the first."""

    def _reserve(self, counts: list[int]) -> None:
        kernels.PagedCache._reserve(self, counts)


class StaysWrittenAfterReset(kernels.CrossAttentionCache):
    """Nothing can be written after a reset."""

    def reset(self) -> None:
        kernels.PagedCache.reset(self)


class AttendsCausally(kernels.CrossAttentionCache):
    """Queries do not see the keys behind their own number."""

    def attend(self, q: Tensor, **given: Any) -> Any:  # type: ignore[override]
        length = self._length
        if isinstance(q, Tensor) and self._written:
            self._length = [min(old, q.shape[1]) for old in length]
        try:
            return super().attend(q, **given)
        finally:
            self._length = length


class OneCounter(kernels.RecurrentCache):
    """All layers advance one counter."""

    def update(self, state: Tensor, layer: int = 0, *, offset: int | Tensor) -> Tensor:
        state = super().update(state, layer, offset=offset)
        self._length = [self._length[layer]] * self.layers
        return state


class ResetsStatesOnly(kernels.RecurrentCache):
    """The count survives a reset."""

    def reset(self) -> None:
        self._states = [None] * self.layers


class KeepsTheCheckpointOnReset(kernels.RecurrentCache):
    """States from before a reset can be rolled back to."""

    def reset(self) -> None:
        kept = self._depth, self._past
        super().reset()
        self._depth, self._past = kept


class KeepsAPlaceOfARefusedUpdate(kernels.RecurrentCache):
    """A refused offset has taken the place of the oldest state that a rollback needs."""

    def update(self, state: Tensor, layer: int = 0, *, offset: int | Tensor) -> Tensor:
        try:
            return super().update(state, layer, offset=offset)
        except (TypeError, ValueError):
            if self._depth and type(layer) is int and 0 <= layer < self.layers:
                past = self._past[layer]
                past.append((self._states[layer], self._length[layer]))
                del past[: -self._depth]
            raise


class RollsBackLayerByLayer(kernels.RecurrentCache):
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


class ReordersThePresentOnly(kernels.RecurrentCache):
    """A rollback after a reorder finds the states of other sequences."""

    def reorder(self, index: Tensor) -> None:
        past = self._past
        super().reorder(index)
        self._past = past


class KeepsTheConvolution(kernels.RecurrentCache):
    """A rollback takes back recurrences alone."""

    def rollback(self, tokens: int | Tensor) -> None:
        convolution = self._states[0]
        super().rollback(tokens)
        self._states[0] = convolution


class ReordersRecurrencesAlone(kernels.RecurrentCache):
    """A reorder leaves convolutions where they are."""

    def reorder(self, index: Tensor) -> None:
        convolution = self._states[0]
        super().reorder(index)
        if convolution is not None and len(convolution) == len(index):
            self._states[0] = convolution


class KeepsTheNewestState(kernels.RecurrentCache):
    """States are those after the first update past the place that is rolled back to."""

    def rollback(self, tokens: int | Tensor) -> None:
        whole = [[*past] for past in self._past]
        now = list(zip(self._states, self._length, strict=True))
        for past, (state, _) in zip(self._past, now, strict=True):
            later = [place[0] for place in past[1:]] + [state]
            past[:] = [(s, length) for s, (_, length) in zip(later, past, strict=True)]
        try:
            super().rollback(tokens)
        except ValueError:
            self._past = whole
            raise


PLANTED = {
    ContiguousMachine: (
        CountsHeads,
        AnswersInFloat64,
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
        RefusesToForgetAll,
        FindsTheForgottenByAnIdleStep,
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
    LatentMachine: (ScalesByTheLatent, ForgetsRotaryKeys, ReadsLatentsOfOneStride),
    CrossAttentionMachine: (WritesAgain, StaysWrittenAfterReset, AttendsCausally),
    StreamingMachine: (EvictsSinks, ForgetsOneEarly, RotatesByTheStream, StaleRingAfterReset),
    DecodingMachine: (KeepsTheConvolution, ReordersRecurrencesAlone, KeepsTheNewestState),
    RecurrentMachine: (
        OneCounter,
        ResetsStatesOnly,
        KeepsTheCheckpointOnReset,
        KeepsAPlaceOfARefusedUpdate,
        RollsBackLayerByLayer,
        ReordersThePresentOnly,
    ),
}
