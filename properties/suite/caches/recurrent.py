"""The cache of recurrent states, called in any order."""

from collections.abc import Callable
from copy import copy
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

import reference
from kernels.cache import RecurrentCache
from properties.suite.caches.calls import CONTEXTS, check_refusal, contents, context, refuses
from properties.suite.caches.machine import COUNTS, SEEDS, TOKENS

PICKS = st.lists(st.integers(0, 3), min_size=1, max_size=4)
"""The sequences of a reorder, modulo their number."""


def copied(x: Any) -> Any:
    """A cache with lists of its own."""
    if isinstance(x, list):
        return [copied(each) for each in x]
    if isinstance(x, (RecurrentCache, reference.RecurrentCache)):
        another = copy(x)
        vars(another).update({name: copied(each) for name, each in vars(x).items()})
        return another
    return x


class RecurrentMachine(RuleBasedStateMachine):
    """The recurrent cache of three layers, against `reference.RecurrentCache`."""

    device: ClassVar[torch.device] = torch.device("cpu")
    kind: ClassVar[type[RecurrentCache]] = RecurrentCache
    reaches: ClassVar[frozenset[str]] = frozenset({"between layers", "forgotten"})
    times: ClassVar[int] = 3
    steps: ClassVar[int] = 20
    reached: ClassVar[set[str]] = set()
    DIMS = ((2, 3, 4), (1, 4, 2), (2, 4, 3))
    """H, K and V of each layer."""
    LAYERS = len(DIMS)

    @initialize(batch=st.integers(1, 3), where=st.sampled_from(CONTEXTS))
    def create(self, batch: int, where: str) -> None:
        self.batch = batch
        with context(where, self.device):
            self.cache = self.kind(batch, self.LAYERS)
        self.model = reference.RecurrentCache(batch, self.LAYERS)
        self.given: list[tuple[Tensor, Tensor]] = []
        # Another model's cache, which calls of this one must not change.
        self.neighbour = self.kind(batch, self.LAYERS)
        self.neighbours_state = self.neighbour.update(self.draw_state(0, 0), offset=1)

    def draw_state(self, layer: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        state = torch.randn(
            self.batch, *self.DIMS[layer], generator=generator, dtype=torch.float32
        ).to(self.device)
        # With a graph, as in training over several segments.
        return state.requires_grad_() * 2 if seed % 3 == 0 else state

    @rule(
        layer=st.integers(0, LAYERS - 1),
        seed=SEEDS,
        counts=COUNTS,
        kind=st.sampled_from([None, torch.int32, torch.int64]),
        where=st.sampled_from(CONTEXTS),
    )
    def update(
        self, layer: int, seed: int, counts: list[int], kind: torch.dtype | None, where: str
    ) -> None:
        offset: int | Tensor = counts[0]
        if kind is not None:
            offset = torch.tensor([counts[n % len(counts)] for n in range(self.batch)], dtype=kind)
        with context(where, self.device):
            state = self.draw_state(layer, seed)
            assert self.cache.update(state, layer, offset=offset) is state
        self.given.append((state, state.detach().clone()))
        self.model.update(state, layer, offset=offset)
        if isinstance(offset, Tensor):
            offset.fill_(-1)

    @rule(seed=SEEDS, tokens=TOKENS)
    def forward(self, seed: int, tokens: int) -> None:
        """Update all layers in turn: in between, each layer has its own length."""
        for layer in range(self.LAYERS):
            before = self.model.layer_length(layer).tolist()
            assert self.cache.layer_length(layer).tolist() == before, "another layer's tokens"
            self.update(layer, seed + layer, [tokens], None, "grad")
            self.lengths_and_states_agree()

    @rule(
        picks=PICKS,
        dtype=st.sampled_from([torch.int32, torch.int64]),
    )
    def reorder(self, picks: list[int], dtype: torch.dtype) -> None:
        index = torch.tensor([pick % self.batch for pick in picks], dtype=dtype, device=self.device)
        self.cache.reorder(index)
        self.model.reorder(index)
        self.batch = len(picks)
        index.fill_(-1)

    @rule(updates=st.integers(0, 3))
    def checkpoint(self, updates: int) -> None:
        self.cache.checkpoint(updates)
        self.model.checkpoint(updates)

    @rule(counts=COUNTS, kind=st.sampled_from([None, torch.int32, torch.int64]))
    def rollback(self, counts: list[int], kind: torch.dtype | None) -> None:
        """Back to any place, most of which have no state."""
        tokens: int | Tensor = counts[0]
        if kind is not None:
            tokens = torch.tensor([counts[n % len(counts)] for n in range(self.batch)], dtype=kind)
        self.back(tokens)

    @rule(
        updates=st.integers(1, 3),
        seed=SEEDS,
        steps=st.lists(st.integers(0, 3), min_size=3),
        picks=st.one_of(st.none(), PICKS),
    )
    def draft(self, updates: int, seed: int, steps: list[int], picks: list[int] | None) -> None:
        """Verify tokens one by one, perhaps choose among the beams, and take back another number of
        each sequence.
        """
        self.checkpoint(updates)
        for step in range(updates):
            for layer in range(self.LAYERS):
                self.update(layer, seed + step, [1], None, "grad")
        if picks is not None:
            self.reorder(picks, torch.int64)
        taken = [min(steps[n % len(steps)], updates) for n in range(self.batch)]
        self.back(torch.tensor(taken))
        self.reached.add("rolled back")

    def back(self, tokens: int | Tensor) -> None:
        try:
            self.model.rollback(tokens)
        except ValueError:
            self.reached.add("past the checkpoint")
            self.refuse("tokens", lambda: self.cache.rollback(tokens))
        else:
            self.cache.rollback(tokens)

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.model.reset()

    @rule(
        length=st.one_of(st.integers(0, 3), st.integers(0, 20)),
        kind=st.sampled_from([None, torch.int32, torch.int64]),
    )
    def crop(self, length: int, kind: torch.dtype | None) -> None:
        wanted: int | Tensor = length
        if kind is not None:
            wanted = torch.arange(length, length + self.batch, dtype=kind)
        try:
            self.model.crop(wanted)
        except ValueError:
            self.reached.add("forgotten")
            self.refuse("length", lambda: self.cache.crop(wanted))
        else:
            self.cache.crop(wanted)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.refused_calls()
            self.states_are_never_written_to()
            assert self.neighbour.state(0) is self.neighbours_state
            assert self.neighbour.layer_length(0).unique().tolist() == [1]

    def states_are_never_written_to(self) -> None:
        for state, was in self.given:
            assert torch.equal(state, was), "a state that was given has changed"

    def refused_calls(self) -> None:
        cache: Any = self.cache
        state = self.draw_state(0, 1)
        first = cache.state(0)
        one_more = torch.ones(self.batch + 1).long()
        calls: list[tuple[str, Callable[[], object]]] = [
            ("state", lambda: cache.update((state, state), offset=1)),
            ("state", lambda: cache.update(state[:, 0, 0, 0], offset=1)),
            ("state", lambda: cache.update(torch.cat([state, state]), offset=1)),
            ("state", lambda: cache.update(state.half(), offset=1)),
            ("state", lambda: cache.update(state.double(), offset=1)),
            ("offset", lambda: cache.update(state, offset=-1)),
            ("offset", lambda: cache.update(state, offset=2**63)),
            ("offset", lambda: self.model.update(state, offset=2**63)),
            ("offset", lambda: cache.update(state, offset=1.0)),
            ("offset", lambda: cache.update(state, offset=True)),
            ("offset", lambda: cache.update(state, offset=None)),
            ("offset", lambda: cache.update(state, offset=one_more)),
            ("offset", lambda: cache.update(state, offset=-one_more[1:])),
            ("offset", lambda: cache.update(state, offset=one_more[1:].float())),
            ("layer", lambda: cache.update(state, self.LAYERS, offset=1)),
            ("layer", lambda: cache.update(state, -1, offset=1)),
            ("layer", lambda: cache.update(state, True, offset=1)),
            ("layer", lambda: cache.update(state, 0.0, offset=1)),
            ("layer", lambda: cache.state(-1)),
            ("layer", lambda: cache.layer_length(self.LAYERS)),
            ("length", lambda: cache.crop(-1)),
            ("length", lambda: cache.crop(None)),
            ("length", lambda: cache.crop(one_more)),
            ("index", lambda: cache.reorder(torch.arange(self.batch) + 1)),
            ("index", lambda: cache.reorder(torch.arange(self.batch) - 1)),
            ("index", lambda: cache.reorder(torch.arange(0))),
            ("index", lambda: cache.reorder(list(range(self.batch)))),
            ("updates", lambda: cache.checkpoint(-1)),
            ("updates", lambda: cache.checkpoint(True)),
            ("updates", lambda: cache.checkpoint(1.0)),
            ("tokens", lambda: cache.rollback(-1)),
            ("tokens", lambda: cache.rollback(10**6)),
            ("tokens", lambda: cache.rollback(one_more)),
            ("tokens", lambda: cache.rollback(None)),
        ]
        if first is not None:
            calls += [
                ("state", lambda: cache.update(first[..., :-1], offset=1)),
                ("state", lambda: cache.update(first.to("meta"), offset=1)),
            ]
        for argument, call in calls:
            self.refuse(argument, call)

    def refuse(self, argument: str, call: Callable[[], object]) -> None:
        before = contents(self.cache)
        check_refusal(argument, call)
        assert contents(self.cache) == before, f"a refused {argument} left traces"
        self.lengths_and_states_agree()

    def states_agree(self, cache: RecurrentCache, model: reference.RecurrentCache) -> None:
        for layer in range(self.LAYERS):
            want = model.state(layer)
            got = cache.state(layer)
            if got is None or want is None:
                assert got is want, f"layer {layer} has a state, or should have"
            else:
                assert torch.equal(got, want), f"the state of layer {layer} differs"
                assert got.requires_grad == want.requires_grad, f"layer {layer} has lost its graph"
            length = cache.layer_length(layer)
            assert length.tolist() == model.seen[layer]
            assert length.dtype == torch.int64
            length.fill_(-1)

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def a_rollback_gives_what_it_gives_to_the_model(self) -> None:
        """Tried on copies: of the last tokens, and of one that follows, or of one too few for one
        of the layers. A copy has the tensors of the original, which are never written to.
        """
        for tokens, following in ((1, ()), (2, ()), (1, (1, 1, 1)), (1, (1, 1, 2))):
            cache, model = (copied(each) for each in (self.cache, self.model))
            for layer, count in enumerate(following):
                for each in (cache, model):
                    each.update(self.draw_state(layer, 1), layer, offset=count)
            assert refuses(cache.rollback, tokens) == refuses(model.rollback, tokens)
            self.states_agree(cache, model)

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def lengths_and_states_agree(self) -> None:
        self.states_agree(self.cache, self.model)
        if all(seen == self.model.seen[0] for seen in self.model.seen):
            assert self.cache.length.tolist() == self.model.seen[0]
        else:
            self.reached.add("between layers")
            with pytest.raises(ValueError, match="layer_length"):
                _ = self.cache.length
