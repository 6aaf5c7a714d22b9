"""Tile sizes: a small table by op, mode, head dim, dtype and architecture. Nothing autotunes.

An op takes `tile`, an index into its row of `TABLE`, or None for the first entry that admits the
shapes at hand. Every entry computes the same function on every shape that it admits; the properties
draw the index like any other option.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kernels.arguments import describe


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts its work into programs, and Triton's launch parameters.

    Args:
        tokens: tokens (queries) that a program holds at once; the chunk length of chunked forms.
        keys: keys that a softmax program reads per step; the sub-chunk length of chunked forms.
        features: widest slice of a head dim that a program holds at once.
        num_warps, num_stages: launch parameters.
    """

    tokens: int
    keys: int = 0
    features: int = 256
    num_warps: int = 4
    num_stages: int = 2

    def narrowest(self, itemsize: int) -> int:
        """Fewest columns of a head dim that a program may hold: 16, or 64 in warp-group products.

        On Hopper, four warps multiply 64 rows of 16-bit numbers as a group, out of shared memory.
        Triton 3.6 addresses a transposed operand wrongly there if its rows are shorter than the 128
        bytes of a full swizzle: wrong results, and reads outside the shared memory. Seen on an
        H200; see `narrow_operands_on_hopper` in `regressions/softmax.py`.
        """
        return 64 if itemsize == 2 and self.tokens >= 64 and self.num_warps >= 4 else 16


@dataclass(frozen=True)
class Entry(Tile):
    """An entry of the table: a tile, whom it admits, and what single kernels have instead.

    Args:
        max_dim: largest head dim admitted.
        dtypes: of the inputs admitted.
        arch: smallest compute capability admitted, 90 for Hopper; 0 for any device, AMD's too.
        arch_below: compute capabilities admitted are below this one. Later is not larger: 120 has
            less shared memory than 90.
        max_states: `choose` takes it for at most so many states (of a head and sequence, 128 values
            each) that are carried through tokens; None for any number. With few states the time of
            a step counts, as each has much of the device.
        section: tokens of the sections of a sequence, a multiple of `tokens`, if each has programs
            of its own to carry a state; not for delta rules. None if sequences are whole.
        kernels: tiles of kernels that have one of their own, by the names that `TABLE` explains.
    """

    max_dim: int = 256
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)
    arch: int = 0
    arch_below: int = 1000
    max_states: int | None = None
    section: int | None = None
    kernels: Mapping[str, Tile] = field(default_factory=dict, hash=False)

    def admits(self, dim: int, dtype: torch.dtype, arch: int) -> bool:
        return dim <= self.max_dim and dtype in self.dtypes and self.arch <= arch < self.arch_below

    def of(self, kernel: str) -> Tile:
        """The tile of a kernel: its own, or that of the entry."""
        return self.kernels.get(kernel, self)


_HALVES = (torch.bfloat16, torch.float16)
_HOPPER = {"arch": 90, "arch_below": 100}
_BFLOAT16_ON_HOPPER = {"dtypes": (torch.bfloat16,), **_HOPPER}


def _with(entry: Entry, **kernels: Tile) -> Entry:
    """The entry with other tiles for some kernels."""
    return replace(entry, kernels={**entry.kernels, **kernels})


# If a row has fewer elements than there are threads, Triton makes each thread load it again,
# element by element. On an H200 small tiles are the fastest.
_FUSED_RECURRENT = (
    Entry(tokens=32, features=32, num_warps=2),
    Entry(tokens=16, features=32, num_warps=2),
    Entry(tokens=64, features=64, num_warps=8),
)

# For values of pages that have scales.
_SCALED_PAGES = Tile(tokens=16, keys=16, num_warps=8, num_stages=1)

# For rows whose addresses are not multiples of 16 bytes.
_UNALIGNED = Tile(tokens=64, keys=16, features=16, num_warps=2, num_stages=1)

