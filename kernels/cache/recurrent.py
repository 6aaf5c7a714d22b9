"""The cache of recurrences and convolutions: one state a layer, whatever the number of tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import check_dtype, check_size, describe
from kernels.cache.counts import sequence_indices, token_counts

# A state, and how many tokens of each sequence it has seen.
_Place = tuple[Tensor | None, list[int]]
_NOWHERE: Any = object()


def _rows(places: Sequence[Tensor | None]) -> Tensor | None:
    """Row n of the n-th state, and 0 where there was none yet; None if there is no state at all."""
    given = next((state for state in places if state is not None), None)
    if given is None:
        return None
    if all(state is given for state in places):
        return given
    nothing = torch.zeros_like(given[0])
    rows = [nothing if state is None else state[n] for n, state in enumerate(places)]
    return torch.stack(rows)


class RecurrentCache:
    """The states of a model's recurrences and convolutions, and how many tokens each has seen.

        update:   state of layer ← state, length of layer ← length of layer + offset
        reorder:  state, length of n ← those of index[n], in every layer
        reset:    state ← None, length ← 0, in every layer
        rollback: state, length of n ← those after all but the last tokens[n] tokens

    A layer has one state: [N, H, K, V] of a recurrence, [N, W-1, D] of a short convolution. A layer
    of the model that has both takes two.

    Every layer counts its own tokens. In the middle of a forward pass the first layers have
    advanced and the others not; `length`, which is one answer for all layers, then refuses to give
    one rather than take some layer's, and `layer_length` tells.

    A state sums its tokens up and cannot forget the last of them: `crop` refuses to. Draft tokens
    are taken back by `rollback`, for which `checkpoint` keeps the states before each update. States
    are kept as they are given, with their autograd graph if they have one, and never written to.

    Args:
        batch: number of sequences N.
        layers: number of layers.

    Source: Katharopoulos et al., "Transformers are RNNs" (arXiv 2006.16236).
    """

    def __init__(self, batch: int, layers: int = 1) -> None:
        check_size("batch", batch)
        check_size("layers", layers)
        self._states: list[Tensor | None] = [None] * layers
        self._length = [[0] * batch for _ in range(layers)]
        self._depth = 0
        self._past: list[list[_Place]] = [[] for _ in range(layers)]

    @property
    def batch(self) -> int:
        """Number of sequences N."""
        return len(self._length[0])

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self._states)

    @property
    def length(self) -> Tensor:
        """Tokens seen by each sequence, Int64[N].

        Raises:
            ValueError: the layers have not seen equally many.
        """
        for layer, length in enumerate(self._length):
            if length != self._length[0]:
                raise ValueError(
                    f"length: layer {layer} has seen {length} tokens and layer 0 "
                    f"{self._length[0]}, expected equally many; ask for layer_length(layer)"
                )
        return self.layer_length(0)

    def layer_length(self, layer: int) -> Tensor:
        """Tokens that one layer has seen of each sequence, Int64[N] on the device of its state.

        Raises:
            TypeError, ValueError: no such layer.
        """
        layer = self._check_layer(layer)
        state = self._states[layer]
        return torch.tensor(self._length[layer], device=None if state is None else state.device)

    def state(self, layer: int = 0) -> Tensor | None:
        """The state [N, ...] of a layer, float32; None before its first update.

        Raises:
            TypeError, ValueError: no such layer.
        """
        return self._states[self._check_layer(layer)]

    def update(self, state: Tensor, layer: int = 0, *, offset: int | Tensor) -> Tensor:
        """Replace a layer's state by the one after `offset` more tokens, and return it.

        Args:
            state: the final state [N, ...] of the op, float32; with the dims and device of the
                layer's state, if it has one.
            layer: which layer, in [0, layers).
            offset: number of new *tokens*, or Int[N]. It has no default: nothing in the shape of a
                state tells it.

        Raises:
            TypeError: `state` is no float32 tensor, or `offset` no int and no int tensor.
            ValueError: another shape or device than before, no such layer, a negative `offset`,
                2^63 tokens or more in all.

        A refused call changes nothing.
        """
        layer = self._check_layer(layer)
        if not isinstance(state, Tensor):
            raise TypeError(f"state: {describe(state)}, expected a tensor [N, ...]")
        old = self._states[layer]
        if state.dim() < 2 or state.shape[0] != self.batch:
            raise ValueError(f"state: {describe(state)}, expected [{self.batch}, ...]")
        check_dtype("state", state, torch.float32)
        if old is not None and (state.shape != old.shape or state.device != old.device):
            raise ValueError(
                f"state: {describe(state)} on {state.device}, expected {describe(old)} on "
                f"{old.device} as before"
            )
        counts = token_counts("offset", offset, self.batch)
        length = [a + b for a, b in zip(self._length[layer], counts, strict=True)]
        if max(length) >= 2**63:
            raise ValueError(f"offset: {max(counts)}, expected fewer than 2^63 tokens in all")
        if self._depth:
            past = self._past[layer]
            past.append((old, self._length[layer]))
            del past[: -self._depth]
        self._states[layer] = state
        self._length[layer] = length
        return state

    def crop(self, length: int | Tensor) -> None:
        """Keep the first `length` tokens: refused unless no layer has seen more than that.

        Raises:
            TypeError: `length` is no int and no int tensor.
            ValueError: it is negative, or some sequence would have to forget tokens.
        """
        wanted = token_counts("length", length, self.batch)
        for seen in self._length:
            if any(new < old for new, old in zip(wanted, seen, strict=True)):
                raise ValueError(
                    f"length: {wanted}, expected at least the {seen} tokens seen: a recurrent "
                    "state cannot forget tokens, so reset() and run the prefix again"
                )

    def reorder(self, index: Tensor) -> None:
        """Make sequence n what sequence `index[n]` was, in every layer, see `KVCache.reorder`."""
        indices = sequence_indices(index, self.batch)

        def reordered(state: Tensor | None) -> Tensor | None:
            return None if state is None else state[indices]

        def counts(length: list[int]) -> list[int]:
            return [length[n] for n in indices]

        self._states = [reordered(state) for state in self._states]
        self._length = [counts(length) for length in self._length]
        self._past = [
            [(reordered(state), counts(length)) for state, length in past] for past in self._past
        ]

    def checkpoint(self, updates: int) -> None:
        """From now on, keep what `rollback` needs to take back this many updates of each layer.

        Args:
            updates: at least 0; what was kept before is dropped.

        Raises:
            TypeError: `updates` is no int.
            ValueError: it is negative.
        """
        self._depth = check_size("updates", updates, least=0)
        self._past = [[] for _ in self._past]

    def rollback(self, tokens: int | Tensor) -> None:
        """Take back the last tokens of each sequence in every layer; the checkpoint is then here.

        Args:
            tokens: how many, or Int[N]. 0 is always allowed; otherwise an update since the
                checkpoint must have begun there.

        Raises:
            TypeError: `tokens` is no int and no int tensor.
            ValueError: it is negative, or no state is kept of that place. Nothing has changed then.
        """
        counts = token_counts("tokens", tokens, self.batch)
        states, lengths = [], []
        for layer, length in enumerate(self._length):
            wanted = [seen - count for seen, count in zip(length, counts, strict=True)]
            places = [*self._past[layer], (self._states[layer], length)]
            rows = []
            for n, target in enumerate(wanted):
                # The latest, as an update may have added no token.
                place = next((s for s, seen in reversed(places) if seen[n] == target), _NOWHERE)
                if place is _NOWHERE:
                    raise ValueError(
                        f"tokens: {counts[n]} of sequence {n}, expected a number after which a "
                        f"state of layer {layer} is kept"
                    )
                rows.append(place)
            states.append(_rows(rows))
            lengths.append(wanted)
        self._states, self._length = states, lengths
        self.checkpoint(self._depth)

    def reset(self) -> None:
        """Forget everything, in every layer, the checkpoint too."""
        self.checkpoint(0)
        self._states = [None] * self.layers
        self._length = [[0] * self.batch for _ in self._length]

    def _check_layer(self, layer: int) -> int:
        # Not left to the list: a negative index would name another layer.
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise TypeError(f"layer: {describe(layer)}, expected an int")
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer: {layer}, expected a layer in [0, {self.layers})")
        return layer
