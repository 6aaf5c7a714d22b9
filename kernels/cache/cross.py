"""A paged cache of cross-attention."""

from typing import Any

import torch
from torch import Tensor

from kernels.arguments import bind_dims, check_dtype, check_tensors
from kernels.cache.kv import pack, unpack
from kernels.cache.paged import PagedCache
from kernels.softmax.paged import paged_attention


class CrossAttentionCache(PagedCache):
    """Keys and values of an encoder: written once, and read at every step of the decoder.

        update: tokens ← new, once after each reset
        attend: attention of each query to all tokens of its sequence; it appends none

    Beams of a sequence share its pages, which nobody writes to again.

    Args: those of `PagedCache`.

    Source: Vaswani et al., "Attention Is All You Need" (arXiv 1706.03762), section 3.2.3.
    """

    # None that supposes that queries are the last keys.
    options = ("scale", "softcap", "sink", "return_lse", "num_splits", "mode", "tile")
    _written = False

    @classmethod
    def from_pages(cls, *given: Any, **named: Any) -> "CrossAttentionCache":
        """A cache over pages that hold the keys and values, see `PagedCache.from_pages`."""
        cache: Any = super().from_pages(*given, **named)
        cache._written = True
        return cache

    def attend(
        self,
        q: Tensor,
        *,
        offset: int | Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Let each query attend to all tokens of its sequence, read where they lie.

        It has no gradient.

        Args:
            q: queries [B, T, H, K] of the decoder.
            offset: how many of the T queries are real: one number, or Int[B]. None: all T.
            options: those of `options`, of `paged_attention`: scale, softcap, sink, return_lse,
                num_splits, mode, tile.

        Returns:
            o [B, T, H, V], and the LSE [B, H, T] if asked for. Padding rows are 0, their LSE -inf.

        Raises:
            TypeError, ValueError: as `paged_attention` does; nothing is written yet; another option
                than these.
        """
        self._check_options(options)
        if not self._written:
            raise ValueError("q: given before the keys, expected an update first")
        check_tensors(q=q)
        sizes = bind_dims(k_pages=(self.k_pages, "P C G K"), q=(q, f"{self.batch} T H K"))
        check_dtype("q", q, self.dtype)
        counts = self._counts(offset, sizes["T"])
        lengths, new = torch.tensor([self._length, counts], device=q.device)
        packed, lse = paged_attention(
            pack(q, counts),
            self.k_pages,
            self.v_pages,
            self._table(),
            lengths,
            cu_seqlens=torch.cat([new.new_zeros(1), new.cumsum(0)]).int(),
            **options,
        )
        return unpack(packed, lse, counts, sizes["T"])

    def _reserve(self, counts: list[int]) -> None:
        if self._written:
            raise ValueError("k: given again, expected one update after each reset")
        super()._reserve(counts)

    def _claim(self, counts: list[int]) -> None:
        super()._claim(counts)
        self._written = True

    def reset(self) -> None:
        """Forget everything: the next update writes again."""
        super().reset()
        self._written = False
