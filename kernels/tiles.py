"""Tile sizes: a small table by op, mode, head dim, dtype and architecture. Nothing autotunes.

An op takes `tile`, an index into its row of `TABLE`, or None for the first entry that admits the
shapes at hand. Every entry computes the same function on every shape that it admits; the properties
draw the index like any other option.
"""

from dataclasses import dataclass

import torch

from kernels.arguments import describe


@dataclass(frozen=True)
class Tile:
    """One way to cut an op's work into programs.

    Args:
        tokens: tokens (queries) that a program holds at once; the chunk length of chunked forms.
        keys: keys that a softmax program reads per step; the sub-chunk length of chunked forms.
        features: widest slice of a head dim that a program holds at once.
        num_warps, num_stages: Triton's launch parameters.
        max_dim: largest head dim admitted.
        max_itemsize: largest element size admitted, in bytes; 2 keeps float32 out.
        arch: smallest compute capability admitted, 90 for Hopper; 0 for any device, AMD's too.
        arch_below: compute capabilities admitted are below this one. Later is not larger: 120 has
            less shared memory than 90.
        backward: the tile of the backward kernels, None for this one.
    """

    tokens: int
    keys: int = 0
    features: int = 256
    num_warps: int = 4
    num_stages: int = 2
    max_dim: int = 256
    max_itemsize: int = 4
    arch: int = 0
    arch_below: int = 1000
    backward: "Tile | None" = None

    def admits(self, dim: int, itemsize: int, arch: int) -> bool:
        return (
            dim <= self.max_dim
            and itemsize <= self.max_itemsize
            and self.arch <= arch < self.arch_below
        )

    def backward_tile(self) -> "Tile":
        return self.backward or self

    def narrowest(self, itemsize: int) -> int:
        """Fewest columns of a head dim that a program may hold: 16, or 64 in warp-group products.

        On Hopper, four warps multiply 64 rows of 16-bit numbers as a group, out of shared memory.
        Triton 3.6 addresses a transposed operand wrongly there if its rows are shorter than the 128
        bytes of a full swizzle: wrong results, and reads outside the shared memory. Seen on an
        H200; see `regressions/softmax/narrow_operands_on_hopper.py`.
        """
        return 64 if itemsize == 2 and self.tokens >= 64 and self.num_warps >= 4 else 16


# Where a row is shorter than the threads are many, Triton has each thread load it for itself,
# element by element, as far as it holds cells for it: on an H200 small tiles are the fastest.
_FUSED_RECURRENT = (
    Tile(tokens=32, features=32, num_warps=2),
    Tile(tokens=16, features=32, num_warps=2),
    Tile(tokens=64, features=64, num_warps=8),
)

_DELTA_CHUNK = (
    Tile(
        tokens=32,
        keys=32,
        features=16,
        num_stages=1,
        max_dim=128,
        max_itemsize=2,
        backward=Tile(tokens=32, keys=32, features=16, num_warps=8, num_stages=1),
    ),
    Tile(tokens=16, keys=32, features=16, num_warps=8, num_stages=1),
)
_DELTA_RECURRENT = (
    Tile(tokens=32, features=16, max_dim=128),
    Tile(tokens=16, features=16, num_warps=8),
)

