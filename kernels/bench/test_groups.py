"""Tests of which calls become rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.bench.baselines import Contender
from kernels.bench.groups import Call, Group
from kernels.bench.shapes import Shape
from kernels.bench.table import reason
from kernels.bench.timing import Ceilings, Timing

SHAPE = Shape(2, 3, 5, 4, 6)


def test_a_row_relates_time_to_baselines_and_floor(subject: Any, roof: Ceilings) -> None:
    times = iter([1.0, 0.25, 0.4, 0.5])

    def timing_of(call: Call) -> Timing:
        return Timing(median=next(times), low=0.125, high=1.0, peak=0)

    group = Group("attention", SHAPE, torch.bfloat16, False, ("parallel",), ("torch",))
    *others, row = group.rows(subject.device, timing_of, roof)
    assert [(other.name, other.ratios) for other in others] == [
        ("torch flash", {}),
        ("torch cudnn", {}),
        ("torch efficient", {}),
    ]
    assert (row.name, row.ratios) == ("parallel", {"torch": 2.0})
    assert {other.group for other in others} == {row.group}
    assert row.group == ("attention", "2,3,5,4,6", "forward")
    # 1200 bytes and 1200 operations in half a millisecond.
    assert row.gigabytes_per_second == pytest.approx(0.0024)
    assert row.teraflops == pytest.approx(2.4e-6)
    assert row.floor == pytest.approx(1e-3)
    assert row.of_floor == pytest.approx(2e-3)


def test_the_floor_of_a_recurrence_is_its_bytes_alone(
    subject: Any, roof: Ceilings, timing: Timing
) -> None:
    group = Group("linear_attn", SHAPE, torch.bfloat16, False, ("chunk",))
    (row,) = group.rows(subject.device, lambda call: timing, roof)
    assert row.ratios == {}
    assert row.floor == pytest.approx(0.5e-3)


def test_a_failure_is_a_row_of_its_own_and_stops_nothing(
    subject: Any, roof: Ceilings, timing: Timing
) -> None:
    def timing_of(call: Call) -> Timing:
        if not failed:
            failed.append(call)
            raise RuntimeError("out of memory")
        return timing

    failed: list[Call] = []
    group = Group("rotary_embedding", Shape(2, 3, 5, 4, 4), torch.float32, True, ("fused",))
    group = replace(group, against=("torch",))
    first, *rest = group.rows(subject.device, timing_of, roof)
    assert (first.error, first.refused) == ("RuntimeError: out of memory", False)
    assert [row.timing for row in rest] == [timing]
    assert [row.ratios for row in rest] == [{}]


def test_a_refusal_is_a_row_that_says_so(subject: Any, roof: Ceilings, timing: Timing) -> None:
    wide = Group("linear_attn", Shape(1, 2, 1, 512, 4), torch.float32, False, ("chunk",))

    def timing_of(call: Call) -> Timing:
        call()
        return timing

    (row,) = wide.rows(subject.device, timing_of, roof)
    assert row.refused
    assert reason(row).startswith("refused: ValueError: K")


def test_a_contender_without_a_backward_pass_refuses_it(
    subject: Any, roof: Ceilings, timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward_only = Contender("ours", "detached", lambda x: x.detach())
    monkeypatch.setattr(Group, "contenders", lambda group: [forward_only])

    def timing_of(call: Call) -> Timing:
        call()
        return timing

    group = Group("l2norm", SHAPE, torch.float32, True, ())
    (row,) = group.rows(subject.device, timing_of, roof)
    assert row.refused
    assert reason(row) == (
        "refused: NotImplementedError: no backward pass: the output has no history"
    )


def test_inputs_that_cannot_be_made_are_a_row_too(
    subject: Any, roof: Ceilings, timing: Timing
) -> None:
    odd = Group("rotary_embedding", Shape(1, 2, 3, 5, 5), torch.float32, False, ("fused",))
    (row,) = odd.rows(subject.device, lambda call: timing, roof)
    assert row.error is not None
    assert row.error.startswith("ValueError: rotary_dim: 5")
