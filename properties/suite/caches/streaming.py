"""The cache of a stream: sinks and a window, whose keys are rotated again at every step."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule
from torch import Tensor

import reference
from kernels.cache import KVCache, StreamingCache
from properties.suite.caches.calls import context
from properties.suite.caches.machine import Call, KVMachine, calls, in_double, in_its_second_call

SCALE = 2.0**-11


class StreamingMachine(KVMachine):
    """Compared with `reference.StreamingCache` in float64.

    Tables are small integers: they give each place other numbers, and products stay exact. Logits
    are at most 6 · (4 · 2 · 2) · (8 · 2 · 2) / 2^11 = 1.5.
    """

    longest = 1
    # A stream takes five launches for each token.
    times = 2
    # A ring that is full allows the first crop and not the second.
    backs = (1, 2)

    kind: ClassVar[type[Any]] = StreamingCache
    reaches: ClassVar[frozenset[str]] = frozenset(
        {
            "wrapped",
            "past the sinks",
            "forgotten",
            "cropped",
            "cropped below the forgotten",
            "ragged",
        }
    )
    cache: StreamingCache

    def new(self, room: int, page_size: int) -> KVCache:
        sizes = (self.batch, self.sinks, self.width, self.kv_heads, self.key_dim, self.value_dim)
        cache: KVCache = self.kind(*sizes, dtype=self.dtype, device=self.device)
        return cache

    def build(self, room: int, page_size: int, seed: int) -> KVCache:
        self.sinks, self.width = page_size - 1, 1 + room // 4
        # Heads of an even number of dims.
        self.key_dim += self.key_dim % 2
        self.window = self.width
        self.model: Any = reference.StreamingCache(self.batch, self.sinks, self.width)
        generator = torch.Generator().manual_seed(seed)
        places = self.sinks + self.width + seed % 3
        shape = places, 1 + seed % (self.key_dim // 2)
        self.cos, self.sin = (
            torch.randint(-2, 3, shape, generator=generator).to(self.device, torch.float32)
            for _ in range(2)
        )
        return self.new(room, page_size)

    def fits(self, counts: list[int]) -> bool:
        return True

    def cell(self, n: int, position: int) -> tuple[int, int]:
        ring = self.sinks + (position - self.sinks) % self.width
        return n, position if position < self.sinks else ring

    def kept(self, n: int) -> list[int]:
        held, forgotten = len(self.model.tokens[n]), self.model.forgotten[n]
        return [p if p < self.sinks else p + forgotten for p in range(held)]

    # A view of one token is not rotated, and the model has none.
    update = None  # type: ignore[assignment]

    def stored(self, page: int, row: int) -> tuple[Tensor, Tensor]:
        key, value = super().stored(page, row)
        return key, torch.cat([value, value.abs()], -1)

    @rule(call=calls(st.integers(0, 5)), with_kernel=st.booleans(), softcap=st.booleans())
    def attend(self, call: Call, with_kernel: bool, softcap: bool) -> None:
        offset, counts = self.draw_offset(call)
        options: dict[str, Any] = {"scale": SCALE} | ({"softcap": 1.5} if softcap else {})
        for old, new in zip(self.length(), counts, strict=True):
            if old + new > self.sinks + self.width + 1:
                self.reached.add("wrapped")
            if old < self.sinks < old + new:
                self.reached.add("past the sinks")
        self.note(counts)
        with context(call.where, self.device):
            q, k, v = self.place(call)
            self.fill_padding(counts, q, k, v)
            o = self.check_attention(q, k, v, offset, options, with_kernel)
            for n, count in enumerate(counts):
                assert (o[n, count:] == 0).all(), "padding rows are not 0"
            self.use_up(q, k, v, offset)

    def check_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offset: Any,
        options: dict[str, Any],
        with_kernel: bool,
    ) -> Tensor:
        """Attend, compare, and return the outputs."""
        attention = {} if with_kernel else {"attention": in_double}
        o = self.cache.attend(q, k, v, self.cos, self.sin, offset=offset, **attention, **options)
        q, k, v, cos, sin = (x.detach().double() for x in (q, k, v, self.cos, self.sin))
        # The model has the sizes of values beside them.
        both = torch.cat([v, v.abs()], -1)
        found = self.model.attend(q, k, both, cos, sin, offset=offset, **options)
        self.everything.update(k, v, offset)
        want, size = found.chunk(2, -1)
        # Without the kernel, outputs are still rounded to the dtype.
        budget = self.budget(want, size, self.sinks + self.width, True)
        self.check_dtypes(o, None)
        assert ((o - want).abs() <= budget).all(), f"{o}, want {want}"
        return o

    def idle_step(self, offset: Tensor) -> None:
        self.check_attention(*self.draw_tokens(1, 0), offset, {"scale": SCALE}, True)

    def reset_is_a_new_start(self) -> None:
        for each in (self.cache, self.model, self.everything):
            each.reset()
        self.check_attention(*self.draw_tokens(2, 0), None, {"scale": SCALE}, True)
        for each in (self.cache, self.model, self.everything):
            each.crop(1)
        self.lengths_count_all_tokens()

    attention_options = ("scale", "softcap", "sink", "alibi_slopes", "mode", "tile")

    def attention_arguments(self, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
        return {"q": q, "k": k, "v": v, "cos": self.cos, "sin": self.sin}

    def refused_attention(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> list[tuple[str, Callable[[], object]]]:
        given = self.attention_arguments(q, k, v)
        fewer = self.sinks + self.width - 1

        def wrong(**changes: Any) -> Callable[[], object]:
            return lambda: self.cache.attend(**(given | changes))

        return [
            ("k", lambda: self.cache.update(torch.cat([k, k], 1), torch.cat([v, v], 1))),
            ("q", wrong(q=None)),
            ("k", wrong(k=k[:, :0])),
            ("v", wrong(v=v.double())),
            ("cos", wrong(cos=self.cos[:fewer], sin=self.sin[:fewer])),
            ("sin", wrong(sin=self.sin[:1, :0])),
            ("offset", wrong(offset=q.shape[1] + 1)),
        ]

    def attention_that_refuses(self) -> None:
        q, k, v = self.draw_tokens(2, 0)

        # The model is in float64 and has the sizes of values beside them.
        exact = q.double(), k.double(), torch.cat([v, v.abs()], -1).double()
        for each, tensors in ((self.cache, (q, k, v)), (self.model, exact)):
            attend = partial(each.attend, *tensors, self.cos, self.sin)
            self.refuse(
                ("softcap", partial(attend, softcap=0.0)),
                ("softcap", partial(attend, softcap=0.0, offset=0)),
                ("mask", partial(attend, attention=in_its_second_call())),
            )
        mode = partial(self.cache.attend, q, k, v, self.cos, self.sin, mode="chunk")
        self.refuse(("mode", mode))