TABLE: dict[tuple[str, str], tuple[Tile, ...]] = {
    # tokens: (batch, token, head) vectors of x.
    ("rotary_embedding", "fused"): (
        Tile(tokens=32, max_dim=128),
        Tile(tokens=8, num_warps=2),
        Tile(tokens=128, num_warps=8, max_dim=64),
    ),
    # tokens: rows that a program holds, queries in the forward and dq kernels, keys in that of dk
    # and dv; keys: rows that it reads per step, of the other kind. Forget gates take registers, so
    # the backward tile has a backward tile of its own: that with gates.
    ("attention", "parallel"): (
        # Hopper, up to 227 KiB of shared memory. On sm_100 these spill.
        Tile(
            tokens=128,
            keys=64,
            num_warps=8,
            num_stages=3,
            max_dim=64,
            max_itemsize=2,
            arch=90,
            arch_below=100,
            backward=Tile(
                tokens=128,
                keys=32,
                num_warps=8,
                num_stages=3,
                backward=Tile(tokens=32, keys=32, num_warps=8, num_stages=1),
            ),
        ),
        Tile(
            tokens=128,
            keys=64,
            num_warps=8,
            num_stages=3,
            max_dim=128,
            max_itemsize=2,
            arch=90,
            arch_below=100,
            backward=Tile(
                tokens=64,
                keys=32,
                num_warps=8,
                backward=Tile(tokens=32, keys=32, num_warps=8, num_stages=1),
            ),
        ),
        Tile(
            tokens=128,
            keys=32,
            num_warps=8,
            max_itemsize=2,
            arch=90,
            arch_below=100,
            backward=Tile(
                tokens=32,
                keys=32,
                num_warps=8,
                backward=Tile(tokens=32, keys=16, num_warps=8, num_stages=1),
            ),
        ),
        # From Ampere on, up to 99 KiB.
        Tile(
            tokens=64,
            keys=32,
            max_dim=128,
            max_itemsize=2,
            arch=80,
            backward=Tile(
                tokens=32,
                keys=32,
                backward=Tile(tokens=32, keys=32, num_warps=8, num_stages=1),
            ),
        ),
        Tile(
            tokens=64,
            keys=32,
            num_warps=8,
            max_itemsize=2,
            arch=80,
            backward=Tile(tokens=32, keys=16, num_warps=8, num_stages=1),
        ),
        # Any device, up to 64 KiB.
        Tile(
            tokens=32,
            keys=32,
            num_stages=1,
            max_dim=64,
            backward=Tile(
                tokens=32,
                keys=16,
                num_stages=1,
                backward=Tile(tokens=16, keys=16, num_stages=1),
            ),
        ),
        Tile(
            tokens=16,
            keys=16,
            num_stages=1,
            arch=80,
            backward=Tile(
                tokens=16,
                keys=16,
                num_stages=1,
                backward=Tile(tokens=16, keys=16, num_warps=16, num_stages=1),
            ),
        ),
        Tile(tokens=16, keys=16, num_stages=1),
    ),
    # tokens: of a chunk; keys, features: sides of a tile along K and V (keys: see
    # `linear.chunk.blocks`). Products of 16 bits want a warp for 16 tokens. No entry multiplies in
    # warp groups, which want sides that these kernels have no registers for: see `narrowest`.
    ("linear_attn", "chunk"): (
        Tile(tokens=32, keys=32, features=64, num_warps=2, max_itemsize=2),
        Tile(tokens=32, keys=32, features=32, num_stages=1),
    ),
    ("linear_attn", "fused_chunk"): (
        Tile(tokens=32, keys=64, features=16, num_warps=2, max_itemsize=2),
        Tile(tokens=16, keys=64, features=32, num_stages=1),
    ),
    ("gla", "chunk"): (
        Tile(tokens=32, keys=16, features=64, num_warps=2, num_stages=1, max_itemsize=2),
        Tile(tokens=16, keys=32, features=32, num_stages=1),
    ),
    # tokens: between two kept states in the backward pass; features: both sides of a tile of the
    # state.
    ("linear_attn", "fused_recurrent"): _FUSED_RECURRENT,
    ("gla", "fused_recurrent"): _FUSED_RECURRENT,
    ("simple_gla", "chunk"): (
        Tile(
            tokens=32,
            keys=32,
            features=64,
            num_warps=2,
            max_itemsize=2,
            backward=Tile(tokens=32, keys=32, features=32, num_stages=1),
        ),
        Tile(tokens=32, keys=32, features=32, num_stages=1),
    ),
    ("simple_gla", "fused_chunk"): (
        Tile(
            tokens=32,
            keys=64,
            features=16,
            num_warps=2,
            max_itemsize=2,
            backward=Tile(tokens=32, keys=32, features=32, num_stages=1),
        ),
        Tile(tokens=16, keys=64, features=32, num_stages=1),
    ),
    ("simple_gla", "fused_recurrent"): _FUSED_RECURRENT,
    ("simple_gla", "parallel"): (
        Tile(
            tokens=32,
            keys=64,
            features=64,
            num_warps=2,
            max_itemsize=2,
            backward=Tile(tokens=32, keys=32, features=32, num_stages=1),
        ),
        Tile(tokens=16, keys=32, features=32, num_stages=1),
    ),
    # The same, but the carrier of states holds all keys.
    ("delta_rule", "chunk"): _DELTA_CHUNK,
    ("gated_delta_rule", "chunk"): _DELTA_CHUNK,
    ("kda", "chunk"): _DELTA_CHUNK,
    ("dplr", "chunk"): _DELTA_CHUNK,
    # tokens: between two kept states in the backward pass; features: values of a program.
    ("delta_rule", "fused_recurrent"): _DELTA_RECURRENT,
    ("gated_delta_rule", "fused_recurrent"): _DELTA_RECURRENT,
    ("kda", "fused_recurrent"): _DELTA_RECURRENT,
    ("dplr", "fused_recurrent"): _DELTA_RECURRENT,
    # features: channels of a program.
    ("short_conv", "fused"): (
        Tile(tokens=32, features=64),
        Tile(tokens=16, features=128, num_warps=2),
    ),
    # tokens: (batch, token, head) vectors of x.
    ("l2norm", "fused"): (Tile(tokens=32, max_dim=128), Tile(tokens=8)),
}


def architecture(device: torch.device) -> int:
    """Compute capability times ten of an NVIDIA device; 0 for every other accelerator.

    Tensors on a CPU are for the simulator or the interpreter, where nothing limits a tile: they
    take what Hopper takes, so that its tiles are tested without one.
    """
    if device.type == "cpu":
        return 90
    if device.type != "cuda" or torch.version.hip is not None:
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def choose(
    op: str, mode: str, *, dim: int, dtype: torch.dtype, device: torch.device, tile: int | None
) -> int:
    """The index of the tile to use: `tile` if it is admitted, the first admitted entry if None.

    Raises:
        TypeError: `tile` is neither an int nor None.
        ValueError: there is no such entry, or it does not admit the head dim, dtype or device.
    """
    entries = TABLE[op, mode]
    arch = architecture(device)
    if tile is None:
        for index, entry in enumerate(entries):
            if entry.admits(dim, dtype.itemsize, arch):
                return index
        raise ValueError(f"head dim: {dim}, expected a dim that {op} ({mode}) has a tile for")
    if isinstance(tile, bool) or not isinstance(tile, int):
        raise TypeError(f"tile: {describe(tile)}, expected an int or None")
    if not 0 <= tile < len(entries):
        raise ValueError(f"tile: {tile}, expected 0 to {len(entries) - 1} for {op} ({mode})")
    if not entries[tile].admits(dim, dtype.itemsize, arch):
        raise ValueError(f"tile: {tile}, which {op} ({mode}) has not for head dim {dim} in {dtype}")
    return tile
