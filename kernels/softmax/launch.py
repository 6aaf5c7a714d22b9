"""Launch parameters and results of kernels over pairs of queries and keys."""

import torch
from torch import Tensor

from kernels import tiles
from kernels.differentiable import Given
from kernels.softmax.logits import LOG2E
from kernels.tiles import next_power_of_2


def launch(tile: tiles.Tile, k: Tensor, v: Tensor, *, held: str, read: str) -> dict[str, int]:
    """Return the arguments of a launch that follow from the tile.

    `held` and `read` are the names of the kernel's two numbers of rows.

    Rows that are not aligned are loaded element by element, which takes registers. No copy to
    shared memory is that narrow: what a later step needs would take them as well.
    """
    key_dim, value_dim = k.shape[3], v.shape[3]
    aligned = tiles.aligned(key_dim, value_dim)
    narrowest = tile.narrowest(k.dtype.itemsize)
    pad_k = max(narrowest, next_power_of_2(key_dim))
    pad_v = max(narrowest, next_power_of_2(value_dim))
    return {
        held: tile.tokens,
        read: tile.keys if aligned else min(tile.keys, 16),
        "PAD_K": pad_k,
        "PAD_V": pad_v,
        "FULL_K": pad_k == key_dim,
        "FULL_V": pad_v == value_dim,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages if aligned else 1,
    }


def factor_and_cap(scale: float, softcap: float | None) -> tuple[float, float]:
    """Return the two numbers by which `logits` scales products; the cap is 0 without a softcap."""
    if softcap is None:
        return scale * LOG2E.value, 0.0
    return scale / softcap, softcap * LOG2E.value


def result_shapes(given: Given) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of o, of lse, and of a row's maximum and sum for the backward pass."""
    q, v = given["q"], given["v"]
    batch, queries, heads, _ = q.shape
    return [
        ((batch, queries, heads, v.shape[3]), q.dtype),
        ((batch, heads, queries), torch.float32),
        ((2, batch, heads, queries), torch.float32),
    ]