# The fastest of those that do not spill, for an H200. A longer chunk has fewer states to write and
# to read, but gates of channels leave no registers for one. A head dim of 32 leaves half of the
# columns of a group of warps empty (see `narrowest`), and a long chunk's system takes longest then.
# With few states to carry, slices of a state are narrow, or operands are loaded early. With many,
# outputs are "fused": see `kernels.delta.states`.
_DELTA_32_ON_HOPPER = Entry(
    tokens=32,
    keys=32,
    features=32,
    num_warps=1,
    num_stages=1,
    max_dim=32,
    **_BFLOAT16_ON_HOPPER,
    kernels={
        "states": Tile(tokens=32, keys=32, features=32, num_warps=2, num_stages=3),
        "system_backward": Tile(tokens=32, keys=32, features=32, num_warps=2, num_stages=1),
        "unaligned": Tile(tokens=32, keys=32, features=32, num_stages=1),
    },
)
_DELTA_128_ON_HOPPER = Entry(
    tokens=64,
    max_dim=128,
    **_BFLOAT16_ON_HOPPER,
    kernels={
        "states": Tile(tokens=64, keys=64, features=64),
        "outputs": Tile(tokens=64, keys=64, features=128),
        "gradients": Tile(tokens=64, keys=64, features=64),
        "system": Tile(tokens=64, keys=64, features=64, num_warps=2, num_stages=1),
        "system_backward": Tile(tokens=64, keys=64, features=64, num_stages=1),
        "unaligned": Tile(tokens=64, keys=64, features=64, num_warps=8, num_stages=1),
    },
)
_DELTA_256_ON_HOPPER = Entry(
    tokens=32,
    **_BFLOAT16_ON_HOPPER,
    kernels={
        "states": Tile(tokens=32, features=32),
        "outputs": Tile(tokens=32, keys=64, features=128, num_warps=2),
        "gradients": Tile(tokens=32, keys=64, features=64),
        "system": Tile(tokens=32, keys=64, features=64, num_warps=1, num_stages=1),
        "system_backward": Tile(tokens=32, keys=64, features=64),
    },
)
_DEEP_STATES = Tile(tokens=64, keys=64, features=64, num_stages=3)
# Gates of heads leave fewer registers.
_GATED_DELTA_128_ON_HOPPER = _with(
    _DELTA_128_ON_HOPPER,
    system=Tile(tokens=64, keys=64, features=32, num_warps=2, num_stages=1),
)
_FUSED_64 = Tile(tokens=64, keys=64, features=64)
_FUSED_128 = Tile(tokens=64, keys=64, features=128, num_warps=8)
_NARROW_STATES = Tile(tokens=32, features=16, num_stages=3)
_FEW_DELTA_256_ON_HOPPER = replace(
    _with(_DELTA_256_ON_HOPPER, states=_NARROW_STATES), max_states=16
)
_GRADIENTS_OF_CHANNELS = Tile(tokens=32, keys=64, features=64, num_stages=1)
_KDA_ON_HOPPER = tuple(
    Entry(
        tokens=32,
        max_dim=dim,
        max_states=max_states,
        **_BFLOAT16_ON_HOPPER,
        kernels={
            "within": Tile(tokens=32, keys=16, num_warps=1, num_stages=1),
            **states,
            "outputs": Tile(tokens=32, keys=64, features=64),
            "gradients": _GRADIENTS_OF_CHANNELS,
            "system": Tile(tokens=32, keys=64, features=64, num_warps=2, num_stages=1),
            "system_backward": Tile(tokens=32, keys=64, features=64, num_warps=2),
        },
    )
    for dim, max_states, states in (
        (64, 32, {"states": _NARROW_STATES}),
        (128, 16, {"states": _NARROW_STATES}),
        (
            128,
            None,
            {
                "states": Tile(tokens=32, features=64, num_stages=3),
                "fused": Tile(tokens=32, features=128, num_warps=8, num_stages=3),
            },
        ),
        (256, None, {"states": Tile(tokens=32, features=32)}),
    )
)
_DELTA_CHUNK = (
    Entry(
        tokens=32,
        keys=32,
        features=16,
        num_stages=1,
        max_dim=128,
        dtypes=_HALVES,
        kernels=dict.fromkeys(
            ("gradients", "system_backward"),
            Tile(tokens=32, keys=32, features=16, num_warps=8, num_stages=1),
        ),
    ),
    Entry(tokens=16, keys=32, features=16, num_warps=8, num_stages=1),
)
_DELTA_RECURRENT = (
    Entry(tokens=32, features=16, max_dim=128),
    Entry(tokens=16, features=16, num_warps=8),
)

