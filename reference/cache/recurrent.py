"""The cache of recurrences and convolutions: one state a layer, whatever the number of tokens."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from reference.arguments import describe
from reference.cache.counts import check_size, sequence_indices, token_counts


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
    are taken back by `rollback`, for which `checkpoint` keeps the states before each update.

    Args:
        batch: number of sequences N.
        layers: number of layers.

    Source: Katharopoulos et al., "Transformers are RNNs" (arXiv 2006.16236).
    """

    def __init__(self, batch: int, layers: int = 1) -> None:
        check_size("batch", batch)
        check_size("layers", layers)
        self.states: list[Tensor | None] = [None] * layers
        self.seen = [[0] * batch for _ in range(layers)]
        self.kept = 0
        self.past: list[list[tuple[Tensor | None, list[int]]]] = [[] for _ in range(layers)]

    @property
    def length(self) -> Int[Tensor, " N"]:
        """Tokens seen by each sequence, Int64[N].

        Raises:
            ValueError: the layers have not seen equally many.
        """
        for layer, seen in enumerate(self.seen):
            if seen != self.seen[0]:
                raise ValueError(
                    f"length: layer {layer} has seen {seen} tokens and layer 0 {self.seen[0]}, "
                    "expected equally many; ask for layer_length(layer)"
                )
        return torch.tensor(self.seen[0])

    def layer_length(self, layer: int) -> Int[Tensor, " N"]:
        """Tokens that one layer has seen of each sequence, Int64[N]."""
        return torch.tensor(self.seen[self._check_layer(layer)])

    def state(self, layer: int = 0) -> Float[Tensor, "N *dims"] | None:
        """The state of a layer; None before its first token."""
        return self.states[self._check_layer(layer)]

    def update(
        self,
        state: Float[Tensor, "N *dims"],
        layer: int = 0,
        *,
        offset: int | Int[Tensor, " N"],
    ) -> Float[Tensor, "N *dims"]:
        """Replace a layer's state by the one after `offset` more tokens, and return it.

        Args:
            state: the final state of the op; with the rank and dims of the layer's state, if it
                has one.
            layer: which layer, in [0, layers).
            offset: number of new *tokens*, one for all sequences or one each. It has no default:
                nothing in the shape of a state tells it.

        Raises:
            TypeError: `state` is no tensor, or `offset` no int and no integer tensor.
            ValueError: another batch or shape than before, no such layer, a negative `offset`,
                2^63 tokens or more in all.
        """
        layer = self._check_layer(layer)
        batch = len(self.seen[layer])
        if not isinstance(state, Tensor):
            raise TypeError(f"state: {describe(state)}, expected a tensor [N, ...]")
        if state.dim() < 2 or state.shape[0] != batch:
            raise ValueError(f"state: shape {list(state.shape)}, expected [{batch}, ...]")
        old = self.states[layer]
        if old is not None and (state.shape != old.shape or state.dtype != old.dtype):
            raise ValueError(
                f"state: {state.dtype} {list(state.shape)}, expected {old.dtype} "
                f"{list(old.shape)} as before"
            )
        counts = token_counts("offset", offset, batch)
        after = [s + c for s, c in zip(self.seen[layer], counts, strict=True)]
        if max(after) >= 2**63:
            raise ValueError(f"offset: {max(counts)}, expected fewer than 2^63 tokens in all")
        # With a checkpoint of no updates there is no past.
        past = [*self.past[layer], (old, self.seen[layer])]
        self.past[layer] = past[len(past) - min(len(past), self.kept) :]
        self.states[layer] = state
        self.seen[layer] = after
        return state

    def crop(self, length: int | Int[Tensor, " N"]) -> None:
        """Keep the first `length` tokens: refused unless every sequence has no more than that."""
        lengths = token_counts("length", length, len(self.seen[0]))
        for seen in self.seen:
            if any(kept < had for kept, had in zip(lengths, seen, strict=True)):
                raise ValueError(
                    f"length: {lengths}, expected at least the {seen} tokens seen; a recurrent "
                    "state cannot forget tokens, reset() or run the prefix again"
                )

    def checkpoint(self, updates: int) -> None:
        """From now on, be ready to take back this many updates of each layer, none before now.

        Raises:
            TypeError: `updates` is no int.
            ValueError: it is negative.
        """
        self.kept = check_size("updates", updates, least=0)
        self.past = [[] for _ in self.past]

    def rollback(self, tokens: int | Int[Tensor, " N"]) -> None:
        """Take back the last tokens of each sequence in every layer; the checkpoint is then here.

        Args:
            tokens: how many, one number for all sequences or one each. 0 is always allowed;
                otherwise some update since the checkpoint must have begun there.

        Raises:
            TypeError: `tokens` is no int and no integer tensor.
            ValueError: it is negative, or no state is kept of that place. Nothing has changed then.
        """
        counts = token_counts("tokens", tokens, len(self.seen[0]))
        found: list[list[tuple[Tensor | None, int]]] = []
        for layer, seen in enumerate(self.seen):
            rows = []
            for n, count in enumerate(counts):
                places = [*self.past[layer], (self.states[layer], seen)]
                of = [state for state, lengths in places if lengths[n] == seen[n] - count]
                if not of:
                    raise ValueError(
                        f"tokens: {count} of sequence {n}, expected a number after which a state "
                        f"of layer {layer} is kept"
                    )
                # The last one, if tokens were added in none.
                rows.append((of[-1], n))
            found.append(rows)
        for layer, rows in enumerate(found):
            given = next((state for state, _ in rows if state is not None), None)
            # A sequence without a state starts from 0.
            self.states[layer] = (
                given
                if given is None
                else torch.stack(
                    [torch.zeros_like(given[n]) if state is None else state[n] for state, n in rows]
                )
            )
            self.seen[layer] = [s - c for s, c in zip(self.seen[layer], counts, strict=True)]
        self.checkpoint(self.kept)

    def reorder(self, index: Int[Tensor, " M"]) -> None:
        """Make sequence n what sequence `index[n]` was, in every layer, its past included."""
        indices = sequence_indices(index, len(self.seen[0]))

        def reordered(state: Tensor | None, seen: list[int]) -> tuple[Tensor | None, list[int]]:
            return None if state is None else state[indices], [seen[n] for n in indices]

        now = [reordered(*both) for both in zip(self.states, self.seen, strict=True)]
        self.states, self.seen = [state for state, _ in now], [seen for _, seen in now]
        self.past = [[reordered(*both) for both in past] for past in self.past]

    def reset(self) -> None:
        """Forget everything, in every layer, the checkpoint too."""
        self.checkpoint(0)
        self.states = [None] * len(self.states)
        self.seen = [[0] * len(seen) for seen in self.seen]

    def _check_layer(self, layer: int) -> int:
        # Not left to the list: a negative index would name another layer.
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise TypeError(f"layer: {describe(layer)}, expected an int")
        if not 0 <= layer < len(self.states):
            raise ValueError(f"layer: {layer}, expected a layer in [0, {len(self.states)})")
        return layer
