"""Checks that run in a compiler process. Each records launches and returns plain data."""

import math
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module

from triton.runtime.jit import JITFunction

import kernels
from properties.aot.cases import Compilation
from properties.aot.launches import Launch, record
from properties.aot.resources import faults
from properties.architectures import ARCHITECTURES


@dataclass(frozen=True)
class CompileResult:
    """How many launches were compiled, and their faults."""

    launches: int
    faults: list[str]


def check_compilation(compilation: Compilation, thorough: bool) -> CompileResult:
    """Compile the launches of a compilation: all if `thorough`, else two of each kernel."""
    runs = compilation.runs(ARCHITECTURES[compilation.architecture], thorough)
    launches = _recorded(runs, compilation.architecture)
    return _compiled(launches if thorough else two_of_each(launches), compilation.architecture)


def two_of_each(launches: Sequence[Launch]) -> list[Launch]:
    """Keep two launches of each kernel: the one with the largest blocks, and the last, of a small
    case."""
    of_kernels: dict[str, list[Launch]] = {}
    for launch in launches:
        of_kernels.setdefault(launch.name, []).append(launch)
    largest = [max(each, key=_block_size) for each in of_kernels.values()]
    last = [each[-1] for each in of_kernels.values()]
    return [launch for launch in launches if any(launch is one for one in (*largest, *last))]


def _block_size(launch: Launch) -> int:
    return math.prod(value for value in launch.constants.values() if type(value) is int and value)


def check(runs: Iterable[Callable[[], object]], architecture: str) -> CompileResult:
    """Compile every launch of `runs`, each once."""
    return _compiled(_recorded(runs, architecture), architecture)


def _compiled(launches: Sequence[Launch], architecture: str) -> CompileResult:
    known = ARCHITECTURES[architecture]
    found = []
    for launch in launches:
        print(f"compiling {launch} for {architecture}", file=sys.stderr, flush=True)
        found += faults(launch, known)
    return CompileResult(len(launches), found)


def _recorded(runs: Iterable[Callable[[], object]], architecture: str) -> list[Launch]:
    return record(lambda: [run() for run in runs], ARCHITECTURES[architecture])


def never_launched(compilations: Sequence[Compilation]) -> list[str]:
    """Kernels of the project that none of these compilations launches.

    A kernel is a `@triton.jit` function that no other such function calls.
    """
    launched: set[str] = set()
    for compilation in compilations:
        runs = compilation.runs(ARCHITECTURES[compilation.architecture], thorough=False)
        launched.update(launch.name for launch in _recorded(runs, compilation.architecture))
    functions = _jit_functions()
    called = {name for function in functions.values() for name in function.fn.__code__.co_names}
    return sorted(
        name
        for name, function in functions.items()
        if name not in launched and function.fn.__name__ not in called
    )


def _jit_functions() -> dict[str, JITFunction]:
    found = {}
    for module in pkgutil.walk_packages(kernels.__path__, "kernels."):
        if module.name.rpartition(".")[2].startswith("test_"):
            continue  # tests launch device functions to test them alone
        for value in vars(import_module(module.name)).values():
            if isinstance(value, JITFunction):
                found[f"{value.module}.{value.fn.__name__}"] = value
    return found
