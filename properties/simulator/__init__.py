"""Runs Triton kernels on a CPU, every address checked.

    import properties.simulator as simulator

    simulator.install()                 # every launch from here on is simulated, on CPU tensors
    with simulator.simulating(slab=1):  # or for a while, with options
        kernel[grid](x, y, n)

Each `@triton.jit` kernel is compiled to Triton IR by Triton's own frontend (`compilation`), the IR
is read (`frontend`), turned into NumPy source (`lowering`) and run for all programs of a launch at
once (`runtime` on `memory`, arithmetic in `numerics`). `launcher` stands in for the GPU driver.

What a kernel does wrong is raised as a `SimulationError` that names the source line. What the
simulator cannot execute is a `NotImplementedError` naming the operation: `tl.dot_scaled`,
`tl.map_elementwise`, inline assembly other than straight float32 code, atomics through computed
addresses, loops of branches.

What it does not see: memory that nobody wrote where elements have one byte or are integers of two,
which leaves no implausible value; races in a kernel that looks at what an atomic returns, because
that may be how its programs wait for each other; and anything below Triton's own IR, such as tiles
that do not fit a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from .errors import (
    AtomicOutOfBounds,
    DeviceAssertion,
    GatherOutOfBounds,
    IndexOverflow,
    LoadOutOfBounds,
    Location,
    OutOfBounds,
    Race,
    SimulationError,
    StoreOutOfBounds,
    Stuck,
    UndefinedResult,
    UninitializedRead,
    UnwrittenOutput,
)
from .launcher import SESSION
from .memory import unwritten
from .options import Options

__all__ = [
    "AtomicOutOfBounds",
    "DeviceAssertion",
    "GatherOutOfBounds",
    "IndexOverflow",
    "LoadOutOfBounds",
    "Location",
    "Options",
    "OutOfBounds",
    "Race",
    "SimulationError",
    "StoreOutOfBounds",
    "Stuck",
    "UndefinedResult",
    "UninitializedRead",
    "UnwrittenOutput",
    "install",
    "installed",
    "require_written",
    "simulating",
    "uninstall",
    "unwritten",
]


def install(**options: Any) -> None:
    """Simulate every launch of a `@triton.jit` kernel in this process from now on.

    Args:
        **options: fields of `Options`. A second call replaces the options of the first.
    """
    SESSION.install(Options(**options))


def uninstall() -> None:
    """Give launches back to Triton; harmless where nothing is installed."""
    SESSION.uninstall()


def installed() -> bool:
    """Whether launches are being simulated."""
    return SESSION.installed


def require_written(**tensors: torch.Tensor) -> None:
    """Raise unless every element of the tensors, given by name, has been written by somebody.

    Raises:
        UnwrittenOutput: naming the tensor, how many elements were not written, and the first one.
    """
    for name, tensor in tensors.items():
        mask = unwritten(tensor)
        if mask is not None and mask.any():
            raise UnwrittenOutput(name, mask)


@contextmanager
def simulating(**options: Any) -> Iterator[None]:
    """Simulate within a `with` block; inside another one, only the given options change."""
    before, nested = SESSION.options, SESSION.installed
    SESSION.install(replace(before, **options) if nested else Options(**options))
    try:
        yield
    finally:
        if nested:
            SESSION.options = before
        else:
            SESSION.uninstall()
