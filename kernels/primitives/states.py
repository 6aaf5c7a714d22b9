"""The tiles that hold a state, and states that are optional.

An optional state is a flag at run time, by which a kernel masks loads and stores. Constants instead
would mean another kernel to compile for each state, and four for two states. `linear.parallel` and
`conv.short_conv` have constants: there a state decides how much is computed.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import count_sequences
from kernels.tiles import Tile, next_power_of_2


@triton.jit
def locate_tile(heads, key_tiles, value_tiles):
    """Return the tile of a state that a program holds.

    Returns:
        The numbers of the tile along keys and along values, the head and the sequence.
    """
    program = tl.program_id(0)
    value_tile = program % value_tiles
    key_tile = program // value_tiles % key_tiles
    head = program // (value_tiles * key_tiles) % heads
    sequence = program // (value_tiles * key_tiles * heads)
    return key_tile, value_tile, head, sequence


def optional(state: Tensor | None, like: Tensor) -> tuple[Tensor, bool]:
    """Return the arguments of a kernel for a state: float32 memory, and whether there is any."""
    if state is None:
        return like.new_empty(0, dtype=torch.float32), False
    return state.contiguous(), True


def blocks_of_state(tile: Tile, key_dim: int, value_dim: int) -> dict[str, int]:
    """The widths of a tile with all keys of a state, BK, and some of its values, BV."""
    return {
        "BK": max(16, next_power_of_2(key_dim)),
        "BV": min(tile.features, max(16, next_power_of_2(value_dim))),
    }


def without_last(state: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A state without its last column, and that column."""
    return (None, None) if state is None else (state[..., :-1], state[..., -1])


def output_and_states(
    given: Mapping[str, Any], x: Tensor, dtype: torch.dtype, state: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], torch.dtype], tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of what an op with a state makes of its arguments, by their names: an output
    like `x [B, T, ...]`, of that dtype, and float32 states `[N, *state]`, without elements if none
    are asked for."""
    states = (count_sequences(x.shape[0], given["cu_seqlens"]), *state)
    return (x.shape, dtype), (states if given["output_final_state"] else (0,), torch.float32)
