"""The cache of cross-attention: keys are written once, and beams share their pages."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule
from torch import Tensor

import reference
from kernels.cache import CrossAttentionCache
from properties.suite.caches.calls import context
from properties.suite.caches.kinds import PagedMachine
from properties.suite.caches.machine import (
    CONTIGUOUS,
    SCALE,
    Call,
    calls,
    in_double,
    relative_error,
)


class CrossAttentionMachine(PagedMachine):
    """A second update is refused, by the model too, and queries append nothing."""

    kind: ClassVar[type[Any]] = CrossAttentionCache
    reaches: ClassVar[frozenset[str]] = frozenset({"written twice", "duplicated", "ragged"})
    cache: CrossAttentionCache
    model: Any

    def build(self, room: int, page_size: int, seed: int) -> CrossAttentionCache:
        self.model = reference.CrossAttentionCache(self.batch)
        self.everything = reference.CrossAttentionCache(self.batch)
        cache = self.new(room, page_size)
        assert isinstance(cache, CrossAttentionCache)
        return cache

    @rule(call=calls(offsets=["each", "each in 32 bits", "all"], layouts=st.just(CONTIGUOUS)))
    def update(self, call: Call) -> None:
        offset, counts = self.draw_offset(call)
        with context(call.where, self.device):
            _, k, v = self.draw_tokens(call.tokens, call.seed)
            if self.model.written or not self.fits(counts):
                self.reached.add("written twice" if self.model.written else "no room")
                argument = "k" if self.model.written else "offset"
                self.refuse((argument, lambda: self.cache.update(k, v, offset)))
                return
            self.fill_padding(counts, k, v)
            self.note(counts)
            got = self.cache.update(k, v, offset)
        want = self.append(k, v, offset)
        assert all((x == y).all() for x, y in zip(got, want, strict=True))
        with context(call.where, self.device):
            self.use_up(k, v, offset, *got)

    @rule(
        call=calls(layouts=st.just(CONTIGUOUS)),
        logits=st.sets(st.sampled_from(["softcap", "sink"])),
        num_splits=st.sampled_from([1, 2, 5]),
        return_lse=st.booleans(),
    )
    def attend(self, call: Call, logits: set[str], num_splits: int, return_lse: bool) -> None:
        offset, counts = self.draw_offset(call)
        options: dict[str, Any] = {"scale": SCALE}
        if "softcap" in logits:
            options["softcap"] = 1.5
        if "sink" in logits:
            options["sink"] = torch.arange(1.0, self.heads + 1, device=self.device) / 8
        with context(call.where, self.device):
            q, _, _ = self.draw_tokens(call.tokens, call.seed)

            def run() -> tuple[Tensor, Tensor | None]:
                return self.cache.attend(
                    q, offset=offset, num_splits=num_splits, return_lse=return_lse, **options
                )

            if not self.model.written:
                self.refuse(("q", run))
                return
            self.fill_padding(counts, q)
            o, lse = run()
        self.check_attention(q, o, lse, offset, options)
        assert (lse is None) == (not return_lse)
        self.check_dtypes(o, lse)
        for n, count in enumerate(counts):
            assert (o[n, count:] == 0).all(), "padding rows are not 0"
            assert lse is None or (lse[n, :, count:] == -torch.inf).all(), "the LSE of padding"

    def check_attention(
        self, q: Tensor, o: Tensor, lse: Tensor | None, offset: Any, options: dict[str, Any]
    ) -> None:
        want, want_lse = self.model.attend(
            q.double(), offset=offset, attention=in_double, return_lse=True, **options
        )
        exact = self.model.tokens
        self.model.tokens = [[(k, v.abs()) for k, v in tokens] for tokens in exact]
        size, _ = self.model.attend(q.double(), offset=offset, attention=in_double, **options)
        self.model.tokens = exact
        terms = max(self.length())
        assert ((o - want).abs() <= self.budget(want, size, terms, True)).all(), f"{o}, {want}"
        if lse is not None:
            apart = (lse - want_lse).nan_to_num()
            assert (lse.isinf() == want_lse.isinf()).all()
            assert (apart.abs() <= 8 * relative_error(terms, True)).all(), f"{lse}, {want_lse}"

    def idle_step(self, offset: Tensor) -> None:
        """Nothing is appended in steps."""

    attention_options = ("scale", "softcap", "sink", "return_lse", "num_splits", "mode", "tile")

    def attention_arguments(self, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
        return {"q": q}

    def refused_attention(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> list[tuple[str, Callable[[], object]]]:
        if not self.model.written:
            return [("q", lambda: self.cache.attend(q))]
        cache: Any = self.cache
        return [
            ("q", lambda: cache.attend(None)),
            ("q", lambda: cache.attend(q[..., :0])),
            ("q", lambda: cache.attend(q.double())),
            ("q", lambda: cache.attend(torch.cat([q, q]))),
            ("offset", lambda: cache.attend(q, offset=q.shape[1] + 1)),
            ("softcap", lambda: cache.attend(q, softcap=0.0)),
        ]

    def attention_that_refuses(self) -> None:
        """All of it is refused before a launch."""

    def the_neighbour_has_noticed_nothing(self) -> None:
        """Each sequence has one key, whose value is the output."""
        was = self.neighbours_view
        neighbour: Any = self.neighbour
        q = was.k.new_zeros(neighbour.batch, 1, self.heads, self.key_dim)
        o, _ = neighbour.attend(q)
        assert torch.equal(o[:, 0, :: self.heads // self.kv_heads], was.v[0])

    def reset_is_a_new_start(self) -> None:
        for each in (self.cache, self.model, self.everything):
            each.reset()
        if self.fits([2] * self.batch):
            q, k, v = self.draw_tokens(2, 0)
            for each in (self.cache, self.model, self.everything):
                each.update(k, v)
            o, lse = self.cache.attend(q, scale=SCALE, return_lse=True)
            self.check_attention(q, o, lse, None, {"scale": SCALE})
        self.lengths_count_all_tokens()
