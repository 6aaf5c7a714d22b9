"""Tests of compilation ahead of a run, and of first calls."""

import os
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest
import torch

from kernels.bench import processes
from kernels.bench.groups import Group
from kernels.bench.problems import PROBLEMS
from kernels.bench.processes import Unit, _compile, _once, _run, first_call, units, warm
from kernels.bench.shapes import Shape

pytestmark = pytest.mark.ops("gla", "l2norm", "simple_gla")

WIDE = Shape(8, 4096, 16, 128, 128)
MODES = ("chunk", "fused_recurrent")


def _group(shape: Shape, backward: bool = False, op: str = "gla") -> Group:
    return Group(op, shape, torch.float32, backward, MODES, ("torch",))


def test_a_unit_has_all_shapes_of_a_head_dim_with_few_tokens_and_each_once() -> None:
    longer, narrow = Shape(8, 8192, 16, 128, 128), Shape(1, 64, 2, 32, 32)
    groups = [
        _group(shape, backward) for shape in (WIDE, longer, narrow) for backward in (False, True)
    ]
    few = Shape(8, 256, 16, 128, 128)
    assert units(groups) == [
        Unit("ours", mode, tuple(_group(shape, backward) for backward in (False, True)))
        for shape in (few, narrow)
        for mode in MODES
    ]


def test_pytorch_is_not_compiled() -> None:
    group = Group("l2norm", WIDE, torch.float32, False, ("fused",), ("torch",))
    assert [(unit.kind, unit.mode) for unit in units([group])] == [("ours", "fused")]


def test_a_contender_is_called_alone_and_its_seconds_are_told(
    subject: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    small = _group(Shape(1, 2, 1, 4, 4))
    start = time.perf_counter()
    seconds = _run(small, "ours", "chunk", subject.device)
    assert 0 < seconds < time.perf_counter() - start
    with pytest.raises(ValueError, match="mode: 'parallel', expected one that gla"):
        _run(small, "torch", "parallel", subject.device)
    with pytest.raises(ValueError, match="mode: 'parallel'"):
        _run(small, "ours", "parallel", subject.device)


def test_what_does_not_compile_is_named_and_stops_nothing(
    subject: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    wide, small = _group(Shape(1, 2, 1, 512, 4)), _group(Shape(1, 2, 1, 4, 4))
    assert _compile(Unit("ours", "chunk", (wide, small)), subject.device) == "ValueError"
    assert _compile(Unit("ours", "chunk", (small,)), subject.device) == ""


def test_an_autotuner_that_times_nothing_calls_each_config_once() -> None:
    calls: list[None] = []
    assert _once(lambda: calls.append(None), quantiles=(0.5, 0.2, 0.8)) == [0.0, 0.0, 0.0]
    assert len(calls) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")
def test_processes_that_cannot_begin_are_told_of() -> None:
    said: list[str] = []
    groups = [_group(Shape(1, 2, 1, 4, 4))]
    assert warm(groups, torch.device("cpu"), 2, said.append) == units(groups)
    assert said == ["2 of 2 could not be compiled ahead"]


def test_a_unit_that_kills_its_process_is_begun_last_and_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[list[str]] = []

    def compiled(wanted: list[Unit], *_: Any) -> Iterator[tuple[Unit, str]]:
        begun.append([unit.mode for unit in wanted])
        for unit in list(wanted):
            if unit.mode == "fused_chunk":
                raise BrokenProcessPool
            yield unit, "ValueError" if unit.mode == "parallel" else ""

    monkeypatch.setattr(processes, "_compiled", compiled)
    group = Group("simple_gla", WIDE, torch.float32, False, PROBLEMS["simple_gla"].modes)
    said: list[str] = []
    (cold,) = warm([group], torch.device("cpu"), 1, said.append)
    assert cold.mode == "fused_chunk"
    assert begun == [
        ["chunk", "fused_chunk", "fused_recurrent", "parallel"],
        ["fused_recurrent", "parallel", "fused_chunk"],
        ["fused_chunk"],
    ]
    assert said == [
        "compiled [1/4] simple_gla ours chunk, head dim 128",
        "compiled [2/4] simple_gla ours fused_recurrent, head dim 128",
        "compiled [3/4] simple_gla ours parallel, head dim 128: ValueError",
        "1 of 4 could not be compiled ahead",
    ]


def test_no_unit_is_waited_for_after_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(wanted: list[Unit], *_: Any) -> Iterator[tuple[Unit, str]]:
        yield wanted[0], ""
        raise TimeoutError

    monkeypatch.setattr(processes, "_compiled", compiled)
    said: list[str] = []
    group, narrow = _group(WIDE), _group(Shape(1, 64, 2, 32, 32))
    (cold,) = warm([group], torch.device("cpu"), 1, said.append)
    assert said[-1] == "1 of 2 could not be compiled ahead"
    assert cold.concerns(group)
    assert not cold.concerns(narrow)


def test_a_first_call_is_made_in_another_process() -> None:
    """Without a GPU to synchronise, the process fails and its error is reported here."""
    group = Group("l2norm", Shape(1, 2, 1, 4, 4), torch.float32, False, (), ("torch",))
    cache = os.environ.get("TRITON_CACHE_DIR")
    if torch.cuda.is_available():
        assert first_call(group, "torch", "normalize", torch.device("cuda")) > 0
    else:
        with pytest.raises((RuntimeError, AssertionError)):
            first_call(group, "torch", "normalize", torch.device("cpu"))
    assert os.environ.get("TRITON_CACHE_DIR") == cache
