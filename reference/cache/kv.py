"""The cache of softmax attention, as a list of tokens."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from reference.cache.counts import check_size, sequence_indices, token_counts
from reference.softmax.attention import attention as softmax_attention


class CacheView(NamedTuple):
    """The keys and values that the tokens of one update attend to, packed sequence after sequence.

    Query `i` of a sequence sits at position `i + T_k - T_q` of its keys, so that
    `attention(q, k, v, causal=True, cu_seqlens=..., cu_seqlens_k=...)` is right as it stands.
    """

    k: Float[Tensor, "1 S G K"]
    v: Float[Tensor, "1 S G V"]
    cu_seqlens: Int[Tensor, " N+1"]
    cu_seqlens_k: Int[Tensor, " N+1"]


class TokenLists:
    """A list of tokens (key, value) for each sequence, and how many it has forgotten.

    With a window W, the next token needs the first tokens (sinks) and the W - 1 before it.
    """

    sinks: int = 0
    window: int | None = None
    # Options of an attention that `attend` takes.
    options: ClassVar[tuple[str, ...]] = (
        "scale",
        "window",
        "softcap",
        "sink",
        "alibi_slopes",
        "return_lse",
    )

    def __init__(self, batch: int) -> None:
        check_size("batch", batch)
        self.tokens: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(batch)]
        self.forgotten = [0] * batch

    @property
    def length(self) -> Int[Tensor, " B"]:
        """Tokens seen by each sequence, Int64[B]."""
        return torch.tensor([len(t) + f for t, f in zip(self.tokens, self.forgotten, strict=True)])

    def crop(self, length: int | Int[Tensor, " B"]) -> None:
        """Keep the first `length` tokens of every sequence; a shorter one stays as it is.

        Raises:
            TypeError: `length` is no int and no integer tensor.
            ValueError: `length` is negative, or the next token would need a key that is forgotten.
                No sequence is then cropped.
        """
        lengths = token_counts("length", length, len(self.tokens))
        for n, (new, old) in enumerate(zip(lengths, self.length.tolist(), strict=True)):
            first = self.sinks + self.forgotten[n]
            needed = self.sinks
            if self.window is not None:
                needed = max(self.sinks, new - (self.window - 1))
            # A token whose window holds no earlier key needs none.
            if new < old and needed < min(new, first):
                raise ValueError(
                    f"length: {new} for sequence {n}, expected a length after which no token needs "
                    f"a forgotten key, as the next one would at position {needed}"
                )
        for n, new in enumerate(lengths):
            self.forgotten[n] = min(self.forgotten[n], max(0, new - self.sinks))
            self.tokens[n] = self.tokens[n][: new - self.forgotten[n]]

    def reorder(self, index: Int[Tensor, " M"]) -> None:
        """Make sequence n what sequence `index[n]` was; entries may repeat, be left out, and M
        may differ from B.

        Raises:
            TypeError: `index` is no integer tensor.
            ValueError: it is empty, or names a sequence outside [0, B).
        """
        indices = sequence_indices(index, len(self.tokens))
        self.tokens = [list(self.tokens[n]) for n in indices]
        self.forgotten = [self.forgotten[n] for n in indices]

    def reset(self) -> None:
        """Forget everything: every sequence has length 0."""
        self.tokens = [[] for _ in self.tokens]
        self.forgotten = [0 for _ in self.tokens]

    def _check_options(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in self.options:
                raise ValueError(
                    f"{name}: given to a {type(self).__name__}, expected no option but "
                    f"{', '.join(self.options)}"
                )

    def _check(self, k: Tensor, v: Tensor, offset: int | Tensor | None) -> list[int]:
        batch = len(self.tokens)
        for name, x in (("k", k), ("v", v)):
            if x.dim() != 4 or x.shape[0] != batch:
                raise ValueError(f"{name}: shape {list(x.shape)}, expected [{batch}, T, G, D]")
        if k.shape[:3] != v.shape[:3]:
            raise ValueError(
                f"v: shape {list(v.shape)}, expected the B, T and G of k: {list(k.shape)}"
            )
        held = next((tokens[0] for tokens in self.tokens if tokens), None)
        if held is not None:
            for name, x, old in (("k", k, held[0]), ("v", v, held[1])):
                if x.shape[2:] != old.shape or x.dtype != old.dtype:
                    raise ValueError(
                        f"{name}: {x.dtype} {list(x.shape)}, expected {old.dtype} and heads of "
                        f"{list(old.shape)} like the tokens held"
                    )
        return self._counts(offset, k.shape[1])

    def _counts(self, offset: int | Tensor | None, tokens: int) -> list[int]:
        """How many of the `tokens` of a call are real in each sequence."""
        counts = token_counts("offset", tokens if offset is None else offset, len(self.tokens))
        if max(counts) > tokens:
            raise ValueError(f"offset: {max(counts)}, expected at most the T={tokens} tokens")
        return counts


class KVCache(TokenLists):
    """Keys and values of the tokens seen so far: per sequence, a list of tokens.

        update:   tokens ← tokens + new          attends to   tokens + new
        crop:     tokens ← tokens[:length]
        reorder:  tokens of n ← tokens of index[n]
        reset:    tokens ← []

    With a window W the list keeps the last W tokens, and an update attends to the W - 1 tokens
    before it and to its own. What is older leaves the list only *after* that: the first query of a
    chunk still sees the W - 1 keys before it, however long the chunk.

    `length` counts the tokens a sequence has seen, the forgotten ones too. It is the position of
    the next token, and the `seqlen_offsets` of its rotary embedding. One object serves one layer,
    so that the layers of a model cannot advance each other's length.

    Args:
        batch: number of sequences B.
        window: keys that a query sees, its own included; None for all.

    Source: Shazeer, "Fast Transformer Decoding" (arXiv 1911.02150) for decoding with cached keys
    and values; Beltagy et al., "Longformer" (arXiv 2004.05150) for the sliding window.
    """

    def __init__(self, batch: int, window: int | None = None) -> None:
        super().__init__(batch)
        if window is not None:
            check_size("window", window)
        self.window = window

    def update(
        self,
        k: Float[Tensor, "B T G K"],
        v: Float[Tensor, "B T G V"],
        offset: int | Int[Tensor, " B"] | None = None,
    ) -> CacheView:
        """Append new tokens and return what they attend to.

        Args:
            k, v: keys and values of the new tokens; K and V may differ.
            offset: how many of the T tokens are real: one number, or one per sequence. The rest
                is padding on the right and never read. None: all T.

        Raises:
            TypeError: `offset` is no int and no integer tensor.
            ValueError: shapes that do not agree with each other or with what the cache holds; an
                `offset` below 0 or above T. The cache is then as it was.
        """
        counts = self._check(k, v, offset)
        seen: list[tuple[Tensor, Tensor]] = []
        q_lengths, k_lengths = [0], [0]
        for n, count in enumerate(counts):
            new = [(k[n, t].clone(), v[n, t].clone()) for t in range(count)]
            held = self.tokens[n]
            reach = len(held) if self.window is None else self.window - 1
            before = held[max(0, len(held) - reach) :]
            seen += before + new
            q_lengths.append(count)
            k_lengths.append(len(before) + count)

            kept = held + new
            surplus = 0 if self.window is None else max(0, len(kept) - self.window)
            self.tokens[n] = kept[surplus:]
            self.forgotten[n] += surplus
        return CacheView(
            torch.stack([key for key, _ in seen])[None] if seen else k[:1, :0],
            torch.stack([value for _, value in seen])[None] if seen else v[:1, :0],
            torch.tensor(q_lengths, device=k.device).cumsum(0),
            torch.tensor(k_lengths, device=k.device).cumsum(0),
        )

    def attend(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T G K"],
        v: Float[Tensor, "B T G V"],
        *,
        offset: int | Int[Tensor, " B"] | None = None,
        attention: Callable[..., tuple[Tensor, Tensor | None]] | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H T"] | None]:
        """Append new tokens, then let each attend causally to itself and what came before.

        Args:
            q, k, v, offset: as in `update`; q holds the queries of the same tokens.
            attention: `reference.attention`, or a function with its arguments.
            options: those of `options`: scale, window, softcap, sink, alibi_slopes, return_lse.
                The default window is that of the cache.

        Returns:
            o in the dtype of q, and the LSE, in the dtype of that of `attention`, if asked for.
            Padding rows are 0, their LSE -inf.

        Raises:
            TypeError, ValueError: as `update` and `attention` do; q not of the tokens of k;
                another option than these; a window of more keys than it keeps. The cache is then
                as it was.
        """
        self._check_options(options)
        of_keys = attention or softmax_attention
        if self.window is not None:
            window = options.get("window")
            options["window"] = window = self.window if window is None else window
            if window > self.window:
                raise ValueError(f"window: {window}, expected at most the {self.window} keys kept")
        counts = self._check(k, v, offset)
        if q.shape[:2] != k.shape[:2]:
            raise ValueError(f"q: shape {tuple(q.shape)}, expected B and T of k, {k.shape[:2]}")
        before = [*self.tokens], [*self.forgotten]
        view = self.update(k, v, offset)
        ends = view.cu_seqlens_k.tolist()
        found = (
            of_keys(q[n : n + 1, :count], view.k[:, i:j], view.v[:, i:j], causal=True, **options)
            for n, (count, i, j) in enumerate(zip(counts, ends[:-1], ends[1:], strict=True))
        )
        try:
            return padded(q, counts, found)
        except BaseException:
            self.tokens, self.forgotten = before
            raise


def padded(
    q: Tensor, counts: Sequence[int], found: Iterable[tuple[Tensor, Tensor | None]]
) -> tuple[Tensor, Tensor | None]:
    """Join o and LSE of the first `counts[n]` queries of each sequence; others are 0 and -inf.

    Args:
        q: all queries [B, T, H, K].
        found: o [1, counts[n], H, V] and LSE [1, H, counts[n]] of each sequence.
    """
    o = lse = None
    for n, (count, (rows, row_lse)) in enumerate(zip(counts, found, strict=True)):
        if o is None:
            o = q.new_zeros(*q.shape[:3], rows.shape[-1])
        o[n, :count] = rows[0]
        if row_lse is not None:
            if lse is None:
                lse = row_lse.new_full((q.shape[0], q.shape[2], q.shape[1]), -torch.inf)
            lse[n, :, :count] = row_lse[0]
    assert o is not None
    return o, lse
