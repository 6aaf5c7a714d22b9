"""The cache of cross-attention, as a list of tokens."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from reference.cache.kv import CacheView, KVCache, padded
from reference.softmax.attention import attention as softmax_attention


class CrossAttentionCache(KVCache):
    """Keys and values of an encoder: written once, and read at every step of the decoder.

        update: tokens ← new, once after each reset
        attend: attention of each query to all tokens of its sequence; it appends none

    Source: Vaswani et al., "Attention Is All You Need" (arXiv 1706.03762), section 3.2.3.
    """

    # None that supposes that queries are the last keys.
    options = ("scale", "softcap", "sink", "return_lse")

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.written = False

    def update(
        self,
        k: Float[Tensor, "B T G K"],
        v: Float[Tensor, "B T G V"],
        offset: int | Int[Tensor, " B"] | None = None,
    ) -> CacheView:
        """Write the tokens of the encoder and return them, see `KVCache.update`.

        Raises:
            TypeError, ValueError: as `KVCache.update`; the cache has been written since its reset.
        """
        self._check(k, v, offset)
        if self.written:
            raise ValueError("k: given again, expected one update after each reset")
        view = super().update(k, v, offset)
        self.nothing = view.k[:, :0], view.v[:, :0]
        self.written = True
        return view

    def attend(  # type: ignore[override]
        self,
        q: Float[Tensor, "B T H K"],
        *,
        offset: int | Int[Tensor, " B"] | None = None,
        attention: Callable[..., tuple[Tensor, Tensor | None]] = softmax_attention,
        **options: Any,
    ) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H T"] | None]:
        """Let each query attend to all tokens of its sequence.

        Args:
            q: queries of the decoder.
            offset: how many of the T queries are real. The o of others is 0, their LSE -inf.
            attention: `reference.attention`, or a function with its arguments.
            options: those of `options`: scale, softcap, sink, return_lse.

        Raises:
            TypeError, ValueError: as `KVCache.update` and `attention` do; nothing is written yet;
                another option than these.
        """
        self._check_options(options)
        if not self.written:
            raise ValueError("q: given before the keys, expected an update first")
        if q.dim() != 4 or q.shape[0] != len(self.tokens):
            raise ValueError(f"q: shape {list(q.shape)}, expected [{len(self.tokens)}, T, H, K]")
        counts = self._counts(offset, q.shape[1])

        def of(n: int) -> tuple[Tensor, Tensor | None]:
            k, v = self.nothing
            if self.tokens[n]:
                k, v = (torch.stack(x)[None] for x in zip(*self.tokens[n], strict=True))
            return attention(q[n : n + 1, : counts[n]], k, v, **options)

        return padded(q, counts, map(of, range(len(counts))))

    def reset(self) -> None:
        """Forget everything: the next update writes again."""
        super().reset()
        self.written = False
