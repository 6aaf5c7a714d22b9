"""A cache that keeps the last tokens only."""

from typing import Any, Unpack

from torch import Tensor

from kernels.cache.counts import token_counts
from kernels.cache.kv import Storage
from kernels.cache.ring import RingCache


class SlidingWindowCache(RingCache):
    """The last W tokens of each sequence, in a ring.

    `k_pages` is [B, W, G, K] and `v_pages` is [B, W, G, V]; the token at position p of sequence n
    is row [n, p % W]. An update returns the W - 1 tokens before it and all its own, so that the
    first query of a chunk sees its whole window, however long the chunk; what the window has left
    behind is overwritten only after that.

    `length` goes on counting the tokens that are forgotten. There is room for any number.

    Args:
        batch: number of sequences B.
        window: keys that a query sees, its own included.
        kv_heads, key_dim, value_dim: G, K and V.
        dtype: float32, bfloat16 or float16.

    Source: Beltagy et al., "Longformer" (arXiv 2004.05150).
    """

    def __init__(
        self,
        batch: int,
        window: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        **storage: Unpack[Storage],
    ) -> None:
        super().__init__(batch, 0, window, kv_heads, key_dim, value_dim, **storage)

    def crop(self, length: int | Tensor) -> None:
        """Keep the first `length` tokens of every sequence; a shorter one stays as it is.

        The next token needs the W - 1 tokens before it. Once a sequence has forgotten its first
        tokens, they are all there for a crop by one token only.

        Raises:
            TypeError: `length` is no int and no int tensor.
            ValueError: it is negative, or the next token would need a forgotten one. No sequence is
                then cropped.
        """
        wanted = token_counts("length", length, self.batch)
        for n, (new, old) in enumerate(zip(wanted, self._length, strict=True)):
            needed = max(0, new - (self.window - 1))
            if new < old and needed < self._first[n]:
                raise ValueError(
                    f"length: {new} for sequence {n}, which has forgotten its first "
                    f"{self._first[n]} tokens; the next token would need those from {needed} on"
                )
        super().crop(length)

    def _window_options(self, options: dict[str, Any]) -> dict[str, Any]:
        window = options.get("window")
        if window is None:
            return options | {"window": self.window}
        if window > self.window:
            raise ValueError(f"window: {window}, expected at most the {self.window} keys kept")
        return options
