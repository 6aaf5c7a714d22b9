"""A layer that decodes from states of a convolution and a recurrence, drafts, and takes back."""

from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from torch import Tensor

import kernels
import reference
from kernels.cache import RecurrentCache
from properties.suite.caches.machine import COUNTS, SEEDS
from properties.suite.caches.recurrent import PICKS


class DecodingMachine(RuleBasedStateMachine):
    """Outputs of a short convolution and linear attention, against one pass over all tokens.

    Tokens and weights are -1, 0 and 1, so every sum is an integer that float32 holds: outputs are
    equal in every bit, whatever was drafted, taken back and reordered before.
    """

    device: ClassVar[torch.device] = torch.device("cpu")
    kind: ClassVar[type[RecurrentCache]] = RecurrentCache
    reaches: ClassVar[frozenset[str]] = frozenset(
        {"nothing new", "took back another number of each"}
    )
    times: ClassVar[int] = 3
    steps: ClassVar[int] = 20
    reached: ClassVar[set[str]] = set()

    @initialize(
        batch=st.integers(1, 3),
        heads=st.integers(1, 2),
        dims=st.sampled_from([(1, 3), (3, 2), (2, 2)]),
        taps=st.integers(2, 4),
        mode=st.sampled_from(["chunk", "fused_recurrent"]),
        seed=SEEDS,
    )
    def create(
        self, batch: int, heads: int, dims: tuple[int, int], taps: int, mode: str, seed: int
    ) -> None:
        self.heads, (self.key_dim, self.value_dim) = heads, dims
        self.mode: Any = mode
        self.channels = heads * (2 * self.key_dim + self.value_dim)
        self.weight = self.integers(seed, self.channels, taps)
        self.cache = self.kind(batch, 2)
        self.tokens = [self.integers(0, 0, self.channels) for _ in range(batch)]

    def integers(self, seed: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-1, 2, shape, generator=generator).to(self.device, torch.float32)

    def heads_of(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k and v in the channels of [B, T, D]."""
        widths = self.key_dim, self.key_dim, self.value_dim
        each: tuple[Tensor, ...] = x.unflatten(-1, (self.heads, sum(widths))).split(widths, -1)
        return each

    @rule(counts=COUNTS, seed=SEEDS)
    def append(self, counts: list[int], seed: int) -> None:
        """A ragged batch, packed; sequences may get no token."""
        counts = [counts[n % len(counts)] // 2 for n in range(len(self.tokens))]
        new = self.integers(seed, sum(counts), self.channels)
        ends = torch.tensor([0, *counts], device=self.device).cumsum(0).int()
        x, convolution = kernels.short_conv(
            new[None], self.weight, initial_state=self.cache.state(0), output_final_state=True,
            cu_seqlens=ends,
        )  # fmt: skip
        q, k, v = (part.contiguous() for part in self.heads_of(x))
        o, state = kernels.linear_attn(
            q, k, v, scale=1.0, initial_state=self.cache.state(1), output_final_state=True,
            cu_seqlens=ends, mode=self.mode,
        )  # fmt: skip
        offset = torch.tensor(counts)
        for layer, final in enumerate((convolution, state)):
            assert final is not None
            self.cache.update(final, layer, offset=offset)
        parts = zip(new.split(counts), o[0].split(counts), strict=True)
        for n, (added, got) in enumerate(parts):
            self.tokens[n] = torch.cat([self.tokens[n], added])
            if len(added):
                want = self.one_pass(self.tokens[n])[-len(added) :]
                assert torch.equal(got.double(), want), f"sequence {n}: {got}, want {want}"
        if 0 in counts:
            self.reached.add("nothing new")

    def one_pass(self, tokens: Tensor) -> Tensor:
        x, _ = reference.short_conv(tokens.double()[None], self.weight.double())
        o, _ = reference.linear_attn(*self.heads_of(x), scale=1.0)
        return o[0]

    @rule(
        steps=st.lists(st.tuples(COUNTS, SEEDS), min_size=1, max_size=3),
        picks=st.none() | PICKS,
        back=COUNTS,
    )
    def draft(
        self, steps: list[tuple[list[int], int]], picks: list[int] | None, back: list[int]
    ) -> None:
        """Append drafts, perhaps choose among the beams, and take back some of each sequence."""
        self.cache.checkpoint(len(steps))
        places = [[len(tokens)] for tokens in self.tokens]
        for counts, seed in steps:
            self.append(counts, seed)
            for place, tokens in zip(places, self.tokens, strict=True):
                place.append(len(tokens))
        if picks is not None:
            picks = [pick % len(self.tokens) for pick in picks]
            self.reorder(picks)
            places = [places[pick] for pick in picks]
        kept = [place[back[n % len(back)] % len(place)] for n, place in enumerate(places)]
        taken = [len(t) - length for t, length in zip(self.tokens, kept, strict=True)]
        self.cache.rollback(torch.tensor(taken))
        self.tokens = [t[:length] for t, length in zip(self.tokens, kept, strict=True)]
        if len(set(taken)) > 1:
            self.reached.add("took back another number of each")

    @rule(picks=PICKS)
    def reorder(self, picks: list[int]) -> None:
        """Fork sequences, drop some, or exchange them."""
        picks = [pick % len(self.tokens) for pick in picks]
        self.cache.reorder(torch.tensor(picks))
        self.tokens = [self.tokens[pick] for pick in picks]

    @rule()
    @precondition(lambda self: any(map(len, self.tokens)))
    def reset(self) -> None:
        self.cache.reset()
        self.tokens = [tokens[:0] for tokens in self.tokens]

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def lengths_count_all_tokens(self) -> None:
        assert self.cache.length.tolist() == [len(tokens) for tokens in self.tokens]
