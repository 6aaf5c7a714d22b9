"""Run Triton kernels on a CPU and check every address.

    import properties.simulator as simulator

    simulator.install()                 # every launch from here on is simulated, on CPU tensors
    with simulator.simulating(slab=1):  # or for a while, with options
        kernel[grid](x, y, n)

Triton's own frontend compiles each `@triton.jit` kernel to Triton IR (`compilation`). The IR is
parsed (`frontend`), lowered to NumPy source (`lowering`) and run for all programs of a launch at
once (`runtime` on `memory`, arithmetic in `numerics`). `launcher` replaces the GPU driver.

A fault of a kernel raises a `SimulationError` that names the source line. An operation that the
simulator does not support raises `NotImplementedError`: `tl.dot_scaled`, `tl.map_elementwise`,
inline assembly other than straight float32 code and griddepcontrol, atomics through computed
addresses, loops of branches.

It does not see uninitialised memory of one-byte elements or two-byte integers, which have no
implausible value; races in a kernel that reads the result of an atomic, since its programs may
synchronise that way; and anything below Triton IR, such as tiles that do not fit on a GPU.
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
    GridTooLarge,
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
    "GridTooLarge",
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
    "forget_timings",
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
    """Stop simulating; does nothing if nothing is installed."""
    SESSION.uninstall()


def installed() -> bool:
    """Whether launches are being simulated."""
    return SESSION.installed


def forget_timings() -> None:
    """Let the next call of each autotuned kernel time its configs, as in a new process."""
    SESSION.timed.clear()


def require_written(**tensors: torch.Tensor) -> None:
    """Raise unless every element of the named tensors has been written.

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
