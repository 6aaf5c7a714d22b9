"""Options of simulated launches."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Options:
    """Settings of `install` and `simulating`.

    Attributes:
        slab: programs that run together; 0 chooses by the size of the tiles, 1 runs them one by
            one.
        order: the order in which slabs run; a kernel without races does not notice.
        seed: of the shuffled order.
        tf32: round float32 operands of `tl.dot` to tf32 if the kernel allows it.
        autotune_config: the config of an autotuned kernel: its position, or a function from the
            list of configs to one of them.
        checks: look for races and for reads of unwritten memory; addresses are always checked.
        unwritten: a load of unwritten floats raises, or returns the NaN that they hold, which shows
            only where they are used.
        unmasked: the value of inactive lanes of a load without `other`. Triton leaves it undefined;
            NaN shows who relies on it.
        index_bits: bits of the 32-bit integers that addresses are computed from. With fewer, small
            tensors show what wraps around on large ones. Other 32-bit sums and products must then
            fit too, unless they come from floats; so must loaded and divided integers.
        grid_limit: the most programs along the second or third axis of a grid. With fewer, small
            calls show which grids would be too large.
        dump: print the generated source of every kernel when it is first launched.
    """

    slab: int = 0
    order: Literal["forward", "reverse", "shuffled"] = "forward"
    seed: int = 0
    tf32: bool = False
    autotune_config: int | Callable[[list[Any]], Any] = 0
    checks: bool = True
    unwritten: Literal["refused", "nan"] = "refused"
    unmasked: float = 0.0
    index_bits: int = 32
    grid_limit: int = 65535
    dump: bool = field(default_factory=lambda: os.environ.get("TRITON_SIM_DUMP", "0") == "1")

    def __post_init__(self) -> None:
        if self.slab < 0:
            raise ValueError(f"slab: {self.slab}, expected 0 (automatic) or a positive number")
        if not 2 <= self.index_bits <= 32:
            raise ValueError(f"index_bits: {self.index_bits}, expected 2 to 32")
        if self.grid_limit < 1:
            raise ValueError(f"grid_limit: {self.grid_limit}, expected a positive number")
        if self.order not in ("forward", "reverse", "shuffled"):
            raise ValueError(f"order: {self.order!r}, expected forward, reverse or shuffled")
        if self.unwritten not in ("refused", "nan"):
            raise ValueError(f"unwritten: {self.unwritten!r}, expected refused or nan")
