"""A cache of an endless stream: its first tokens and its last ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import bind_dims, check_tensors
from kernels.cache.kv import CacheView
from kernels.cache.ring import RingCache
from kernels.position.rotary import rotary_embedding
from kernels.softmax.attention import attention as softmax_attention


class StreamingCache(RingCache):
    """The first tokens of each sequence (sinks), and a ring of the last.

        held of n ← held[:sinks] + (held[sinks:] + [token])[-window:]
        places    = 0, 1, ..., len(held) - 1
        o         = attention of the token, at the last place, to held, each key at its place

    `k_pages` is [B, sinks + window, G, K] and `v_pages` is [B, sinks + window, G, V]; the token at
    position p of sequence n is row [n, p] if it is a sink, else [n, sinks + (p - sinks) % window].

    Keys are stored as they come. Each step rotates them by their place in the cache and not in the
    stream, so tokens go one by one: a call of T tokens takes T steps. `length` goes on counting the
    tokens that are forgotten.

    Args:
        batch: number of sequences B.
        sinks: first tokens of each sequence that stay, at least 0.
        window: last tokens that stay besides, the newest included.
        kv_heads, key_dim, value_dim: G, K and V.
        dtype: float32, bfloat16 or float16.

    Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (arXiv
    2309.17453), section 3.2.
    """

    options = ("scale", "softcap", "sink", "alibi_slopes", "mode", "tile")

    def update(self, k: Tensor, v: Tensor, offset: int | Tensor | None = None) -> CacheView:
        """Append at most one token to each sequence and return what it attends to, not rotated.

        Raises:
            TypeError, ValueError: as `KVCache.update`; more than one token.
        """
        if isinstance(k, Tensor) and k.dim() == 4 and k.shape[1] > 1:
            raise ValueError(f"k: {k.shape[1]} tokens, expected at most 1; attend takes more")
        return super().update(k, v, offset)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        offset: int | Tensor | None = None,
        attention: Callable[..., tuple[Tensor, Tensor | None]] | None = None,
        **options: Any,
    ) -> Tensor:
        """Append the tokens one after the other, and return what each attends to.

        Args:
            q, k, v: queries [B, T, H, K], keys and values of the new tokens, not rotated.
            cos, sin: tables of at least `sinks + window` places, see `rotary_embedding`.
            offset: as in `KVCache.update`.
            attention: `kernels.attention`, or a function with its arguments.
            options: those of `options`: scale, softcap, sink, alibi_slopes, mode, tile.

        Returns:
            o [B, T, H, V]. Padding rows are 0.

        Raises:
            TypeError, ValueError: as `KVCache.update`, `rotary_embedding` and `attention` do, with
                nothing appended; tables too short; another option than these.
        """
        self._check_options(options)
        check_tensors(q=q, k=k, v=v, cos=cos, sin=sin)
        bind_dims(
            q=(q, "B T H K"),
            k=(k, "B T G K"),
            v=(v, "B T G V"),
            cos=(cos, "R P"),
            sin=(sin, "R P"),
        )
        places = self.sinks + self.window
        if cos.shape[0] < places:
            raise ValueError(f"cos: {cos.shape[0]} places, expected at least {places}")
        counts = self._check(k, v, offset).counts
        of_keys = attention or softmax_attention

        def attend(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
            ends = given["cu_seqlens_k"]
            last = (ends.diff() - 1).clamp(min=0)
            q = rotary_embedding(q, cos, sin, seqlen_offsets=last, cu_seqlens=given["cu_seqlens"])
            return of_keys(q, rotary_embedding(k, cos, sin, cu_seqlens=ends), v, **given)

        o = q.new_zeros(*q.shape[:3], v.shape[-1])
        with self._as_it_was_after_an_error(steps=max(counts)):
            # A call without tokens has its arguments checked too.
            for t in range(max(1, *counts)):
                new = torch.tensor([int(count > t) for count in counts])
                token = slice(t, t + 1)
                rows, _ = self._attend_padded(
                    q[:, token], k[:, token], v[:, token], new, attend, options
                )
                o[:, token] = rows
        return o

    @contextmanager
    def _as_it_was_after_an_error(self, *, steps: int) -> Iterator[None]:
        """Take back what earlier steps have written. One step alone writes nothing it refuses."""
        pages = (self.k_pages, self.v_pages) if steps > 1 else ()
        before = [x.clone() for x in pages]
        length, first = self._length, self._first
        try:
            yield
        except BaseException:
            for x, old in zip(pages, before, strict=True):
                x.copy_(old)
            self._length, self._first = length, first
            raise
