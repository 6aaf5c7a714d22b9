"""The pretended GPU: the answers that Triton and packages of kernels get about it.

Triton asks its driver. Packages ask torch as well: for the name and the capability of the device,
for its properties, the current device and stream, and whether a tensor `is_cuda`. They get the
answers of one GPU whose memory is the CPU's. torch itself, which allocates and dispatches, does not
see it, nor does `torch.cuda.is_available()`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from triton import testing
from triton.backends import backends

from . import compilation
from .compilation import SimulatedTarget

DEVICE = "simulator"
NAME = "NVIDIA GPU (simulated)"
SHARED_MEMORY = 232448
MULTIPROCESSORS = 8
WARP = 32


def capability(device: Any = None) -> tuple[int, int]:
    return divmod(compilation.CAPABILITY, 10)


class Driver:
    """The part of a device driver that Triton calls."""

    def get_current_device(self) -> str:
        return DEVICE

    def set_current_device(self, device: Any) -> None:
        """There is one device."""

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_current_target(self) -> SimulatedTarget:
        return compilation.target()

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> Callable[..., Any]:
        return timed

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        return capability()

    @property
    def utils(self) -> Driver:
        return self

    def get_device_properties(self, device: Any = None) -> dict[str, int]:
        """Figures that kernels use to choose their grid."""
        return {
            "max_shared_mem": SHARED_MEMORY,
            "max_num_regs": 65536,
            "multiprocessor_count": MULTIPROCESSORS,
            "warpSize": WARP,
            "sm_clock_rate": 1,
            "mem_clock_rate": 1,
            "mem_bus_width": 1,
        }


def timed(
    fn: Callable[[], Any], *_: Any, quantiles: Sequence[float] | None = None, **options: Any
) -> float | list[float]:
    """In place of `triton.testing.do_bench`: call a kernel once, which takes no time.

    Packages with an autotuner of their own time its configs with it.
    """
    fn()
    if options.get("return_mode") == "all":
        return [0.0]
    return [0.0] * len(quantiles) if quantiles and len(quantiles) > 1 else 0.0


class Here(nullcontext[None]):
    """`with torch.cuda.device(...)`: there is one device."""

    def __init__(self, device: Any = None) -> None:
        super().__init__()


class Stream(nullcontext[None]):
    """The only stream; its work is done at once."""

    cuda_stream = 0

    def __init__(self, device: Any = None) -> None:
        super().__init__()

    def synchronize(self) -> None:
        """There is nothing to wait for."""


def properties(device: Any = None) -> SimpleNamespace:
    major, minor = capability()
    return SimpleNamespace(
        name=NAME,
        major=major,
        minor=minor,
        multi_processor_count=MULTIPROCESSORS,
        warp_size=WARP,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=SHARED_MEMORY,
        total_memory=2**36,
    )


ANSWERS: dict[str, Callable[..., Any]] = {
    "device": Here,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "current_stream": Stream,
    "synchronize": lambda device=None: None,
    "get_device_name": lambda device=None: NAME,
    "get_device_capability": capability,
    "get_device_properties": properties,
}


def asked_by_torch() -> bool:
    """Whether the calling function was called by torch."""
    asking = sys._getframe(2).f_globals.get("__name__", "")
    return bool(asking.partition(".")[0] == "torch")


def answering(truth: Any, answer: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `torch.cuda` that answers truthfully to torch only."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        return (truth if asked_by_torch() else answer)(*args, **kwargs)

    asked.__name__ = asked.__qualname__ = truth.__name__
    asked.__doc__ = truth.__doc__
    return asked


def stay(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """`Tensor.cuda`: CPU memory stands for the GPU's."""
    return tensor


def is_cuda(tensor: torch.Tensor) -> bool:
    """`Tensor.is_cuda`: CPU memory stands for the GPU's."""
    where = tensor.device.type
    return where == "cuda" or (where == "cpu" and not asked_by_torch())


def answers() -> Iterator[tuple[Any, str, Any]]:
    """Replacements for functions that packages call: (owner, name, function)."""
    for name, answer in ANSWERS.items():
        truth = getattr(torch.cuda, name)
        yield torch.cuda, name, answer if isinstance(answer, type) else answering(truth, answer)
    yield torch.Tensor, "is_cuda", property(is_cuda)
    yield torch.Tensor, "cuda", stay
    yield testing, "do_bench", timed
    yield testing, "do_bench_cudagraph", timed
    # Packages that count the active backends before they use Triton.
    yield backends["nvidia"].driver, "is_active", staticmethod(lambda: True)
