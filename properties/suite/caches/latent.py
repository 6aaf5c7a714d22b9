"""The cache of latents: both forms of latent attention, against the naive one over all tokens."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule
from torch import Tensor

import reference
from kernels.cache import LatentCache
from properties.suite.caches.calls import context
from properties.suite.caches.kinds import PagedMachine
from properties.suite.caches.machine import CONTIGUOUS, Call, calls, relative_error


class LatentMachine(PagedMachine):
    """Latents are the keys of one head, rotary keys its values."""

    kind: ClassVar[type[Any]] = LatentCache
    reaches: ClassVar[frozenset[str]] = frozenset(
        {"no room", "cropped", "duplicated", "copied a shared page", "absorbed", "naive"}
    )
    cache: LatentCache

    def new(self, room: int, page_size: int) -> LatentCache:
        number = -(-room * self.batch // page_size) + 1
        sizes = (self.batch, number, page_size, self.key_dim, self.value_dim)
        cache: LatentCache = self.kind(*sizes, dtype=self.dtype, device=self.device)
        return cache

    def build(self, room: int, page_size: int, seed: int) -> LatentCache:
        self.kv_heads = 1
        self.model = reference.LatentCache(self.batch)
        self.everything = reference.LatentCache(self.batch)
        return self.new(room, page_size)

    def draw_tokens(self, tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        q, c, _ = super().draw_tokens(tokens, seed)
        return q, c, self.integers(seed + 2, 8, self.batch, tokens, 1, self.value_dim)

    def queries(self, tokens: int, seed: int) -> dict[str, Any]:
        """Small integers, and queries of 2^-7 of some: projections are exact in every dtype."""
        H, K, V, R, D = self.heads, 1 + seed % 3, 1 + seed % 4, self.key_dim, self.value_dim
        return {
            "q_n": self.integers(seed + 3, 2, self.batch, tokens, H, K) / 128,
            "q_r": self.integers(seed + 4, 1, self.batch, tokens, H, D) / 128,
            "w_uk": self.integers(seed + 5, 1, H, K, R),
            "w_uv": self.integers(seed + 6, 1, H, V, R),
        }

    @rule(
        call=calls(layouts=st.just(CONTIGUOUS)),
        absorbed=st.booleans(),
        num_splits=st.sampled_from([1, 1, 2, 5]),
        scale=st.sampled_from([None, -1, 0.5]),
        return_lse=st.booleans(),
    )
    def attend(
        self,
        call: Call,
        absorbed: bool,
        num_splits: int,
        scale: float | None,
        return_lse: bool,
    ) -> None:
        """Attend in the absorbed form, which reads pages, or in the naive one."""
        offset, counts = self.draw_offset(call)
        options: dict[str, Any] = {"scale": scale, "return_lse": return_lse, "absorbed": absorbed}
        if absorbed:
            options["num_splits"] = num_splits
        with context(call.where, self.device):
            _, c, k_r = self.draw_tokens(call.tokens, call.seed)
            given = self.queries(call.tokens, call.seed)

            def run() -> tuple[Tensor, Tensor | None]:
                return self.cache.attend(**given, c=c, k_r=k_r, offset=offset, **options)

            if not self.fits(counts):
                self.refuse(("offset", run))
                return
            self.fill_padding(counts, given["q_n"], given["q_r"], c, k_r)
            o, lse = run()
        self.append(c, k_r, offset)
        self.reached.add("absorbed" if absorbed else "naive")
        assert (lse is None) == (not return_lse)
        self.check_dtypes(o, lse)
        for n, count in enumerate(counts):
            if count:
                rows = {name: x[n : n + 1, :count] for name, x in given.items() if name[0] == "q"}
                found = None if lse is None else lse[n, :, :count]
                self.check_latent_rows(given | rows, scale, o[n, :count], found, n)
            assert (o[n, count:] == 0).all(), "padding rows are not 0"
            if lse is not None:
                assert (lse[n, :, count:] == -torch.inf).all(), "the LSE of padding is not -inf"

    def check_latent_rows(
        self,
        given: dict[str, Any],
        scale: float | None,
        o: Tensor,
        lse: Tensor | None,
        n: int,
    ) -> None:
        """Compare with the naive form over every token that the sequence ever had.

        Products of queries and keys are exact. Logits are at most 1.6, which is
        (2 · 3 · 8 · 5 + 8 · 5) / 128 / √2: see `check_rows`. The absorbed form also rounds the sums
        of latents, before it adds R of them.
        """
        c, k_r = (torch.cat(x)[None].double() for x in zip(*self.everything.tokens[n], strict=True))
        exact: dict[str, Any] = {name: x.double() for name, x in given.items()}
        options: dict[str, Any] = {"scale": scale, "causal": True, "return_lse": True}
        want, want_lse = reference.mla(**exact, c=c, k_r=k_r, **options)
        assert want_lse is not None
        if scale in (None, -1):
            scale = (exact["q_n"].shape[-1] + exact["q_r"].shape[-1]) ** -0.5
        # |w_uv| times the weighted mean of |c|: weights are those of c, values are not.
        q = torch.cat(
            [torch.einsum("bthk,hkr->bthr", exact["q_n"], exact["w_uk"]), exact["q_r"]], -1
        )
        keys = torch.cat([c, k_r], -1)[:, :, None]
        mean, _ = reference.attention(q, keys, c.abs()[:, :, None], causal=True, scale=scale)
        size = torch.einsum("bthr,hvr->bthv", mean, exact["w_uv"].abs())[0]
        terms = c.shape[1] + self.key_dim
        budget = self.budget(want[0], size, terms, True) + torch.finfo(self.dtype).eps / 2 * size
        assert ((o - want[0]).abs() <= budget).all(), f"sequence {n}: {o}, want {want[0]}"
        if lse is not None:
            bound = 8 * relative_error(terms, True)
            assert ((lse - want_lse[0]).abs() <= bound).all(), f"LSE {lse}, want {want_lse[0]}"

    attention_options = ("scale", "return_lse", "num_splits", "mode", "tile")

    def attention_arguments(self, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
        return self.queries(q.shape[1], 0) | {"c": k, "k_r": v}

    def refused_attention(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> list[tuple[str, Callable[[], object]]]:
        given = self.attention_arguments(q, k, v)

        def wrong(**changes: Any) -> Callable[[], object]:
            cache: Any = self.cache
            return lambda: cache.attend(**(given | changes))

        return [
            ("attention", wrong(attention=None)),
            ("attention", lambda: self.model.attend(**given, attention=None)),
            ("q_n", wrong(q_n=None)),
            ("q_r", wrong(q_r=given["q_r"][:, :1])),
            ("c", wrong(c=k[:, :, 0])),
            ("c", wrong(c=torch.cat([k, k], 2))),
            ("k_r", wrong(k_r=v.double())),
            ("w_uk", wrong(w_uk=given["w_uk"][..., :0])),
            ("w_uv", wrong(w_uv=given["w_uv"][:0])),
            ("w_uv", wrong(w_uv=given["w_uv"].to("meta"))),
            ("absorbed", wrong(absorbed=1)),
            ("num_splits", wrong(absorbed=False, num_splits=1)),
            ("scale", wrong(scale=torch.nan)),
            ("offset", wrong(offset=q.shape[1] + 1)),
        ]

    def attention_that_refuses(self) -> None:
        if self.fits([1] * self.batch):
            _, c, k_r = self.draw_tokens(1, 0)
            given = self.queries(1, 0) | {"c": c, "k_r": k_r}
            self.refuse(
                ("num_splits", lambda: self.cache.attend(**given, num_splits=0)),
                ("tile", lambda: self.cache.attend(**given, absorbed=False, tile=-1)),
            )
