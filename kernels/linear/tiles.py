"""Sizes of the tiles of the chunked forms, which are fast and fit a GPU."""

import torch

from kernels.tiles import Entry, Tile, aligned, next_power_of_2

# Keys in one of the tiles in which a delta rule's program holds its state, by element size: in a
# float32 product a thread holds whole rows of its operands.
_DELTA_KEYS = {2: 64, 4: 32}


def blocks(key_dim: int, value_dim: int, tile: Tile, dtype: torch.dtype) -> tuple[int, int]:
    """Widths of the tiles of K and V."""
    # A float16 operand becomes two in bfloat16, see `primitives.product`.
    widest = tile.keys // 2 if dtype == torch.float16 else tile.keys
    least = tile.narrowest(dtype.itemsize)
    return max(least, _width(key_dim, widest)), max(least, _width(value_dim, tile.features))


def tile_of(kernel: str, tile: Entry, key_dim: int, value_dim: int) -> Tile:
    """The tile of a kernel for rows so long."""
    whole = aligned(key_dim, value_dim) or "unaligned" not in tile.kernels
    return tile.of(kernel if whole else "unaligned")


def _width(dim: int, widest: int) -> int:
    if dim % 8:
        # Rows that are not aligned are loaded element by element, which takes registers.
        widest = min(widest // 2, 32)
    # A power of two, at least the 16 that a product takes.
    return max(16, min(next_power_of_2(dim), widest))


def keys_of_delta(key_dim: int, dtype: torch.dtype) -> int:
    """Keys in one of the tiles in which a delta rule's program holds its state."""
    return max(16, min(_DELTA_KEYS[dtype.itemsize], next_power_of_2(key_dim)))
