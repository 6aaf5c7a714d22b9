"""A cache with room for a fixed number of tokens per sequence."""

import torch

from kernels.cache.counts import check_size
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

    def __init__(
        self,
        batch: int,
        capacity: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        check_size("capacity", capacity)
        super().__init__(batch, capacity, kv_heads, key_dim, value_dim, dtype=dtype, device=device)

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
        """The room is there from the start."""
