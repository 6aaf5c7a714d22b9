"""A cache that keeps the last tokens only."""

from typing import Any

import torch
from torch import Tensor

from kernels.cache.counts import check_size, token_counts
from kernels.cache.kv import SequenceOwnedCache


class SlidingWindowCache(SequenceOwnedCache):
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

    ring = True

    def __init__(
        self,
        batch: int,
        window: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        check_size("window", window)
        super().__init__(batch, window, kv_heads, key_dim, value_dim, dtype=dtype, device=device)
        self.window = window
        self._first = [0] * batch

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

    def reset(self) -> None:
        """Forget everything: every sequence has length 0."""
        super().reset()
        self._first = [0] * self.batch

    def _reserve(self, counts: list[int]) -> None:
        """A ring has always room."""

    def _claim(self, counts: list[int]) -> None:
        # Never below what an earlier update left, for a crop brings no forgotten token back.
        self._first = [
            max(first, old + new - self.window)
            for first, old, new in zip(self._first, self._length, counts, strict=True)
        ]

    def _reorder(self, indices: list[int]) -> None:
        super()._reorder(indices)
        self._first = [self._first[n] for n in indices]

    def _first_visible(self) -> list[int]:
        return [max(0, length - (self.window - 1)) for length in self._length]

    def _window_options(self, options: dict[str, Any]) -> dict[str, Any]:
        window = options.get("window")
        if window is None:
            return options | {"window": self.window}
        if window > self.window:
            raise ValueError(f"window: {window}, expected at most the {self.window} keys kept")
        return options
