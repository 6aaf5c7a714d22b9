"""Processes of their own: compilation ahead of a run, and first calls."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import torch
from triton import knobs
from triton.runtime import driver

from kernels.bench.groups import Group

# Enough for every kernel to be launched; sizes that a kernel is compiled for stay as they are.
_TOKENS = 256


@dataclass(frozen=True)
class Unit:
    """The work of one process: all kernels that a contender has for head dims."""

    kind: str
    mode: str
    groups: tuple[Group, ...]

    def __str__(self) -> str:
        first = self.groups[0]
        return f"{first.op} {self.kind} {self.mode}, head dim {first.shape.K}"

    def concerns(self, group: Group) -> bool:
        """Whether the group launches what the unit compiles."""
        return _kernels_of(group) == _kernels_of(self.groups[0])


def _kernels_of(group: Group) -> tuple[Any, ...]:
    """The settings that kernels are compiled for, beside the mode."""
    return group.op, group.shape.K, group.shape.V, group.shape.form


def units(groups: Sequence[Group]) -> list[Unit]:
    """All that the groups need, of few tokens, in the order of the groups."""
    found: dict[tuple[Any, ...], dict[Group, None]] = {}
    for group in groups:
        shape = group.shape
        small = replace(group, shape=replace(shape, T=min(shape.T, _TOKENS)))
        for one in small.contenders():
            # PyTorch's are compiled.
            if one.kind != "torch":
                key = one.kind, one.mode, *_kernels_of(group)
                found.setdefault(key, {})[small] = None
    return [Unit(key[0], key[1], tuple(of_key)) for key, of_key in found.items()]


def warm(
    groups: Sequence[Group],
    device: torch.device,
    jobs: int,
    say: Callable[[str], None],
    until: float | None = None,
) -> list[Unit]:
    """Compile all that the groups launch, in `jobs` processes that share Triton's disk cache.

    Nothing is timed: an autotuner runs each config once, and what it chooses is forgotten.

    Args:
        say: takes a line for each unit as it is done.
        until: when to give up, by `time.monotonic`.

    Returns:
        the units that could not be compiled.
    """
    left, given_up = units(groups), []
    wanted, done = len(left), 0
    while left:
        before = done
        try:
            for unit, why in _compiled(left, device, jobs, until):
                left.remove(unit)
                done += 1
                say(f"compiled [{done}/{wanted}] {unit}{why and f': {why}'}")
        except TimeoutError:
            break
        except BrokenProcessPool:
            # One of the units begun first broke the pool. They are retried last, and given up if
            # no other unit has been compiled since.
            first, left = left[:jobs], left[jobs:]
            (left if done > before else given_up).extend(first)
    left += given_up
    if left:
        say(f"{len(left)} of {wanted} could not be compiled ahead")
    return left


def _compiled(
    wanted: Sequence[Unit], device: torch.device, jobs: int, until: float | None
) -> Iterator[tuple[Unit, str]]:
    """Each unit as it is done, with what went wrong.

    Raises:
        TimeoutError: it is `until`.
        BrokenProcessPool: a process died.
    """
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_untuned
    )
    try:
        futures = {pool.submit(_compile, unit, device): unit for unit in wanted}
        seconds = None if until is None else max(0.0, until - time.monotonic())
        for future in as_completed(futures, timeout=seconds):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        # Children would finish their units while kernels are timed.
        for child in multiprocessing.active_children():
            child.terminate()
            child.join()


def first_call(group: Group, kind: str, mode: str, device: torch.device) -> float:
    """Seconds of a first call in a fresh process that finds nothing compiled.

    Inputs are made and Python's modules are imported before.
    """
    with (
        TemporaryDirectory() as nothing,
        ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin_with,
            initargs=(nothing,),
        ) as pool,
    ):
        return pool.submit(_run, group, kind, mode, device).result()


def _begin_with(cache: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache


def _untuned() -> None:
    # Before fla is imported.
    os.environ["FLA_CACHE_RESULTS"] = "0"
    knobs.autotuning.cache = False
    driver.active.get_benchmarker = lambda: _once


def _once(call: Any, quantiles: Sequence[float] = (0.5,), **options: Any) -> list[float]:
    call()
    return [0.0 for _ in quantiles]


def _compile(unit: Unit, device: torch.device) -> str:
    """Run it once; what went wrong in a few words, or nothing."""
    wrong = ""
    for group in unit.groups:
        try:
            _run(group, unit.kind, unit.mode, device)
        except Exception as error:
            wrong = type(error).__name__
            _die_without_gpu()
    return wrong


def _die_without_gpu() -> None:
    """After an access that is not allowed all else fails in a process, and it would fail fast."""
    try:
        torch.cuda.synchronize()
    except Exception:
        os._exit(1)


def _run(group: Group, kind: str, mode: str, device: torch.device) -> float:
    """Call one contender; how many seconds that took."""
    ours = kind == "ours"
    alone = replace(group, modes=(mode,) if ours else (), against=() if ours else (kind,))
    for one, call in alone.calls(device):
        if one.mode == mode:
            with one.around():
                torch.cuda.synchronize()
                start = time.perf_counter()
                call()
                torch.cuda.synchronize()
                return time.perf_counter() - start
    raise ValueError(f"mode: {mode!r}, expected one that {group} has of {kind}")
