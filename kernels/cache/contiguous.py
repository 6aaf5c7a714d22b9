"""A cache with room for a fixed number of tokens per sequence."""

from kernels.cache.kv import SequenceOwnedCache


class ContiguousCache(SequenceOwnedCache):
    """Keys and values in one tensor each, `capacity` tokens per sequence.

    `k_pages` is [B, capacity, G, K] and `v_pages` is [B, capacity, G, V]; the token at position p
    of sequence n is row [n, p]. An update past the capacity is refused.

    Args:
        batch: number of sequences B.
        capacity: tokens that a sequence has room for.
        kv_heads, key_dim, value_dim: G, K and V.
        dtype: float32, bfloat16 or float16.

    Source: Shazeer, "Fast Transformer Decoding" (arXiv 1911.02150).
    """

    @property
    def capacity(self) -> int:
        """Tokens that a sequence has room for."""
        return self.k_pages.shape[1]

    def _reserve(self, counts: list[int]) -> None:
        for n, (old, new) in enumerate(zip(self._length, counts, strict=True)):
            if old + new > self.capacity:
                raise ValueError(
                    f"offset: {new} tokens after the {old} of sequence {n}, "
                    f"expected at most the capacity of {self.capacity}"
                )

    def _claim(self, counts: list[int]) -> None:
        """Do nothing: the room is there from the start."""