_GLA_ON_HOPPER = tuple(
    Entry(
        tokens=32,
        max_dim=dim,
        max_states=max_states,
        section=max_states and 1024,
        **_BFLOAT16_ON_HOPPER,
        kernels={
            "within": Tile(tokens=32, keys=32, num_warps=1, num_stages=1),
            "states": states,
            "sections": Tile(tokens=32, keys=64, features=128),
            "outputs": Tile(tokens=32, keys=64, features=64, num_warps=2),
            "gradients": _GRADIENTS_OF_CHANNELS,
            "unaligned": Tile(tokens=32, keys=32, features=32, num_stages=1),
        },
    )
    for dim, max_states, states in (
        (64, 32, Tile(tokens=32, keys=32, features=32, num_warps=2, num_stages=3)),
        (64, None, Tile(tokens=32, keys=32, features=64, num_warps=2, num_stages=3)),
        (256, 64, Tile(tokens=32, keys=32, features=64, num_warps=2, num_stages=3)),
        (256, None, Tile(tokens=32, keys=64, features=128)),
    )
)
_LINEAR_ATTN_ON_HOPPER = Entry(
    tokens=64,
    keys=64,
    features=64,
    num_stages=3,
    **_BFLOAT16_ON_HOPPER,
    kernels={
        "outputs": Tile(tokens=64, keys=64, features=128),
        "gradients": Tile(tokens=64, keys=64, features=64),
        "unaligned": _UNALIGNED,
    },
)
_NARROW_SIMPLE_GLA_ON_HOPPER = Entry(
    tokens=32,
    keys=32,
    features=32,
    num_warps=1,
    num_stages=3,
    max_dim=32,
    **_BFLOAT16_ON_HOPPER,
    kernels={
        "states": Tile(tokens=32, keys=32, features=32, num_warps=2),
        "outputs": Tile(tokens=32, keys=32, features=32, num_warps=1, num_stages=1),
        "gradients": Tile(tokens=32, keys=32, features=32, num_warps=2),
        "unaligned": Tile(tokens=32, keys=16, features=16, num_warps=2, num_stages=1),
    },
)
_SIMPLE_GLA_ON_HOPPER = {
    "states": Tile(tokens=64, keys=64, features=64, num_stages=3),
    "outputs": Tile(tokens=64, keys=64, features=128, num_stages=3),
    "gradients": Tile(tokens=64, keys=64, features=64),
    "unaligned": _UNALIGNED,
}
_MANY_STATES_OF_SIMPLE_GLA = Tile(tokens=64, keys=128, features=64, num_stages=3)
_SIMPLE_GLA_FUSED_CHUNK = Entry(
    tokens=32,
    keys=64,
    features=16,
    num_warps=2,
    dtypes=_HALVES,
    arch_below=100,
    kernels={"gradients": Tile(tokens=32, keys=32, features=32, num_stages=1)},
)

# The fastest tiles for an H100 at head dims 128 and 64.
_WEIGHTED_ON_HOPPER = Entry(
    tokens=128,
    keys=64,
    num_warps=8,
    num_stages=3,
    max_dim=128,
    **_BFLOAT16_ON_HOPPER,
    kernels={
        "dq": Tile(tokens=128, keys=32, num_warps=8, num_stages=1),
        "dkv": Tile(tokens=128, keys=16, num_warps=8, num_stages=1),
    },
)

# The first one spills in float32 on sm_120.
_WEIGHTED = (
    Entry(tokens=32, keys=32, num_stages=1, max_dim=64, dtypes=_HALVES),
    Entry(tokens=16, keys=16, num_stages=1),
)

_WALL = Entry(
    tokens=16,
    keys=64,
    features=64,
    num_warps=8,
    num_stages=1,
    kernels={
        "by_key": Tile(tokens=16, keys=32, features=32, num_warps=8, num_stages=1),
        "within": Tile(tokens=16, keys=32, num_warps=8, num_stages=1),
    },
)
_WALL_ON_HOPPER = Entry(
    tokens=64,
    keys=128,
    features=128,
    num_warps=8,
    num_stages=3,
    max_dim=128,
    **_BFLOAT16_ON_HOPPER,
    kernels={
        "within": Tile(tokens=64, keys=64, num_warps=8),
        "backward": Entry(
            tokens=32,
            keys=64,
            features=128,
            num_stages=1,
            kernels={
                "by_query": Tile(tokens=32, keys=128, features=64, num_stages=1),
                "queries_backward": Tile(tokens=32, keys=64, features=128),
                "by_key": Tile(tokens=32, keys=64, features=128, num_warps=8, num_stages=1),
                "within": Tile(tokens=32, keys=32, num_warps=4, num_stages=1),
            },
        ),
    },
)

# tokens: (batch, token, head) vectors of x.
_ROTARY = (
    Entry(tokens=32, max_dim=128),
    Entry(tokens=8, num_warps=2),
    Entry(tokens=128, num_warps=8, max_dim=64),
)

