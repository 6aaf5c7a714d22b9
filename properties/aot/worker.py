"""A process for compilation, with Triton's launcher patched and its driver replaced.

Only this process imports Triton and the kernels, so it can compile while tests run under
TRITON_INTERPRET, and tests survive its crash.
"""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class CompilerProcess:
    """One process, started on first use and again after a crash."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function(*args)` in the process. Function and arguments must pickle.

        Raises:
            RuntimeError: the process ended, as when a compiler aborts.
        """
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_start)
        try:
            return self._pool.submit(function, *args, **kwargs).result()
        except BrokenProcessPool:
            self.close()
            raise RuntimeError(
                "the compiler ended its process; its last words and the last launch that it was "
                "given are on stderr"
            ) from None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _start() -> None:
    os.environ.pop("TRITON_INTERPRET", None)
