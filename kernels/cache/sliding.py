"""A cache that keeps the last tokens only."""

from typing import Any, Unpack

from kernels.cache.kv import Storage
from kernels.cache.ring import RingCache
from kernels.softmax.arguments import check_window


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

    def _window_options(self, options: dict[str, Any]) -> dict[str, Any]:
        window = check_window(options.get("window"))
        if window is None:
            return options | {"window": self.window}
        if window > self.window:
            raise ValueError(f"window: {window}, expected at most the {self.window} keys kept")
        return options