TABLE: dict[tuple[str, str], tuple[Entry, ...]] = {
    ("rotary_embedding", "fused"): _ROTARY,
    ("multiaxis_rotary", "fused"): _ROTARY,
    # tokens: rows that a program holds, queries in the forward and dq kernels, keys in that of dk
    # and dv; keys: rows that it reads per step, of the other kind. Kernels: "dq"; "dkv", of dk and
    # dv. What is added to logits takes registers in the backward pass, which has other tiles then:
    # "biased", both with a softcap or ALiBi; "gated", all of it with forget gates, where a program
    # holds at least as many rows as it reads.
    ("attention", "parallel"): (
        # Hopper, up to 227 KiB of shared memory. On sm_100 these spill.
        Entry(
            tokens=64,
            keys=64,
            num_stages=3,
            max_dim=64,
            dtypes=_HALVES,
            **_HOPPER,
            kernels={
                "dq": Tile(tokens=64, keys=64, num_stages=3),
                "dkv": Tile(tokens=64, keys=64, num_stages=3),
                "biased": Tile(tokens=64, keys=32, num_stages=3),
                "gated": Tile(tokens=64, keys=32),
            },
        ),
        Entry(
            tokens=64,
            keys=64,
            num_stages=3,
            max_dim=128,
            dtypes=_HALVES,
            **_HOPPER,
            kernels={
                "dq": Tile(tokens=128, keys=64, num_warps=8, num_stages=3),
                "dkv": Tile(tokens=128, keys=32, num_warps=8),
                "biased": Tile(tokens=64, keys=16, num_stages=1),
                "gated": Tile(tokens=64, keys=16, num_stages=1),
            },
        ),
        Entry(
            tokens=128,
            keys=32,
            num_warps=8,
            dtypes=_HALVES,
            **_HOPPER,
            kernels={
                "dq": Tile(tokens=128, keys=32, num_warps=8),
                "dk": Tile(tokens=128, keys=32, num_warps=8),
                # The other spills if sequences are packed too.
                "windowed_dk": Tile(tokens=128, keys=16, num_warps=8),
                "dv": Tile(tokens=128, keys=32, num_warps=8),
                "biased": Tile(tokens=32, keys=32, num_warps=8),
                "gated": Tile(tokens=32, keys=16, num_warps=8, num_stages=1),
            },
        ),
        # From Ampere on, up to 99 KiB.
        Entry(
            tokens=64,
            keys=32,
            max_dim=128,
            dtypes=_HALVES,
            arch=80,
            kernels={
                "dq": Tile(tokens=32, keys=32),
                "dkv": Tile(tokens=32, keys=32),
                "gated": Tile(tokens=32, keys=32, num_warps=8, num_stages=1),
            },
        ),
        Entry(
            tokens=64,
            keys=32,
            num_warps=8,
            dtypes=_HALVES,
            arch=80,
            kernels=dict.fromkeys(
                ("dq", "dkv", "gated"), Tile(tokens=32, keys=16, num_warps=8, num_stages=1)
            ),
        ),
        # Any device, up to 64 KiB.
        Entry(
            tokens=32,
            keys=32,
            num_stages=1,
            max_dim=64,
            kernels={
                "dq": Tile(tokens=32, keys=16, num_stages=1),
                "dkv": Tile(tokens=32, keys=16, num_stages=1),
                "biased": Tile(tokens=16, keys=16, num_stages=1),
                "gated": Tile(tokens=16, keys=16, num_stages=1),
            },
        ),
        Entry(
            tokens=16,
            keys=16,
            num_stages=1,
            arch=80,
            kernels={
                "dkv": Tile(tokens=16, keys=16, num_warps=8, num_stages=1),
                "gated": Tile(tokens=16, keys=16, num_warps=16, num_stages=1),
            },
        ),
        Entry(tokens=16, keys=16, num_stages=1),
        # Heads above 256: a program holds `features` of their columns.
        Entry(tokens=16, keys=16, features=128, num_warps=4, num_stages=1, max_dim=576),
    ),
    # The same, without terms of their own.
    ("sigmoid_attention", "parallel"): (_WEIGHTED_ON_HOPPER, *_WEIGHTED),
    ("based", "parallel"): (_WEIGHTED_ON_HOPPER, *_WEIGHTED),
    ("rebased", "parallel"): (_WEIGHTED_ON_HOPPER, *_WEIGHTED),
    ("parallax", "parallel"): (
        replace(_WEIGHTED_ON_HOPPER, tokens=64, num_warps=4, max_dim=64),
        _WEIGHTED_ON_HOPPER,
        Entry(tokens=16, keys=16, num_stages=1, max_dim=64),
        Entry(tokens=16, keys=16, num_warps=8, num_stages=1),
    ),
    ("stickbreaking_attn", "parallel"): _WEIGHTED,
    # tokens: of a chunk; keys, features: sides of a tile along K and V (keys: see
    # `linear.tiles.blocks`). Products of 16 bits want a warp for 16 tokens, or warp groups, which
    # want wide sides (see `narrowest`): gates of channels leave none for those. Kernels: "states",
    # "sections" instead where a sequence has several, "outputs", "gradients", with gates of
    # channels also "within", of a delta rule also "system" and "system_backward", and "fused" where
    # outputs are those of the kernel of the states; "unaligned", all of them where a head dim is no
    # multiple of 16, which Triton loads element by element.
    ("linear_attn", "chunk"): (
        replace(
            _with(
                _LINEAR_ATTN_ON_HOPPER,
                states=Tile(tokens=64, keys=64, features=64, num_stages=4),
            ),
            max_states=32,
            section=4096,
        ),
        _LINEAR_ATTN_ON_HOPPER,
        Entry(tokens=32, keys=32, features=64, num_warps=2, dtypes=_HALVES),
        Entry(tokens=32, keys=32, features=32, num_stages=1),
        Entry(tokens=16, keys=32, features=32, num_stages=1, section=32),
    ),
    ("linear_attn", "fused_chunk"): (
        Entry(
            tokens=64,
            keys=128,
            features=64,
            num_stages=3,
            max_dim=128,
            **_BFLOAT16_ON_HOPPER,
            kernels={"unaligned": Tile(tokens=64, keys=16, features=16, num_warps=2)},
        ),
        Entry(tokens=32, keys=64, features=16, num_warps=2, dtypes=_HALVES),
        Entry(tokens=16, keys=64, features=32, num_stages=1),
    ),
    ("gla", "chunk"): (
        *_GLA_ON_HOPPER,
        Entry(
            tokens=32,
            keys=16,
            features=64,
            num_warps=2,
            num_stages=1,
            dtypes=_HALVES,
            kernels={"gradients": Tile(tokens=32, keys=16, features=32, num_stages=1)},
        ),
        Entry(tokens=16, keys=32, features=32, num_stages=1),
        Entry(tokens=16, keys=32, features=32, num_stages=1, section=32),
    ),
    # tokens: between two kept states in the backward pass; features: both sides of a tile of the
    # state.
    ("linear_attn", "fused_recurrent"): _FUSED_RECURRENT,
    # features: channels of a program.
    ("hgrn", "fused_recurrent"): (
        Entry(tokens=1, features=64, num_warps=1),
        Entry(tokens=1, features=16, num_warps=1),
    ),
    ("gla", "fused_recurrent"): _FUSED_RECURRENT,
    # tokens: (batch, token, head) rows of x; features: those of them that a program computes.
    ("feature_map", "fused"): (
        Entry(tokens=8, features=64),
        Entry(tokens=2, features=256, num_warps=1),
    ),
    # As ("simple_gla", "chunk"); "states" are the nodes and their gradients.
    ("log_linear_attn", "chunk"): (
        Entry(
            tokens=64,
            keys=64,
            features=64,
            max_dim=128,
            **_BFLOAT16_ON_HOPPER,
            kernels={
                "states": Tile(tokens=64, keys=128, features=64),
                "gradients": Tile(tokens=64, keys=64, features=64, num_stages=1),
                "unaligned": Tile(tokens=64, keys=64, features=64, num_warps=8, num_stages=1),
            },
        ),
        Entry(
            tokens=32,
            keys=32,
            features=64,
            num_warps=2,
            dtypes=_HALVES,
            kernels={"gradients": Tile(tokens=32, keys=32, features=32, num_stages=1)},
        ),
        Entry(tokens=32, keys=32, features=32, num_stages=1),
    ),
    # tokens: a power of two, between two kept nodes in the backward pass; features: values of a
    # program.
    ("log_linear_attn", "fused_recurrent"): _DELTA_RECURRENT,
    ("simple_gla", "chunk"): (
        _NARROW_SIMPLE_GLA_ON_HOPPER,
        Entry(
            tokens=64,
            max_states=64,
            section=2048,
            **_BFLOAT16_ON_HOPPER,
            kernels={**_SIMPLE_GLA_ON_HOPPER, "sections": _MANY_STATES_OF_SIMPLE_GLA},
        ),
        Entry(
            tokens=64,
            **_BFLOAT16_ON_HOPPER,
            kernels={**_SIMPLE_GLA_ON_HOPPER, "states": _MANY_STATES_OF_SIMPLE_GLA},
        ),
        Entry(
            tokens=32,
            keys=32,
            features=64,
            num_warps=2,
            dtypes=_HALVES,
            kernels={"gradients": Tile(tokens=32, keys=32, features=32, num_stages=1)},
        ),
        Entry(tokens=32, keys=32, features=32, num_stages=1),
        Entry(tokens=16, keys=32, features=32, num_stages=1, section=32),
    ),
    ("simple_gla", "fused_chunk"): (
        _NARROW_SIMPLE_GLA_ON_HOPPER,
        Entry(
            tokens=64,
            keys=64,
            features=64,
            num_stages=3,
            max_dim=64,
            **_BFLOAT16_ON_HOPPER,
            kernels=_SIMPLE_GLA_ON_HOPPER,
        ),
        Entry(
            tokens=32,
            keys=128,
            features=64,
            max_dim=128,
            **_BFLOAT16_ON_HOPPER,
            kernels={
                "states": Tile(tokens=32, keys=64, features=64, num_warps=2),
                "outputs": Tile(tokens=32, keys=64, features=128, num_warps=2),
                "gradients": Tile(tokens=32, keys=64, features=16, num_warps=2),
            },
        ),
        _SIMPLE_GLA_FUSED_CHUNK,
        # Two stages spill on Blackwell and later.
        replace(_SIMPLE_GLA_FUSED_CHUNK, num_stages=1, arch=100, arch_below=1000),
        Entry(tokens=16, keys=64, features=32, num_stages=1),
    ),
    ("simple_gla", "fused_recurrent"): _FUSED_RECURRENT,
    ("simple_gla", "parallel"): (
        Entry(
            tokens=32,
            keys=64,
            features=64,
            num_warps=2,
            dtypes=_HALVES,
            kernels={"gradients": Tile(tokens=32, keys=32, features=32, num_stages=1)},
        ),
        Entry(tokens=16, keys=32, features=32, num_stages=1),
    ),
    # The same, but the carrier of states holds all keys.
    ("delta_rule", "chunk"): (
        _DELTA_32_ON_HOPPER,
        replace(_DELTA_128_ON_HOPPER, max_states=64),
        replace(_with(_DELTA_128_ON_HOPPER, states=_FUSED_64, fused=_FUSED_64), max_dim=64),
        _with(_DELTA_128_ON_HOPPER, states=_FUSED_128, fused=_FUSED_128),
        _FEW_DELTA_256_ON_HOPPER,
        _DELTA_256_ON_HOPPER,
        *_DELTA_CHUNK,
    ),
    ("gated_delta_rule", "chunk"): (
        _DELTA_32_ON_HOPPER,
        replace(_with(_GATED_DELTA_128_ON_HOPPER, states=_DEEP_STATES), max_states=64),
        replace(_with(_GATED_DELTA_128_ON_HOPPER, states=_FUSED_64, fused=_FUSED_64), max_dim=64),
        _with(_GATED_DELTA_128_ON_HOPPER, states=_FUSED_128, fused=_FUSED_128),
        _FEW_DELTA_256_ON_HOPPER,
        _DELTA_256_ON_HOPPER,
        *_DELTA_CHUNK,
    ),
    ("kda", "chunk"): (*_KDA_ON_HOPPER, *_DELTA_CHUNK),
    ("dplr", "chunk"): (*_KDA_ON_HOPPER, *_DELTA_CHUNK),
    # tokens: between two kept states in the backward pass; features: values of a program.
    ("delta_rule", "fused_recurrent"): _DELTA_RECURRENT,
    ("gated_delta_rule", "fused_recurrent"): _DELTA_RECURRENT,
    ("kda", "fused_recurrent"): _DELTA_RECURRENT,
    ("dplr", "fused_recurrent"): _DELTA_RECURRENT,
    ("momentum_delta_rule", "fused_recurrent"): _DELTA_RECURRENT,
    # As ("simple_gla", "chunk") in float32. Kernels: "iterate", without which all systems are
    # solved directly; "solve", whose keys are columns of a panel; "finish", whose tokens are
    # (batch, token, head) rows.
    ("mesa_net", "chunk"): (
        Entry(
            tokens=32,
            keys=32,
            features=32,
            num_stages=1,
            max_dim=128,
            **_HOPPER,
            kernels={
                "iterate": Tile(tokens=32, num_warps=8, num_stages=1),
                "outputs": Tile(tokens=32, keys=16, features=128, num_stages=1),
                "solve": Tile(tokens=32, keys=16, num_warps=8, num_stages=1),
                "finish": Tile(tokens=8),
            },
        ),
        Entry(
            tokens=32,
            keys=32,
            features=32,
            num_stages=1,
            max_dim=64,
            kernels={
                "solve": Tile(tokens=32, keys=16, num_stages=1),
                "finish": Tile(tokens=8),
            },
        ),
        Entry(
            tokens=16,
            keys=32,
            features=32,
            num_stages=1,
            kernels={
                "solve": Tile(tokens=16, keys=16, num_warps=8, num_stages=1),
                "finish": Tile(tokens=8),
            },
        ),
    ),
    # tokens: of a block of a mini-batch; keys: of the model that a program holds at once. Kernels:
    # "walk_back", "mini_batch".
    ("ttt_linear", "fused_chunk"): (
        Entry(
            tokens=16,
            keys=128,
            num_warps=8,
            num_stages=1,
            dtypes=_HALVES,
            max_dim=128,
            **_HOPPER,
            kernels={
                "walk_back": Tile(tokens=16, keys=32, num_warps=8, num_stages=1),
                "mini_batch": Tile(tokens=16, keys=32, num_warps=2, num_stages=1),
            },
        ),
        Entry(
            tokens=16,
            keys=32,
            num_stages=1,
            max_dim=128,
            kernels={"walk_back": Tile(tokens=16, keys=16, num_warps=8, num_stages=1)},
        ),
        Entry(tokens=16, keys=16, num_warps=8, num_stages=1),
    ),
    # tokens: of a chunk, at least the 15 rows of the largest state; keys: rows that a program loads
    # before it uses the first; features: its channels with up to four taps. Kernels: "backward".
    ("short_conv", "fused"): (
        Entry(
            tokens=64,
            keys=8,
            features=128,
            num_warps=1,
            kernels={"backward": Tile(tokens=128, keys=8, features=128, num_warps=1)},
        ),
        Entry(tokens=16, keys=2, features=64, num_warps=2),
    ),
    # tokens: of a step of the walk; features: channels of a program.
    ("cumsum", "fused"): (
        Entry(tokens=32, features=64),
        Entry(tokens=16, features=16, num_warps=1),
    ),
    # tokens: of a step of the walk; features: channels of all heads of a program.
    ("mean_pooling", "fused"): (
        Entry(tokens=16, features=64),
        Entry(tokens=4, features=16, num_warps=1),
    ),
    # tokens: none, as the chunk is given by the last dim.
    ("solve_tril", "fused"): (Entry(tokens=64), Entry(tokens=64, num_warps=2)),
    # tokens: (batch, token) rows of o.
    ("attnres", "fused"): (
        Entry(tokens=16, max_dim=128),
        Entry(tokens=8, num_warps=8),
        Entry(tokens=1, num_warps=8, max_dim=8192),
    ),
    # tokens: (batch, token, head) vectors of x.
    ("rms_norm_gated", "fused"): (Entry(tokens=16, max_dim=128), Entry(tokens=4)),
    # tokens: rows of a head of a program, more of them where the head is narrow.
    ("decay_gate", "fused"): (Entry(tokens=32), Entry(tokens=8, num_warps=2)),
    # tokens: (batch, token, head) vectors of x.
    ("l2norm", "fused"): (Entry(tokens=32, max_dim=128), Entry(tokens=8)),
    # tokens: rows (a query of a head of a group) of a program; keys: rows of pages per step;
    # features: columns of queries and keys that it multiplies at a time. "scaled" is for values
    # with scales, which are multiplied in float32. On an H100, 64 keys of 16 bits for 4 warps are
    # read at the pace of a copy, 16 keys for 8 warps at a third of that.
    ("paged_attention", "fused"): (
        Entry(
            tokens=16,
            keys=64,
            max_dim=128,
            num_stages=2,
            dtypes=_HALVES,
            kernels={"scaled": _SCALED_PAGES},
        ),
        Entry(tokens=16, keys=32, max_dim=64, num_stages=1, kernels={"scaled": _SCALED_PAGES}),
        Entry(tokens=16, keys=16, num_warps=8, num_stages=1),
        Entry(tokens=16, keys=16, features=64, num_warps=8, num_stages=1, max_dim=576),
    ),
    # tokens: of a block; keys: of a span; features: widest slice of K that a program multiplies at
    # once. "attend", and backward "walk" and "return", hold so many queries and read so many keys
    # per step, "by_key" holds keys and reads queries, "cross" rows of M. With gates those named
    # "gated" replace them, and others, "unaligned", if a head dim is no multiple of 16.
    ("path_attn", "parallel"): (
        Entry(
            tokens=64,
            keys=256,
            features=64,
            num_stages=1,
            max_dim=128,
            **_BFLOAT16_ON_HOPPER,
            kernels={
                "attend": Tile(tokens=128, keys=64, features=128, num_warps=8, num_stages=1),
                "walk": Tile(tokens=128, keys=64, features=128, num_warps=8, num_stages=1),
                "return": Tile(tokens=128, keys=32, features=64, num_warps=8, num_stages=2),
                "by_key": Tile(tokens=128, keys=64, features=128, num_warps=8, num_stages=2),
                "gated_walk": Tile(tokens=128, keys=32, features=64, num_warps=8, num_stages=1),
                "gated_return": Tile(tokens=128, keys=32, features=64, num_warps=8, num_stages=2),
                "cross": Tile(tokens=64, features=128),
                "unaligned": Tile(tokens=16, keys=16, features=32, num_warps=8, num_stages=1),
                "unaligned_block": Tile(tokens=32, features=32, num_stages=1),
            },
        ),
        Entry(
            tokens=16,
            keys=32,
            features=64,
            num_warps=8,
            num_stages=1,
            kernels=dict.fromkeys(
                ("attend", "walk", "return", "by_key"),
                Tile(tokens=16, keys=16, features=64, num_warps=8, num_stages=1),
            ),
        ),
    ),
    # tokens: of a chunk; features: widest slice of K or V that a program multiplies at once.
    ("deltaformer", "parallel"): (
        Entry(tokens=32, features=32, max_dim=64, num_stages=1, dtypes=_HALVES, **_HOPPER),
        # Slices of 64 spill there.
        Entry(tokens=16, features=32, num_stages=1, dtypes=_HALVES, arch=120),
        Entry(tokens=16, features=64, num_stages=1),
    ),
    # tokens: of a chunk, whose rows a program holds beside those of another; keys: widest slice of
    # K that it multiplies at once, or "within" chunks decays; features: of V. Longer chunks spill
    # in other dtypes, and backwards.
    ("wall_attn", "parallel"): (_WALL_ON_HOPPER, _WALL),
    # tokens: query heads that a program holds, and rows of queries that dk and dv read per step;
    # keys: keys that they read per step, or hold.
    ("selected_attention", "parallel"): (
        Entry(tokens=32, keys=32, max_dim=128, dtypes=_HALVES, arch=80, num_stages=1),
        Entry(tokens=16, keys=32, num_warps=8, num_stages=1, arch=80, arch_below=120),
        # Others spill more on sm_120.
        Entry(tokens=16, keys=16, num_warps=8, num_stages=1),
    ),
    # tokens: (batch, token, head) rows of o_a.
    ("merge_attention", "fused"): (Entry(tokens=16, max_dim=128), Entry(tokens=4)),
}

