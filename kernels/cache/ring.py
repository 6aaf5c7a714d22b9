"""The base of caches that keep a sequence's last tokens in a ring."""

from typing import Unpack

from torch import Tensor

from kernels.arguments import check_size
from kernels.cache.counts import token_counts
from kernels.cache.kv import SequenceOwnedCache, Storage


class RingCache(SequenceOwnedCache):
    """The first tokens of each sequence (sinks), and the last ones in a ring behind them.

    The token at position p of sequence n is row [n, p] if it is a sink, else row
    [n, sinks + (p - sinks) % window]. There is room for any number of tokens.

    Args:
        batch: number of sequences B.
        sinks: first tokens of each sequence that stay, at least 0.
        window: last tokens that stay besides, the newest included.
        kv_heads, key_dim, value_dim: G, K and V.
    """

    ring = True

    def __init__(
        self,
        batch: int,
        sinks: int,
        window: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        **storage: Unpack[Storage],
    ) -> None:
        check_size("sinks", sinks, least=0)
        check_size("window", window)
        super().__init__(batch, sinks + window, kv_heads, key_dim, value_dim, **storage)
        self.sinks, self.window = sinks, window
        # Position of the first token held behind the sinks.
        self._first = [sinks] * batch

    def crop(self, length: int | Tensor) -> None:
        """Keep the first `length` tokens of every sequence; a shorter one stays as it is.

        The next token needs the sinks and the window - 1 tokens before it. Once a sequence has
        forgotten tokens, these are there after a crop by one token only, or by more where the ring
        has none of them: a crop to the sinks or fewer, or any crop with a window of 1.

        Raises:
            TypeError: `length` is no int and no int tensor.
            ValueError: it is negative, or the next token would need a key that is forgotten. No
                sequence is then cropped.
        """
        wanted = token_counts("length", length, self.batch)
        for n, (new, old) in enumerate(zip(wanted, self._length, strict=True)):
            needed = max(self.sinks, new - (self.window - 1))
            if new < old and needed < min(new, self._first[n]):
                raise ValueError(
                    f"length: {new} for sequence {n}, expected a length after which no token needs "
                    f"a forgotten key, as the next one would at position {needed}"
                )
        super().crop(length)
        self._first = [
            min(first, max(self.sinks, length))
            for first, length in zip(self._first, self._length, strict=True)
        ]

    def reset(self) -> None:
        """Forget everything: every sequence has length 0."""
        super().reset()
        self._first = [self.sinks] * self.batch

    def _reserve(self, counts: list[int]) -> None:
        """Do nothing: a ring always has room."""

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
        return [max(self.sinks, length - (self.window - 1)) for length in self._length]
