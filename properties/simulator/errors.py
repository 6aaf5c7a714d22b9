"""The faults that a simulated launch can find."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from linecache import getline

import torch


@dataclass(frozen=True)
class Location:
    """A place in a kernel's source; `line` is 0 if the IR does not say."""

    file: str = ""
    line: int = 0

    @cached_property
    def text(self) -> str:
        """The source line itself, without its indentation."""
        return getline(self.file, self.line).strip() if self.line else ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else "an unknown line"


class SimulationError(RuntimeError):
    """A kernel did something that is wrong on a GPU too.

    Attributes:
        kernel: name of the kernel.
        location: the source line.
        argument: name of the tensor argument involved, if any.
        program: program id `(x, y, z)` of the first offending program.
        tile_index: index of the first offending element in the tile.
    """

    def __init__(
        self,
        kernel: str,
        location: Location,
        detail: str,
        argument: str | None = None,
        program: tuple[int, ...] | None = None,
        tile_index: tuple[int, ...] | None = None,
    ) -> None:
        self.kernel = kernel
        self.location = location
        self.argument = argument
        self.program = program
        self.tile_index = tile_index
        where = [f"program {program}"] if program is not None else []
        if tile_index:
            where.append(f"tile index {tile_index}")
        lines = [f"{self.what} in kernel {kernel} at {location}"]
        if location.text:
            lines.append(f"    {location.text}")
        lines.append(detail + (f" ({', '.join(where)})" if where else ""))
        super().__init__("\n".join(lines))

    @property
    def what(self) -> str:
        """The kind of fault in words."""
        return re.sub("(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).lower()


class OutOfBounds(SimulationError):
    """An access outside the tensor that the pointer belongs to."""


class LoadOutOfBounds(OutOfBounds):
    """A load outside its tensor."""


class StoreOutOfBounds(OutOfBounds):
    """A store outside its tensor."""


class AtomicOutOfBounds(OutOfBounds):
    """An atomic operation outside its tensor."""


class GatherOutOfBounds(OutOfBounds):
    """A `tl.gather` outside its tile."""


class IndexOverflow(SimulationError):
    """An address computed from an int32 that does not hold its value."""


class GridTooLarge(SimulationError):
    """A launch of more programs along an axis than a GPU takes."""


class Race(SimulationError):
    """Two programs write different values to an address, or one reads what another writes."""


class UninitializedRead(SimulationError):
    """A load of memory that nobody has written since its allocation."""


class UnwrittenOutput(SimulationError):
    """Elements of an output that no program and no host operation wrote."""

    def __init__(self, argument: str, mask: torch.Tensor) -> None:
        self.argument, self.mask = argument, mask
        first = tuple(int(i) for i in mask.nonzero()[0])
        RuntimeError.__init__(
            self,
            f"unwritten output: nobody wrote {int(mask.sum())} of {mask.numel()} elements of "
            f"`{argument}` of shape {tuple(mask.shape)}, first at {first}",
        )


class UndefinedResult(SimulationError):
    """A division by zero, a store of two values to one address, a loop with step 0."""


class DeviceAssertion(SimulationError):
    """A `tl.device_assert`, `tl.assume` or `tl.multiple_of` that does not hold, or a tensor
    descriptor that TMA cannot address."""


class Stuck(SimulationError):
    """A `while` loop that does not end, such as a lock that is never released."""
