"""Caches of a target, called in any order and compared with attention over all tokens."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import Tensor

import reference
from properties.suite.caches.machine import DTYPES, SEEDS
from properties.targets.modules import Cache, Unsupported, has, made, needs


class AdaptedMachine(RuleBasedStateMachine):
    """A cache of a target and the list of all its tokens, `reference.KVCache`.

    All sequences have the same length, as in most libraries. Keys and queries are small integers,
    whose products are exact in every dtype.
    """

    device: ClassVar[torch.device] = torch.device("cpu")
    reached: ClassVar[set[str]] = set()
    reaches: ClassVar[frozenset[str]] = frozenset()
    times: ClassVar[int] = 3
    steps: ClassVar[int] = 12
    kind: ClassVar[Callable[..., Cache]]

    @initialize(
        batch=st.integers(1, 3),
        heads=st.tuples(st.integers(1, 2), st.integers(1, 2)),
        dims=st.sampled_from([(2, 3), (4, 4), (1, 5), (5, 2)]),
        dtype=st.sampled_from(DTYPES),
        room=st.integers(1, 24),
        window=st.none() | st.integers(1, 6),
    )
    def create(
        self,
        batch: int,
        heads: tuple[int, int],
        dims: tuple[int, int],
        dtype: torch.dtype,
        room: int,
        window: int | None,
    ) -> None:
        make = type(self).kind
        key_dim, value_dim = (dims[0],) * 2 if has(make, "head_dim") else dims
        self.batch, self.heads, self.room = batch, heads, room
        self.dims = key_dim, value_dim
        self.dtype = dtype if has(make, "dtype") else torch.float32
        if not has(make, "window"):
            window = None
        elif window is None and needs(make, "window"):
            window = room
        self.model = reference.KVCache(batch, window)
        told = {
            "batch": batch,
            "query_heads": heads[0] * heads[1],
            "heads": heads[0],
            "key_dim": key_dim,
            "value_dim": value_dim,
            "head_dim": key_dim,
            "room": room,
            "window": window,
            "dtype": self.dtype,
            "device": self.device,
        }
        try:
            self.cache: Any = made(make, told)
        except Unsupported:
            reject()

    def length(self) -> int:
        return int(self.model.length[0])

    def most(self) -> int:
        """Tokens of the next call."""
        step = getattr(self.cache, "longest_step", None) if self.length() else None
        left = self.room - self.length()
        return left if step is None else min(left, step)

    def drawn(self, seed: int, largest: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randint(-largest, largest + 1, shape, generator=generator)
        return numbers.to(self.device, self.dtype)

    @precondition(lambda self: self.most() > 0)
    @rule(tokens=st.integers(1, 9), seed=SEEDS)
    def attend(self, tokens: int, seed: int) -> None:
        tokens, before = min(tokens, self.most()), self.length()
        (G, R), (K, V) = self.heads, self.dims
        q = self.drawn(seed, 2, self.batch, tokens, G * R, K)
        k = self.drawn(seed + 1, 2, self.batch, tokens, G, K)
        v = self.drawn(seed + 2, 256, self.batch, tokens, G, V)
        given = [x.clone() for x in (q, k, v)]
        with torch.no_grad():
            o = self.cache.attend(*given)
        for name, x, y in zip("qkv", (q, k, v), given, strict=True):
            assert torch.equal(x, y), f"{name} was written to"
        sizes = reference.KVCache(self.batch, self.model.window)
        sizes.tokens = [[(key, value.abs()) for key, value in row] for row in self.model.tokens]
        want, _ = self.model.attend(q.double(), k.double(), v.double())
        size, _ = sizes.attend(q.double(), k.double(), v.double().abs())
        assert o.shape == want.shape, f"o: shape {list(o.shape)}, want {list(want.shape)}"
        wrong = ((o.double() - want).abs() > self.budget(size)).nonzero()
        if len(wrong):
            at = tuple(wrong[0].tolist())
            n, t, h, d = at
            raise AssertionError(
                f"sequence {n}, token {before + t} ({t} of this call), head {h}, dim {d} attends "
                f"otherwise: got {float(o[at]):.6g}, want {float(want[at]):.6g}"
            )

    def budget(self, size: Tensor) -> Tensor:
        """Of o, in `size`, the attention over the sizes of the values.

        In units of round-off, a logit of at most 20 errs by 2 roundings of it, and an exponential
        by its argument and 4 of its own; a sum of t terms errs by t. Numerator and denominator
        double that, and o is rounded.
        """
        unit = torch.finfo(self.dtype).eps / 2
        return (2 * (2 * 20 + 4 + self.length()) + 1) * unit * size

    @precondition(lambda self: hasattr(self.cache, "crop") and self.length())
    @rule(back=st.integers(0, 5))
    def crop(self, back: int) -> None:
        length = max(0, self.length() - back)
        try:
            self.model.crop(length)
        except ValueError:
            # A key that the next token sees is forgotten.
            return
        self.cache.crop(length)

    @precondition(lambda self: hasattr(self.cache, "reorder"))
    @rule(picks=st.lists(st.integers(0, 2), min_size=3, max_size=3))
    def reorder(self, picks: list[int]) -> None:
        index = torch.tensor([n % self.batch for n in picks[: self.batch]], device=self.device)
        self.model.reorder(index)
        self.cache.reorder(index)

    @precondition(lambda self: hasattr(self.cache, "reset") and self.length())
    @rule()
    def reset(self) -> None:
        self.model.reset()
        self.cache.reset()
