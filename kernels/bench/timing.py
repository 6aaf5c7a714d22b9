"""How long a call takes on a GPU, and how long it must take at least."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from triton.runtime import driver
from triton.testing import do_bench

_COPIED = 2**30
_SIDE = 8192


@dataclass(frozen=True)
class Timing:
    """Time and memory of one call.

    Args:
        median, low, high: milliseconds, and their 20th and 80th percentile.
        peak: bytes that the call needs at its peak beyond what was allocated before.
    """

    median: float
    low: float
    high: float
    peak: int


def time_call(
    call: Callable[[], object], milliseconds: int = 200, *, graph: bool = False
) -> Timing:
    """Time a call that runs on the current GPU.

    It is called once before anything is measured, so that kernels are compiled and tuned. The L2
    cache is flushed before each of the calls that are timed.

    Args:
        call: what is timed.
        milliseconds: how long to repeat it, about.
        graph: time what it launches as a CUDA graph, without the pace of Python.
    """
    call()
    torch.cuda.synchronize()
    # Cycles that the first call left would be freed during the next, which would seem to need less.
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    timed = _replayed(call) if graph else call
    median, low, high = do_bench(timed, rep=milliseconds, quantiles=[0.5, 0.2, 0.8])
    return Timing(median, low, high, peak)


def _replayed(call: Callable[[], object]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def tune_briefly() -> None:
    """Have Triton's autotuners, which are others', take 25 ms for a config instead of 125."""
    driver.active.get_benchmarker = lambda: partial(do_bench, warmup=5, rep=20)


@dataclass(frozen=True)
class Ceilings:
    """The bandwidth and the rate that the GPU reaches.

    Args:
        bandwidth: bytes per second, read and written, of a large copy.
        arithmetic: multiplications and additions per second of a large product of matrices.
    """

    bandwidth: float
    arithmetic: float

    def floor(self, moved: int, operations: int = 0) -> float:
        """Milliseconds that so many bytes and operations take at least."""
        return 1e3 * max(moved / self.bandwidth, operations / self.arithmetic)


def ceilings(device: torch.device) -> Ceilings:
    """Measure them: a copy of 1 GiB, and a product of 8192 by 8192 in bfloat16."""
    source = torch.zeros(_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = time_call(lambda: target.copy_(source))
    a, b = (torch.randn(_SIDE, _SIDE, dtype=torch.bfloat16, device=device) for _ in range(2))
    product = time_call(lambda: a @ b)
    return Ceilings(
        bandwidth=1e3 * 2 * _COPIED / copy.median,
        arithmetic=1e3 * 2 * _SIDE**3 / product.median,
    )
