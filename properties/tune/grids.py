"""The tiles to try for the kernels of an op and mode."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from kernels.tiles import Entry, Tile

_FORWARD, _BOTH = False, True
_EACH = (_FORWARD, _BOTH)
# Bytes on Hopper.
_SHARED = 227 * 1024

Grid = Callable[[int], list[Tile]]


@dataclass(frozen=True)
class Stage:
    """Kernels whose tile is searched for while all others stay.

    Args:
        kernel: the name of their tile in `Entry.kernels`; None for the entry's own.
        grid: the tiles to try for a head dim; one of 0 tokens takes the entry's chunk.
        passes: what is timed: the forward pass, or forward and backward together.
        uniform: whether the entry's own tile is tried for all kernels alike.
        terms: which terms attention's logits have: none, "biased" or "gated".
    """

    kernel: str | None
    grid: Grid
    passes: tuple[bool, ...]
    uniform: bool = False
    terms: str = ""

    @property
    def name(self) -> str:
        return self.kernel or "entry"

    def tile(self, entry: Entry) -> Tile:
        own = entry if self.kernel is None else entry.of(self.kernel)
        return Tile(own.tokens, own.keys, own.features, own.num_warps, own.num_stages)

    def candidates(self, entry: Entry, dim: int) -> list[Entry]:
        """The entry itself, and with each of the other tiles."""
        entries = {self.tile(entry): entry}
        for tile in self.grid(dim):
            tile = tile if tile.tokens else replace(tile, tokens=entry.tokens)
            entries.setdefault(tile, self.with_tile(entry, tile))
        return list(entries.values())

    def with_tile(self, entry: Entry, tile: Tile) -> Entry:
        """The entry with this tile for these kernels."""
        if self.kernel is not None:
            # Attention's dk and dv have one tile or two.
            other = ("dk", "dv") if self.kernel == "dkv" else ()
            others = {name: own for name, own in entry.kernels.items() if name not in other}
            return replace(entry, kernels={**others, self.kernel: tile})
        own = replace(entry, **vars(tile))
        if not self.uniform:
            return own
        # Loading element by element leaves no registers for wide tiles.
        return replace(own, kernels={"unaligned": Tile(tile.tokens, 16, 16, 2, 1)})


@dataclass(frozen=True)
class SoftmaxTiles:
    """All of (tokens, warps, keys, stages) that fit into shared memory."""

    parts: tuple[tuple[int, int, tuple[int, ...], tuple[int, ...]], ...]

    def __call__(self, dim: int) -> list[Tile]:
        tiles = [
            Tile(tokens, keys, num_warps=num_warps, num_stages=num_stages)
            for tokens, num_warps, each_keys, each_stages in self.parts
            for keys, num_stages in product(each_keys, each_stages)
        ]
        return [t for t in tiles if 2 * dim * (t.tokens + 2 * t.keys * t.num_stages) <= _SHARED]


@dataclass(frozen=True)
class ChunkTiles:
    """Each of (tokens, warps) with each of (keys, features) and of the stages.

    Tiles wider than the head dim count as those of its width.
    """

    rows: tuple[tuple[int, int], ...]
    sides: tuple[tuple[int, int], ...]
    stages: tuple[int, ...]

    def __call__(self, dim: int) -> list[Tile]:
        sides = dict.fromkeys((min(keys, dim), min(features, dim)) for keys, features in self.sides)
        return [
            Tile(tokens, keys, features, num_warps, num_stages)
            for (tokens, num_warps), (keys, features), num_stages in product(
                self.rows, sides, self.stages
            )
        ]


_ATTENTION = (
    Stage(
        None,
        SoftmaxTiles(
            (
                (64, 4, (32, 64, 128), (2, 3, 4)),
                (128, 8, (32, 64, 128), (2, 3)),
                (128, 4, (32,), (3,)),
            )
        ),
        (_FORWARD,),
    ),
    Stage(
        "dq",
        SoftmaxTiles(
            (
                (64, 4, (32, 64), (1, 2, 3)),
                (128, 8, (32, 64), (1, 2, 3)),
            )
        ),
        (_BOTH,),
    ),
    Stage(
        "dkv",
        SoftmaxTiles(
            (
                (64, 4, (128,), (1,)),
                (64, 4, (32, 64), (2, 3)),
                (128, 8, (32, 64), (2, 3)),
            )
        ),
        (_BOTH,),
    ),
    Stage(
        "biased",
        SoftmaxTiles(((64, 4, (16, 32), (1, 2, 3)), (128, 8, (16, 32), (1, 2)))),
        (_BOTH,),
        terms="biased",
    ),
    Stage(
        "gated",
        SoftmaxTiles(
            (
                (32, 4, (16, 32), (1,)),
                (64, 4, (16, 32), (1, 2)),
                (128, 8, (16,), (1,)),
            )
        ),
        (_BOTH,),
        terms="gated",
    ),
)

_TWO_FOUR = ((0, 2), (0, 4))
_GRADIENTS = Stage(
    "gradients", ChunkTiles(_TWO_FOUR, ((32, 32), (64, 16), (64, 64)), (1, 2)), (_BOTH,)
)
# For per-channel gates.
_WITHIN = Stage("within", ChunkTiles(((0, 1), (0, 2), (0, 4)), ((32, 64),), (1,)), _EACH)
_CHUNK = (
    Stage(
        None,
        ChunkTiles(((16, 2), (32, 2), (64, 4)), ((32, 32), (32, 64), (64, 64)), (1, 2)),
        _EACH,
        uniform=True,
    ),
    Stage("states", ChunkTiles(_TWO_FOUR, ((32, 32), (32, 64), (64, 64)), (2, 3)), _EACH),
    Stage("outputs", ChunkTiles(_TWO_FOUR, ((32, 128), (64, 64), (64, 128)), (1, 2)), _EACH),
    _GRADIENTS,
)
# All keys at once, so that outputs are not split.
_FUSED_CHUNK = (
    Stage(
        None,
        ChunkTiles(
            ((16, 1), (16, 2), (32, 2), (32, 4), (64, 4)),
            ((64, 16), (64, 32), (64, 64), (128, 32)),
            (1, 2),
        ),
        _EACH,
    ),
)
_DELTA = (
    Stage(
        None,
        ChunkTiles(((16, 4), (32, 4), (64, 4), (64, 8)), ((32, 32), (64, 64)), (1,)),
        _EACH,
        uniform=True,
    ),
    Stage("states", ChunkTiles(_TWO_FOUR, ((64, 16), (64, 32), (64, 64)), (1, 2)), _EACH),
    Stage("outputs", ChunkTiles(_TWO_FOUR, ((32, 128), (64, 128)), (1, 2)), _EACH),
    Stage("gradients", ChunkTiles(((0, 2), (0, 4)), ((32, 32), (64, 64)), (1, 2)), (_BOTH,)),
    Stage("system", ChunkTiles(_TWO_FOUR, ((32, 64), (64, 64)), (1, 2)), _EACH),
    Stage("system_backward", ChunkTiles(((0, 2), (0, 4)), ((32, 64), (64, 64)), (1, 2)), (_BOTH,)),
)

STAGES: dict[tuple[str, str], tuple[Stage, ...]] = {
    ("attention", "parallel"): _ATTENTION,
    ("linear_attn", "chunk"): _CHUNK,
    ("linear_attn", "fused_chunk"): _FUSED_CHUNK,
    ("gla", "chunk"): (*_CHUNK, _WITHIN),
    ("simple_gla", "chunk"): _CHUNK,
    ("simple_gla", "fused_chunk"): (*_FUSED_CHUNK, _GRADIENTS),
    ("simple_gla", "parallel"): (*_FUSED_CHUNK, _GRADIENTS),
    ("delta_rule", "chunk"): _DELTA,
    ("gated_delta_rule", "chunk"): _DELTA,
    ("kda", "chunk"): (*_DELTA, _WITHIN),
    ("dplr", "chunk"): (*_DELTA, _WITHIN),
}