# `differential_attention` launches `attention`, with a head for each softmax, so an index means the
# same entry in both.
TABLE["differential_attention", "parallel"] = tuple(
    replace(
        entry,
        kernels={
            name: tile for name, tile in entry.kernels.items() if name not in ("biased", "gated")
        },
    )
    for entry in TABLE["attention", "parallel"]
    if entry.max_dim <= 256
)


# Triton's own take several times as long to call, and a launch asks several.
def cdiv(count: int, size: int) -> int:
    """How many pieces of a size cover a count."""
    return -(-count // size)


def next_power_of_2(dim: int) -> int:
    """The least power of 2 that is at least `dim`, of 1 or more."""
    return 1 << (dim - 1).bit_length()


def aligned(*dims: int) -> bool:
    """Whether rows of these lengths are loaded many elements at a time: Triton knows only whether a
    length is a multiple of 16."""
    return all(dim % 16 == 0 for dim in dims)


def count_states(sequences: int, heads: int, value_dim: int, cu_seqlens: Tensor | None) -> int:
    """Count the states, of up to 128 values each, that are carried through tokens most of the time.

    Half of the packed sequences count: a program waits for the longest, while others have ended.
    """
    return sequences * heads * cdiv(value_dim, 128) // (1 if cu_seqlens is None else 2)


# The compute capability that the simulator and the interpreter are tiled for, times ten. Nothing
# limits a tile there, so tests without a GPU run Hopper's; `properties.device.as_architecture`
# puts another number here.
SIMULATED = 90


def architecture(device: torch.device) -> int:
    """Compute capability times ten of an NVIDIA device; 0 for every other accelerator.

    Tensors on a CPU are for the simulator or the interpreter. A constant of a compiled call:
    torch's compiler need not look into it, nor at what it asks of torch.
    """
    if device.type == "cpu":
        return SIMULATED
    if device.type != "cuda" or torch.version.hip is not None:
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


# As `torch.compiler.assume_constant_result` does, which would import the compiler and double the
# time of an import of this package.
architecture._dynamo_marked_constant = True


def choose(
    op: str,
    mode: str,
    *,
    dim: int,
    dtype: torch.dtype,
    device: torch.device,
    tile: int | None,
    states: int = 1,
) -> int:
    """The index of the tile to use: `tile` if it is admitted, the first admitted entry if None.

    Args:
        states: how many are carried through tokens, see `Entry`; a `tile` may be for fewer.

    Raises:
        TypeError: `tile` is neither an int nor None.
        ValueError: there is no such entry, or it does not admit the head dim, dtype or device.
        LookupError: `TABLE` has no row for the op and mode.
    """
    if (op, mode) not in TABLE:
        raise LookupError(f"{op} ({mode}): no row of tiles, expected one in kernels.tiles.TABLE")
    entries, arch = TABLE[op, mode], architecture(device)
    if tile is None:
        for index, entry in enumerate(entries):
            few_enough = entry.max_states is None or states <= entry.max_states
            if few_enough and entry.admits(dim, dtype, arch):
                return index
        raise ValueError(f"head dim: {dim}, expected a dim that {op} ({mode}) has a tile for")
    if isinstance(tile, bool) or not isinstance(tile, int):
        raise TypeError(f"tile: {describe(tile)}, expected an int or None")
    admitted = [index for index, entry in enumerate(entries) if entry.admits(dim, dtype, arch)]
    if tile not in admitted:
        raise ValueError(
            f"tile: {tile}, expected one of {admitted} for {op} ({mode}), head dim {dim}, {dtype}"
        )
    return tile
